"""What a judge of pairs is asked, and how its verdict is read: in our words, or in those of a file.

AlpacaEval's and Arena-Hard-Auto's own files are read as they are, so a judge is asked what their judges are asked.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from unmdpo.core.errors import UserError
from unmdpo.core.files import expand_home, read_small
from unmdpo.data.arena import share_of_a
from unmdpo.data.identity import Prompt
from unmdpo.engine.inference.endpoints import secret_of
from unmdpo.engine.inference.judges import EndpointSettings

OURS = """Here is a conversation, and two responses to its last message.

<conversation>
{conversation}
</conversation>

<response name="A">
{first}
</response>

<response name="B">
{second}
</response>

Which response is better: more helpful, more correct, better at what was asked?"""
ONE_LETTER = "\nAnswer with one letter, A or B."
BRIEFLY = "\nIf neither is better, answer: tie."
WITH_REASONS = (
    "\nFirst compare them in a few sentences, without regard to their length, their order or how sure they sound. "
    "Then end with your verdict on a line of its own: [[A]], [[B]] or [[tie]]."
)
SHORT, LONG = 8, 1024  # tokens of an answer, without reasons and with them
# What to fill in, by its names: ours, AlpacaEval's, and those of both versions of Arena-Hard-Auto.
CONVERSATION, FIRST, SECOND = (
    ("conversation", "instruction", "question_1", "QUESTION"),
    ("first", "output_1", "answer_1", "ANSWER_A"),
    ("second", "output_2", "answer_2", "ANSWER_B"),
)
PLACE = re.compile("{(" + "|".join((*CONVERSATION, *FIRST, *SECOND)) + ")}")
SECTION = re.compile(r"<\|im_start\|>(system|user)\n(.*?)<\|im_end\|>", re.DOTALL)  # of AlpacaEval's files


@dataclass(frozen=True)
class JudgePrompt:
    messages: tuple[tuple[str, str], ...]  # role and text
    labels: tuple[str, str] = ("A", "B")  # of the first response and the second
    steps: tuple[re.Pattern[str], ...] = ()  # the first that finds A>>B, A>B, A=B, B>A or B>>A; its last one counts
    tokens: int = SHORT  # of an answer, if it is read as a text

    def ask(self, prompt: Prompt, first: str, second: str) -> list[Any]:
        """The messages for one pair. Where a text has room for one question, a single message goes there as it is."""
        turns = "\n\n".join(f"[{message.role}]\n{message.text}" for message in prompt)
        filled = dict.fromkeys(CONVERSATION, prompt[0].text if len(prompt) == 1 else turns) | {"conversation": turns}
        filled |= dict.fromkeys(FIRST, first) | dict.fromkeys(SECOND, second)
        return [
            {"role": role, "content": PLACE.sub(lambda found: filled[found[1]], text)} for role, text in self.messages
        ]

    def verdict(self, said: str) -> float | None:
        """1 for the first response, 0 for the second, one half for a tie; for steps, a slight preference is half way.
        None if it is not in the form that was asked: alone on a line (the last such line counts), or the only value of
        a JSON object. Words around it may turn it into its opposite ("Not A", "Response A is worse")."""
        if self.steps:
            shares = ([share_of_a(step) for step in pattern.findall(said)] for pattern in self.steps)
            found = [known for each in shares if (known := [share for share in each if share is not None])]
            return found[0][-1] if found else None
        try:
            values = json.loads(said)
            lines = [str(value) for value in values.values()] if isinstance(values, dict) and len(values) == 1 else []
        except ValueError:
            lines = said.splitlines()
        line = re.compile(rf"\W*({self.labels[0]}|{self.labels[1]}|[Tt]ie|TIE)\W*")  # nothing else but marks
        verdicts = [match[1] for match in map(line.fullmatch, lines) if match is not None]
        return {self.labels[0]: 1.0, self.labels[1]: 0.0}.get(verdicts[-1], 0.5) if verdicts else None

    def reading(self, *, logprobs: bool) -> str:
        """How its verdict is read, in a sentence."""
        first, second = self.labels
        if logprobs:
            return f"the probabilities of {first} and {second} as its first token; which is first is drawn by prompt"
        if self.steps:
            return "its last verdict from A>>B to B>>A, a slight preference as half of a strong one; in both orders"
        return f"{first}, {second} or tie, alone on its last such line or as the only value of JSON; in both orders"


def check_endpoint_judge(settings: EndpointSettings) -> None:
    prompt_of_judge(settings)
    secret_of(settings)


def prompt_of_judge(settings: EndpointSettings) -> JudgePrompt:
    """The prompt that the settings name, or ours."""
    if settings.prompt is not None:
        prompt = _read(expand_home(settings.prompt))
        if prompt.steps and settings.logprobs:
            raise UserError(f"{settings.prompt} asks for a text with a verdict in five steps: set logprobs: false")
        return prompt
    if settings.logprobs:
        return JudgePrompt((("user", OURS + ONE_LETTER),))
    ending = WITH_REASONS if settings.reasons else ONE_LETTER + BRIEFLY
    return JudgePrompt((("user", OURS + ending),), tokens=LONG if settings.reasons else SHORT)


def _read(path: Path) -> JudgePrompt:
    try:
        text = read_small(path)
        values = yaml.safe_load(text) if path.suffix in (".yaml", ".yml") else None
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise UserError(f"judge prompt {path}: cannot be read: {error}") from error
    prompt = _plain(text) if values is None else _arena_hard(values, path)
    names = {name for _, content in prompt.messages for name in PLACE.findall(content)}
    for needed in (CONVERSATION, FIRST, SECOND):
        if len(names & {*needed}) != 1:
            raise UserError(f"judge prompt {path}: needs one of {', '.join(f'{{{name}}}' for name in needed)}")
    return prompt


def _plain(text: str) -> JudgePrompt:
    """AlpacaEval's form, whose labels are m and M; or a text of one's own, with A and B."""
    messages = tuple((role, content.strip()) for role, content in SECTION.findall(text))
    labels = ("m", "M") if '"M"' in text else ("A", "B")
    return JudgePrompt(messages or (("user", text.strip()),), labels)


def _arena_hard(values: Any, path: Path) -> JudgePrompt:
    """A setting of Arena-Hard-Auto: `prompt_template`, `regex_pattern` and `system_prompt`, which its second version
    keeps elsewhere."""
    if not isinstance(values, Mapping) or not {"system_prompt", "prompt_template"} <= values.keys():
        raise UserError(
            f"judge prompt {path}: needs system_prompt and prompt_template, as in Arena-Hard-Auto's settings; its "
            "second version has the system prompts in utils/judge_utils.py: copy one of them into this file"
        )
    template, patterns = values["prompt_template"], values.get("regex_patterns") or [values.get("regex_pattern")]
    try:
        steps = tuple(re.compile(pattern or r"\[\[([AB<>=]+)\]\]") for pattern in patterns)
        if any(pattern.groups != 1 for pattern in steps):
            raise ValueError("each pattern for verdicts needs exactly one group")
        tokens = int(values.get("max_tokens", LONG))
        user = str(template[0] if isinstance(template, list) else template)
    except (TypeError, ValueError, LookupError, re.error) as error:
        raise UserError(f"judge prompt {path}: {error}") from error
    return JudgePrompt((("system", str(values["system_prompt"])), ("user", user)), steps=steps, tokens=tokens)
