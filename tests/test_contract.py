"""Adding a component takes one file and one row: five throwaway components, registered here, run in a small recipe.

Nothing outside their rows knows their names. If this fails, some code keeps a list of names elsewhere.
"""

import json
import re
from pathlib import Path
from typing import ClassVar, Self

import pytest
import torch
from pydantic import Field
from typer.testing import CliRunner

from tests.worlds.pipeline import recipe, world
from unmdpo.cli import app
from unmdpo.core.files import read_lines, write_lines
from unmdpo.core.settings import Nonnegative
from unmdpo.data import Comparison, Message
from unmdpo.data.sources import SOURCES
from unmdpo.data.sources.base import Source, one_by_one, shape
from unmdpo.engine.inference.judges import JUDGES, JudgeKind, JudgeSettings
from unmdpo.execute import execute
from unmdpo.execute.plan import plan
from unmdpo.objectives.table import OBJECTIVES, DPOSettings, Objective
from unmdpo.recipe import Recipe, schema
from unmdpo.results.run import open_run
from unmdpo.results.verify import verify
from unmdpo.scale import FrozenScale
from unmdpo.scale.settings import EstimatorSettings, MarginSettings
from unmdpo.scale.table import ESTIMATORS, Estimator
from unmdpo.stages import opening
from unmdpo.stages.graph import WANTED, comparisons
from unmdpo.stages.shared.base import Kind
from unmdpo.stages.shared.files import COMPARISONS
from unmdpo.stages.table import STAGES
from unmdpo.store.artifact import ArtifactFile
from unmdpo.store.store import Store

# --- An objective ---------------------------------------------------------------------------------


class HingeSettings(DPOSettings):
    target: float = 1.0


def hinge(pairs, *, beta, target):
    return torch.relu(target * pairs.prompt_scale - beta * pairs.log_ratio)


HINGE = Objective("hinge", "a hinge", hinge, HingeSettings, placement="wr")

# --- An estimator ---------------------------------------------------------------------------------


class HalfSettings(EstimatorSettings):
    value: float = 0.5


class HalfScale(FrozenScale):
    name = "half"

    def fit(self, units, rows):
        self.q_, self.diagnostics_ = self.predict(units), {"mean": self.settings.value}
        return self

    def predict(self, units):
        return torch.full((len(units),), self.settings.value)

    def tensors(self):
        return {"q": self.q_}

    def restore(self, tensors):
        self.q_ = tensors["q"]
        return self


HALF = Estimator("half", "q ≡ 1/2", HalfScale, HalfSettings, features=False, pilots=False)

# --- A source -------------------------------------------------------------------------------------


def duel(row):
    prompt = (Message("user", row.text("question")),)
    return Comparison(prompt, row.text("winner"), row.text("loser"), row.integer("points", 1, 3), row.origin)


DUELS = Source((shape("question", "winner", "loser", "points"),), one_by_one(duel), "`points`, 1–3")


# --- A judge --------------------------------------------------------------------------------------


class WordSettings(JudgeSettings):
    word: str


def open_counter(settings):
    return lambda prompts, responses: [float(text.split().count(settings.word)) for text in responses]


COUNTER = JudgeKind("word", "counts a word", WordSettings, key="word", open=open_counter)

# --- A stage --------------------------------------------------------------------------------------


LENGTHS = ArtifactFile("lengths.jsonl", write_lines, read_lines)


def count_words(job, *, least: int):
    rows = job.load(COMPARISONS, "comparisons")
    counts = [len(row.chosen.split()) for row in rows]
    job.save(LENGTHS, [{"words": count} for count in counts if count >= least])
    return {"longest": max(counts)}


WORDS_STAGE = Kind("words", count_words)


def words(graph):
    graph.stage(WORDS_STAGE, "words", {"comparisons": comparisons(graph)}, least=2)


@pytest.fixture
def registered(monkeypatch):
    monkeypatch.setitem(OBJECTIVES, HINGE.name, HINGE)
    monkeypatch.setitem(ESTIMATORS, HALF.name, HALF)
    monkeypatch.setitem(SOURCES, "duels", DUELS)
    monkeypatch.setitem(JUDGES, COUNTER.name, COUNTER)
    monkeypatch.setitem(STAGES, WORDS_STAGE.name, WORDS_STAGE)
    monkeypatch.setattr(opening, "WANTED", [*WANTED, words])


@pytest.fixture
def described(tmp_path):
    world(tmp_path)
    rows = [
        {"question": f"w{i} w{i % 5}", "winner": f"w1 w{i % 9}", "loser": "w2", "points": 1 + i % 3} for i in range(40)
    ]
    (tmp_path / "duels.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return recipe(tmp_path).model_dump() | {
        "data": {
            "source": "duels", "path": str(tmp_path / "duels.jsonl"), "max_length": 64,
            "validation": {"fraction": 0.25},
        },
        "scales": {"half": {"estimator": "half", "settings": {"value": 0.25}}},
        "policies": {
            "dpo": {"objective": "dpo"},
            "hinge": {"objective": "hinge", "scale": "half", "settings": {"target": 2.0}},
        },
        "evaluation": {
            "baseline": "dpo", "panels": {"one": {"size": 3, "seed": 1}}, "judge": {"word": "w3"},
            "max_new_tokens": 4,
        },
    }  # fmt: skip


def test_a_recipe_with_five_new_things_runs_plans_and_verifies(registered, described, tmp_path):
    read_back = Recipe.model_validate_json(Recipe.model_validate(described).model_dump_json())
    run = open_run(read_back, Store(tmp_path / "store"))
    costs = {stage.name: stage.cost for stage in plan(run).stages}
    assert costs["words"] is None
    assert costs["policy[hinge]"].flops > 0
    execute(run)
    assert [finding for finding in verify(run) if finding.problem] == []
    assert run.artifact("words").manifest["notes"]["longest"] == 2
    assert len(LENGTHS.load(run.artifact("words"))) == len(COMPARISONS.load(run.artifact("comparisons")))
    assert set(run.scale("half").known()["q"].to_pylist()) == {0.25}
    assert run.artifact("policy[hinge]").manifest["notes"]["settings"] == {"target": 2.0, "beta": 0.05}
    assert "oof" not in run.stages  # the estimator's row says it needs no pilots
    assert [row["policy"] for row in run.table()] == ["hinge"]


def test_the_commands_know_them(registered, described, tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text(Recipe.model_validate(described).to_yaml())
    planned = CliRunner().invoke(app, ["plan", str(path), "--store", str(tmp_path / "store")])
    assert planned.exit_code == 0, planned.output
    assert "policy[hinge]" in planned.output
    audited = CliRunner().invoke(app, ["audit", "support", str(tmp_path / "duels.jsonl")])
    assert audited.exit_code == 0, audited.output  # recognized by its columns
    choices = json.loads(schema())["$defs"]
    assert "hinge" in choices["PolicyRecipe"]["properties"]["objective"]["enum"]
    assert "half" in choices["ScaleRecipe"]["properties"]["estimator"]["enum"]
    assert "duels" in choices["DataRecipe"]["properties"]["source"]["anyOf"][0]["enum"]
    judges = choices["EvaluationRecipe"]["properties"]["judge"]["anyOf"]
    assert any("word" in kind["properties"] for kind in judges)


def test_mistakes_in_their_settings_are_named(registered, described):
    described["scales"]["half"]["settings"] = {"valu": 1.0}
    with pytest.raises(ValueError, match="'half' has no setting 'valu'; did you mean 'value'"):
        Recipe.model_validate(described)
    described["scales"]["half"]["settings"] = {}
    described["evaluation"]["judge"] = {"word": 3}
    with pytest.raises(ValueError, match="should be a valid string"):
        Recipe.model_validate(described)


def test_the_guides_estimator_runs_and_is_checked(folder, tmp_path, monkeypatch):
    """The example in CONTRIBUTING, which is fitted to pilots, as it is printed there."""
    guide = (Path(__file__).parents[1] / "CONTRIBUTING.md").read_text("utf-8")
    (block,) = [text for text in re.findall(r"```python\n(.*?)```", guide, re.S) if "class DomainScale" in text]
    names = {
        "torch": torch, "Tensor": torch.Tensor, "ClassVar": ClassVar, "Self": Self, "Field": Field,
        "Nonnegative": Nonnegative, "MarginSettings": MarginSettings, "Estimator": Estimator,
        "_code": lambda place: None,
    }  # fmt: skip
    exec(block, names)
    scale, settings = names["DomainScale"], names["DomainSettings"]
    monkeypatch.setitem(ESTIMATORS, "domain", Estimator("domain", "q by domain", scale, settings, features=False))
    policies = {"unm-wr": {"objective": "unm-wr", "scale": "by-domain"}}
    small = recipe(folder, scales={"by-domain": {"estimator": "domain"}}, policies=policies, evaluation=None)
    run = execute(open_run(small, Store(tmp_path)))
    assert len(set(run.scale("by-domain").known()["q"].to_pylist())) == 2  # the data has two domains
    assert run.check("by-domain") is not None
