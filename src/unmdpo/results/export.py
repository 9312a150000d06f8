"""A policy for the world outside the store: its files, and a card that says what it is and how it was judged."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from unmdpo.core.errors import UserError, disk_problem
from unmdpo.core.files import check_new, check_outside_stores, read_small_json, replacing, sha256
from unmdpo.engine.adapters import is_adapter
from unmdpo.engine.folder import CARD, CHECKSUMS
from unmdpo.engine.inference.judges import kind_of
from unmdpo.results.run import Run
from unmdpo.results.tables import judged_by
from unmdpo.stages.policies import POLICY_STAGE
from unmdpo.stages.shared.files import ADAPTER

USAGE = """
## Usage

```python
from transformers import AutoModelForCausalLM, AutoTokenizer

model = AutoModelForCausalLM.from_pretrained("{place}")
tokenizer = AutoTokenizer.from_pretrained("{place}")
chat = [{{"role": "user", "content": "…"}}]
tokens = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_tensors="pt", return_dict=True)
print(tokenizer.decode(model.generate(**tokens, max_new_tokens=512)[0], skip_special_tokens=True))
```
"""


def export_policy(run: Run, policy: str, folder: Path, *, adapter: bool = False, licence: str | None = None) -> Path:
    """Copies a policy to a new folder, checked file by file, with its card."""
    check_outside_stores(folder)
    check_new(folder)
    source = _files(run, policy, adapter)
    card = (source / CARD).read_text("utf-8")
    for name, expected in read_small_json(source / CHECKSUMS).items():
        if not (source / name).is_file() or sha256(source / name) != expected:
            raise UserError(f"{source / name} is damaged: unmdpo run … --force '{POLICY_STAGE.stage_name(policy)}'")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with replacing(folder) as aside:
            shutil.copytree(source, aside, dirs_exist_ok=True)
            (aside / CARD).write_text(_card(card, run, policy, folder.name, licence), "utf-8")
    except OSError as error:
        raise UserError(disk_problem(error)) from error
    return folder


def _files(run: Run, policy: str, adapter: bool) -> Path:
    folder = run.policy(policy)
    if not adapter or is_adapter(folder):
        return folder
    artifact = run.artifact(POLICY_STAGE.stage_name(policy))
    if not (artifact.path / ADAPTER.name).is_dir():
        raise UserError(f"'{policy}' was trained without an adapter: leave --adapter out")
    return artifact.path / ADAPTER.name


def _card(card: str, run: Run, policy: str, place: str, licence: str | None) -> str:
    """The card of the training, with how to use it, and what the judges said."""
    _, header, body = card.split("---\n", 2)
    header += f"license: {licence}\n" if licence else ""
    start, recipe, rest = body.partition("\n## Recipe")
    evaluation = "\n".join(_evaluation(run, policy))
    return f"---\n{header}---\n{start}{evaluation}\n{USAGE.format(place=place)}{recipe}{rest}"


def _evaluation(run: Run, policy: str) -> Iterator[str]:
    """A table of the policy's win rates, if the run was evaluated; of all seeds, if it has several."""
    if not run.summarized:
        return
    assert run.recipe.evaluation is not None
    name, marks, judges = policy.partition("@")[0], run.judge_marks, run.recipe.evaluation.all_judges
    yield from ("", "## Evaluation", "", *([run.answer, ""] if run.answer else []))
    yield "| panel | judge | against | win rate, % | 95 % interval | at equal length | length ratio |"
    yield "|---|---|---|---:|---:|---:|---:|"
    for panel, report in run.summary.items():
        for judge, tables in report["judges"].items():
            who = judge or str(getattr(judges[judge], kind_of(judges[judge]).key))
            for opponent, outcomes in tables["against"].items():
                if name in outcomes:
                    yield _row(panel, judged_by(who, marks[judge]), opponent, outcomes[name])


def _row(panel: str, judge: str, opponent: str, outcome: dict[str, Any]) -> str:
    rate, length = outcome["win_rate"], outcome["length_ratio"]["value"]
    adjusted = outcome["length_adjusted"]
    equal = "" if adjusted is None else f"{adjusted['value']:.1f}"
    interval = f"{rate['low']:.1f} to {rate['high']:.1f}"
    return f"| {panel} | {judge} | {opponent} | {rate['value']:.1f} | {interval} | {equal} | {length:.2f} |"
