"""A policy for the world outside the store: its files, and a card that says what it is and how it was judged."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from huggingface_hub import EvalResult, ModelCardData

from unmdpo.core.errors import UserError, disk_problem
from unmdpo.core.files import check_new, check_outside_stores, expand_home, read_small_json, replacing, sha256
from unmdpo.engine.adapters import is_adapter, merge_weights, read_masters, without_adapter
from unmdpo.engine.folder import CARD, CHECKSUMS, gathered, write_checksums
from unmdpo.engine.inference.judges import kind_of
from unmdpo.results.policy import Policy
from unmdpo.results.run import Run
from unmdpo.results.tables import judged_by
from unmdpo.results.tasks import losses
from unmdpo.stages.generation import open_policy
from unmdpo.stages.policy import POLICY_STAGE
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


def export_policy(
    run: Run, policy: str, folder: Path, *, adapter: bool = False, merge: bool = False, licence: str | None = None
) -> Path:
    """Copies a policy to a new folder, checked file by file, with its card; or, of an adapter, the merged model."""
    check_outside_stores(folder)
    check_new(folder)
    source = _files(run, policy, adapter)
    if merge and not is_adapter(run.policy(policy)):
        raise UserError(f"'{policy}' is a whole model already: leave --merge out")
    card = (source / CARD).read_text("utf-8")
    for name, expected in read_small_json(source / CHECKSUMS).items():
        if not (source / name).is_file() or sha256(source / name) != expected:
            raise UserError(f"{source / name} is damaged: unmdpo run … --force '{POLICY_STAGE.stage_name(policy)}'")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with replacing(folder) as aside:
            if merge:
                _write_merged(run.policy(policy), aside)
                card = card.replace("library_name: peft", "library_name: transformers").partition("\n## SHA-256")[0]
            else:
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


def _write_merged(policy: Policy, aside: Path) -> None:
    """The model with its adapter added, as training writes it with `adapter.merge`."""
    assert policy.source is not None
    model = open_policy(policy.source, policy, four_bit=policy.four_bit)
    weights, _ = merge_weights(model, read_masters(policy))
    shutil.copytree(policy, aside, dirs_exist_ok=True, ignore=shutil.ignore_patterns("adapter_*", CHECKSUMS))
    without_adapter(model).save_pretrained(aside, state_dict=gathered(weights, model))
    write_checksums(aside)


def _card(card: str, run: Run, policy: str, place: str, licence: str | None) -> str:
    """The card of the training, with how to use it, what the judges said, and what nobody looked at."""
    _, header, body = card.split("---\n", 2)
    start, recipe, rest = body.partition("\n## Recipe")
    evaluation = "\n".join([*_evaluation(run, policy), *_limits(run)])
    head = _header(yaml.safe_load(header), run, policy, place, licence)
    return f"---\n{head}\n---\n{start}{evaluation}\n{USAGE.format(place=place)}{recipe}{rest}"


def _header(known: dict[str, Any], run: Run, policy: str, place: str, licence: str | None) -> str:
    """Metadata as the Hub reads it, with the win rates as results (`model-index`). A folder of this machine is no
    base model there."""
    if expand_home(known["base_model"]).exists():
        del known["base_model"]
    results = [
        EvalResult("text-generation", found.panel, found.panel, name, value, metric_name=f"{label}, by {found.judge}")
        for found in _found(run, policy)
        for name, label, value in (
            ("win_rate", f"win rate against {found.opponent}, %", found.outcome["win_rate"]["value"]),
            ("win_rate_at_equal_length", f"at equal length against {found.opponent}, %", found.at_equal_length),
        )
        if value is not None
    ]
    evaluated: dict[str, Any] = {"model_name": place, "eval_results": results} if results else {}
    return str(ModelCardData(**known, **evaluated, license=licence).to_yaml())


class _Found(NamedTuple):
    """How a policy did on one panel, by one judge, against one opponent; of all seeds, if it has several."""

    panel: str
    judge: str
    mark: str
    opponent: str
    outcome: dict[str, Any]

    @property
    def at_equal_length(self) -> float | None:
        adjusted = self.outcome["length_adjusted"]
        return None if adjusted is None else float(adjusted["value"])


def _found(run: Run, policy: str) -> Iterator[_Found]:
    if not run.summarized:
        return
    assert run.recipe.evaluation is not None
    name, marks, judges = policy.partition("@")[0], run.judge_marks, run.recipe.evaluation.all_judges
    for panel, report in run.summary.items():
        for judge, tables in report["judges"].items():
            who = judge or str(getattr(judges[judge], kind_of(judges[judge]).key))
            for opponent, outcomes in tables["against"].items():
                if name in outcomes:
                    yield _Found(panel, who, marks[judge], opponent, outcomes[name])


def _evaluation(run: Run, policy: str) -> Iterator[str]:
    """The run's own answer, and a table of the policy's win rates."""
    if not run.summarized:
        return
    yield from ("", "## Evaluation", "", *([run.answer, ""] if run.answer else []))
    yield "| panel | judge | against | win rate, % | 95 % interval | at equal length | length ratio |"
    yield "|---|---|---|---:|---:|---:|---:|"
    yield from (_row(found) for found in _found(run, policy))


def _limits(run: Run) -> Iterator[str]:
    yield from ("", "## Limits", "")
    yield from (f"- {line}" for line in (*run.world_differences, *run.judge_lines, *losses(run)))
    if run.summarized:
        panels = ", ".join(f"{report['prompts']} of {panel}" for panel, report in run.summary.items())
        yield f"- Judged by answers to these prompts alone: {panels}. Other prompts may give other results."
    else:
        yield "- Nobody has compared its answers with those of the model that it was trained from."
    yield "- Safety, and what the model knew before, were not tested beyond what stands here."


def _row(found: _Found) -> str:
    rate, length = found.outcome["win_rate"], found.outcome["length_ratio"]["value"]
    equal = "" if found.at_equal_length is None else f"{found.at_equal_length:.1f}"
    shown = f"{rate['value']:.1f} | {rate['low']:.1f} to {rate['high']:.1f} | {equal} | {length:.2f}"
    return f"| {found.panel} | {judged_by(found.judge, found.mark)} | {found.opponent} | {shown} |"
