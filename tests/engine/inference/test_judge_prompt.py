"""What judges of pairs are asked: our words, or files in the forms of AlpacaEval and Arena-Hard-Auto."""

import pytest
import yaml
from typer.testing import CliRunner

from unmdpo.cli import app
from unmdpo.core.errors import UserError
from unmdpo.data import Message
from unmdpo.engine.inference.judge_prompt import JudgePrompt, prompt_of_judge
from unmdpo.engine.inference.judges import EndpointSettings

PROMPT = (Message("user", "Why {first}?"),)
CHAT = (Message("user", "Hi"), Message("assistant", "Hello"), Message("user", "Why?"))
ALPACA = """<|im_start|>system
You compare answers.
<|im_end|>
<|im_start|>user
{
    "instruction": \"\"\"{instruction}\"\"\",
    "m": \"\"\"{output_1}\"\"\",
    "M": \"\"\"{output_2}\"\"\"
}
<|im_end|>"""
ARENA = {"system_prompt": "Be fair.", "regex_pattern": r"\[\[([AB<>=]+)\]\]", "max_tokens": 4096}
FIRST = ARENA | {"prompt_template": ["Q: {question_1}\nA: {answer_1}\nB: {answer_2}"]}
LATER = ARENA | {"prompt_template": "Q: {QUESTION}\nA: {ANSWER_A}\nB: {ANSWER_B}", "regex_pattern": None}


def of(tmp_path, text, **more):
    path = tmp_path / ("prompt.txt" if isinstance(text, str) else "prompt.yaml")
    path.write_text(text if isinstance(text, str) else yaml.safe_dump(text))
    return prompt_of_judge(EndpointSettings(endpoint="http://x/v1", model="m", prompt=str(path), **more))


def test_alpaca_eval_s_form(tmp_path):
    prompt = of(tmp_path, ALPACA)
    assert prompt.labels == ("m", "M")
    system, user = prompt.ask(PROMPT, "one {output_2}", "two")
    assert system == {"role": "system", "content": "You compare answers."}
    expected = '"""Why {first}?""",\n    "m": """one {output_2}""",\n    "M": """two"""'
    assert expected in user["content"]
    assert "first token" in prompt.reading(logprobs=True)
    assert prompt.verdict("M") == 0
    assert prompt.verdict("m") == 1


@pytest.mark.parametrize("settings", [FIRST, LATER])
def test_arena_hard_s_form(tmp_path, settings):
    prompt = of(tmp_path, settings, logprobs=False)
    assert prompt.tokens == 4096
    assert prompt.ask(PROMPT, "one", "two") == [
        {"role": "system", "content": "Be fair."},
        {"role": "user", "content": "Q: Why {first}?\nA: one\nB: two"},
    ]


@pytest.mark.parametrize(
    ("said", "share"),
    [
        ("[[A>>B]]", 1.0), ("My verdict: [[A>B]].", 0.75), ("[[A=B]]", 0.5), ("[[B>A]]", 0.25), ("[[B>>A]]", 0.0),
        ("[[A<B]]", 0.25), ("first [[A>B]], then [[B>>A]]", 0.0), ("[[A]]", None), ("A>>B", None), ("", None),
    ],
)  # fmt: skip
def test_verdicts_in_five_steps(tmp_path, said, share):
    assert of(tmp_path, FIRST, logprobs=False).verdict(said) == share


def test_patterns_are_tried_in_order(tmp_path):
    prompt = of(tmp_path, FIRST | {"regex_patterns": [r"\[\[([AB<>=]+)\]\]", r"\[([AB<>=]+)\]"]}, logprobs=False)
    assert prompt.verdict("so [A>B]") == 0.75
    assert prompt.verdict("[B>A], no: [[A>>B]]") == 1.0


def test_longer_conversations_are_shown_whole(tmp_path):
    asked = of(tmp_path, "About {conversation}: A {first} or B {second}?").ask(CHAT, "x", "y")
    assert asked == [
        {"role": "user", "content": "About [user]\nHi\n\n[assistant]\nHello\n\n[user]\nWhy?: A x or B y?"}
    ]
    assert "[assistant]\nHello" in of(tmp_path, ALPACA).ask(CHAT, "x", "y")[1]["content"]


@pytest.mark.parametrize(
    ("text", "more", "says"),
    [
        ("{first} or {second}?", {}, "needs one of {conversation}, {instruction}"),
        ("{instruction} {first} {output_1} {second}", {}, "needs one of {first}"),
        ({"prompt_template": "x"}, {"logprobs": False}, "needs system_prompt and prompt_template"),
        ([1], {"logprobs": False}, "needs system_prompt"),
        (FIRST | {"regex_pattern": "["}, {"logprobs": False}, "unterminated character set"),
        (FIRST | {"regex_pattern": r"\[\[[AB<>=]+\]\]"}, {"logprobs": False}, "exactly one group"),
        (FIRST, {}, "set logprobs: false"),
    ],
)
def test_prompts_that_cannot_be_asked(tmp_path, text, more, says):
    with pytest.raises(UserError) as error:
        of(tmp_path, text, **more)
    assert says in str(error.value)


def test_a_missing_prompt(tmp_path):
    with pytest.raises(UserError, match="cannot be read"):
        prompt_of_judge(EndpointSettings(endpoint="http://x/v1", model="m", prompt=str(tmp_path / "none.txt")))
    with pytest.raises(ValueError, match="reasons or a prompt"):
        EndpointSettings(endpoint="http://x/v1", model="m", prompt="x", reasons=True, logprobs=False)


def test_a_label_alone_counts():
    assert JudgePrompt(()).verdict("A is worse") is None
    assert JudgePrompt(()).verdict('{"winner": "B"}') == 0


def test_what_is_asked_can_be_shown(tmp_path):
    (tmp_path / "prompt.yaml").write_text(yaml.safe_dump(FIRST))
    settings = {"endpoint": "http://x/v1", "model": "m", "logprobs": False, "prompt": str(tmp_path / "prompt.yaml")}
    (tmp_path / "judge.yaml").write_text(yaml.safe_dump(settings))
    shown = CliRunner().invoke(app, ["judge", "show", str(tmp_path / "judge.yaml")])
    assert shown.exit_code == 0, shown.output
    for part in ("[system]\nBe fair.", "Q: {question_1}", "A>>B to B>>A"):
        assert part in shown.output
    shown = CliRunner().invoke(app, ["judge", "show", "tests.worlds.judges:longest"])
    assert "function: tests.worlds.judges:longest" in shown.output
