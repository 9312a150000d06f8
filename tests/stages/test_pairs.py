"""Strengths from a judge, and pairs of a policy's own answers, as parts of a run."""

import json
import math
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

import unmdpo
from tests.worlds.pipeline import problems, recipe, world
from unmdpo.cli import app
from unmdpo.core.errors import UserError
from unmdpo.data import StrengthRule, load_comparisons, rows_of
from unmdpo.engine.inference.judges import EndpointSettings, FunctionSettings
from unmdpo.engine.inference.pairwise import PairwiseJudge
from unmdpo.recipe import parse_recipe
from unmdpo.results.run import open_run
from unmdpo.stages import graded as graded_stage
from unmdpo.stages.shared import scoring
from unmdpo.stages.shared.files import COMPARISONS, GENERATIONS, PANEL
from unmdpo.store.journal import Journal
from unmdpo.store.store import Store

pytestmark = pytest.mark.filterwarnings(
    "ignore:the margins take too few distinct values", "ignore:.*no strengths, margins or scores were found"
)
LONGEST = {"function": "tests.worlds.judges:longest"}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return world(tmp_path_factory.mktemp("rounds"))


def pairs(place, name="pairs.jsonl", count=48):
    """Labels without strengths; the longer response is chosen in three of four."""
    rows = []
    for number in range(count):
        long, short = "w1 " * (2 + number % 5), "w2"
        better = (long, short) if number % 4 else (short, long)
        rows.append({"prompt": f"w{number % 24} w9", "chosen": better[0].strip(), "rejected": better[1].strip()})
    (place / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(place / name)


def graded(place, **strength):
    described = recipe(place, evaluation=None).model_dump(mode="json")
    described["training"]["batch"] = 4
    described["data"] = {
        "path": pairs(place), "max_length": 64, "validation": {"fraction": 0.25},
        "strength": {"judge": LONGEST, **strength},
    }  # fmt: skip
    return described


def test_a_judge_gives_strengths_to_data_that_has_none(place):
    run = unmdpo.run(graded(place), store=place / "graded")
    read, judged = (COMPARISONS.load(run.artifact(name)) for name in ("read", "comparisons"))
    agreed = [row for row in read if len(row.chosen) > len(row.rejected)]
    margins = [len(row.chosen.split()) - len(row.rejected.split()) for row in agreed]
    assert [row.strength for row in judged] == StrengthRule().cut(margins)
    assert [row.chosen for row in judged] == [row.chosen for row in agreed]
    assert run.artifact("comparisons").manifest["notes"]["disagreed"] == len(read) - len(agreed) > 0
    assert not problems(run)
    assert command("plan", run.folder).exit_code == 0
    real = unmdpo.run(graded(place, continuous=True), store=place / "graded", until="comparisons")
    assert [row.strength for row in COMPARISONS.load(real.artifact("comparisons"))] == margins


def test_validation_comparisons_are_cut_where_the_training_data_was(place):
    described = graded(place)
    described["training"]["validate_updates"] = 1
    described |= {"scales": {}, "policies": {"dpo": {"objective": "dpo"}}}
    run = unmdpo.run(described, store=place / "watched")
    trained, watched = (run.artifact(name).manifest["notes"] for name in ("comparisons", "comparisons[validation]"))
    assert watched["quantiles"] == trained["quantiles"]


def pairs_of(policy, **more):
    given = {"policy": policy, "judge": LONGEST, "max_new_tokens": 6, "sampling": {"samples": 3, "temperature": 1.5}}
    return given | more


def test_a_policy_s_answers_become_pairs(place):
    described = recipe(place).model_dump(mode="json")
    described["scales"], described["evaluation"]["panels"] = {}, {"one": {"size": 3, "seed": 1}}
    described["training"]["batch"] = 4
    described |= {"policies": {"dpo": {"objective": "dpo"}}, "pairs": pairs_of("dpo", size=12)}
    run = unmdpo.run(described, store=place / "rounds")
    prompts, answers = PANEL.load(run.artifact("prompts")), GENERATIONS.load(run.artifact("samples"))
    assert len(prompts) == 12
    assert not {*prompts.hashes} & {*run.panel("one").hashes}
    assert len(answers) == 36
    assert [row["prompt_hash"] for row in answers] == [name for name in prompts.hashes for _ in range(3)]
    paired = COMPARISONS.load(run.artifact("pairs"))
    for row in paired:
        of_prompt = [one["text"] for one in answers if one["prompt_hash"] == row.prompt_hash and one["text"]]
        words = [len(text.split()) for text in (row.chosen, row.rejected)]
        assert words[0] == max(len(text.split()) for text in of_prompt) > words[1]
        assert words[1] == min(len(text.split()) for text in of_prompt)
        assert row.strength == words[0] - words[1]
    described["pairs"] |= {"select": "all"}
    everything = COMPARISONS.load(unmdpo.run(described, store=place / "rounds").artifact("pairs"))
    assert len(everything) > len(paired) / 2
    assert not problems(run)


@pytest.mark.parametrize(
    ("pairs", "why"),
    [
        (pairs_of("third"), "'third' is not a policy"),
        (pairs_of("dpo", judge={}), "give exactly one of"),
        (pairs_of("dpo", sampling={"samples": 1}), "draw at least two samples"),
    ],
)
def test_pairs_that_cannot_be(place, pairs, why):
    with pytest.raises(UserError, match=why):
        unmdpo.run(recipe(place).model_dump(mode="json") | {"pairs": pairs}, store=place / "refused")


def test_a_policy_after_another_is_another_recipe(place):
    described = recipe(place).model_dump(mode="json")
    described["policies"]["second"] = {"objective": "dpo", "after": {"policy": "dpo"}}
    with pytest.raises(UserError, match=r"policies\.second\.after: .*`unmdpo pairs` writes its data"):
        unmdpo.run(described, store=place / "refused")


def test_a_judge_is_not_mistaken_for_another_of_the_same_name(place):
    described = graded(place)
    described["data"]["strength"]["judge"] = {"train": {"path": pairs(place), "epochs": 3, "batch": 4}}
    described["evaluation"] = recipe(place).model_dump(mode="json")["evaluation"] | {
        "judge": None, "judges": {"strength": {"train": {"path": pairs(place), "epochs": 1, "batch": 4}}},
    }  # fmt: skip
    run = open_run(parse_recipe(described), Store(place / "names"))
    assert run.stages["judge[data.strength]"].settings.training.epochs == 3
    assert run.stages["judge[strength]"].settings.training.epochs == 1


def test_labels_beside_a_judge(place):
    rows = [{"prompt": f"w{n}", "response_a": "w1 w2", "response_b": "w3", "label": "links"} for n in range(20)]
    (place / "sides.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    described = graded(place, labels={"links": "a", "rechts": "b"})
    described["data"]["path"] = str(place / "sides.jsonl")
    run = unmdpo.run(described, store=place / "graded", until="comparisons")
    assert {row.chosen for row in COMPARISONS.load(run.artifact("comparisons"))} == {"w1 w2"}


def command(*arguments):
    return CliRunner().invoke(app, [*map(str, arguments)])


def test_a_file_is_scored_and_read_again(place, tmp_path):
    data, out = pairs(place), tmp_path / "scored.jsonl"
    done = command("judge", "score", data, LONGEST["function"], out)
    assert done.exit_code == 0, done.output
    assert "36 comparisons; the judge agrees with 75.0 % of 48 labels" in done.output
    read = load_comparisons(str(out), **{"strength": StrengthRule(continuous=True)})
    assert [row.strength for row in read] == [len(row.chosen.split()) - 1 for row in read]
    assert "exists: choose another name" in command("judge", "score", data, LONGEST["function"], out).output
    swapped = command("judge", "score", data, LONGEST["function"], out, "--swap", "--force")
    assert "48 comparisons; the judge agrees with 75.0 % of 48 labels" in swapped.output
    assert all(row.rejected == "w2" for row in load_comparisons(str(out)))
    assert [path.name for path in tmp_path.iterdir()] == ["scored.jsonl"]


def test_scoring_goes_on_where_it_stopped(place, tmp_path, monkeypatch):
    monkeypatch.setattr(scoring, "CHUNK", 10)
    asked = []

    def judge(prompts, responses):
        asked.append(len(responses))
        if len(asked) == 3:
            raise KeyboardInterrupt
        return [float(len(text)) for text in responses]

    monkeypatch.setattr(graded_stage, "kind_of", lambda _: SimpleNamespace(open=lambda _: judge, files=None))
    given = rows_of(pairs(place)), FunctionSettings(function="a:b"), tmp_path / "out.jsonl"
    how = {"swap": False, "seed": 1, "report": lambda text: None}
    with pytest.raises(KeyboardInterrupt):
        graded_stage.score_file(*given, **how)
    assert not given[-1].exists()
    first = sum(asked[:2])
    asked[:] = [0, 0, 0]
    graded_stage.score_file(*given, **how)
    everything = {(row.prompt, text) for row in load_comparisons(given[0].path) for text in row.pair}
    assert first + sum(asked) == len(everything)


@pytest.mark.parametrize(
    ("judge", "why"),
    [
        ("none/such", "none/such"),
        ("tests.worlds.judges:nothing", "nothing"),
        ("missing.yaml", "cannot be read as a judge's settings"),
    ],
)
def test_a_judge_that_cannot_be_found(place, tmp_path, judge, why):
    done = command("judge", "score", pairs(place), judge, tmp_path / "out.jsonl")
    assert (done.exit_code, why in done.output) == (2, True), done.output


def test_the_next_rounds_data_by_command(place, tmp_path):
    described = recipe(place, scales={}, policies={"dpo": {"objective": "dpo"}}).to_yaml()
    (tmp_path / "r.yaml").write_text(described)
    (tmp_path / "prompts.jsonl").write_text("".join(json.dumps({"prompt": f"w{n} w50"}) + "\n" for n in range(8)))
    out, given = tmp_path / "next.jsonl", ["--judge", LONGEST["function"], "--prompts", tmp_path / "prompts.jsonl"]
    how = ["--samples", 3, "--max-new-tokens", 5, "--which", "all", "--store", tmp_path / "store", "--jobs", 1]
    done = command("pairs", tmp_path / "r.yaml", "dpo", out, *given, *how)
    assert done.exit_code == 0, done.output
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert f"next.jsonl: {len(rows)} comparisons of " in done.output
    again = command("pairs", tmp_path / "r.yaml", "dpo", out, *given, *how)
    assert (again.exit_code, "exists" in again.output) == (2, True)
    for row in rows:
        lengths = [len(row[name][0]["content"].split()) for name in ("chosen", "rejected")]
        assert row["margin"] == lengths[0] - lengths[1] > 0
    assert len(load_comparisons(str(out))) == len(rows)
    unknown = command("pairs", tmp_path / "r.yaml", "ppo", out, *given, *how, "--force")
    assert (unknown.exit_code, "'ppo' is not a policy" in unknown.output) == (2, True)


def test_of_a_policy_with_several_seeds_the_first_answers(place):
    described = recipe(place).model_dump(mode="json")
    described |= {"scales": {}, "policies": {"dpo": {"objective": "dpo", "seeds": [1, 2]}}, "pairs": pairs_of("dpo")}
    run = open_run(parse_recipe(described), Store(place / "planned"), planning=True)
    assert run.stages["samples"].inputs["policy"].name == "policy[dpo@1]"


def test_a_judge_of_pairs_gives_log_odds_and_goes_on_where_it_stopped(tmp_path, monkeypatch):
    judge = PairwiseJudge(EndpointSettings(endpoint="http://x/v1", model="m"))
    asked = []

    def answers(questions, seed):
        for place, one in enumerate(questions):
            if len(asked) == 2:
                raise KeyboardInterrupt
            asked.append(one.candidate)
            yield place, {"a": 0.75, "b": 1.0, "c": 0.2}[one.candidate]

    monkeypatch.setattr(judge, "answers", answers)
    questions = [scoring.Question((), "", text, "d") for text in "abc"] + [scoring.Question((), "", "d", "d")]
    given = judge, questions
    with pytest.raises(KeyboardInterrupt):
        scoring.margins(*given, Journal(tmp_path / "j"), 1, lambda text: None)
    asked[:] = ["before"]
    found = scoring.margins(*given, Journal(tmp_path / "j"), 1, lambda text: None)
    assert asked == ["before", "c"]
    assert found == pytest.approx([math.log(3), math.log(99), math.log(0.25), 0.0])
