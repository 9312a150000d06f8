"""Policies and pilots with several seeds, and answers with several judges, from the recipe to the report."""

import json

import pytest

from tests.worlds.pipeline import events, judged_by, problems, recipe
from unmdpo.core.errors import UserError
from unmdpo.execute import execute
from unmdpo.report import write_report
from unmdpo.results.run import open_run
from unmdpo.results.tables import best_settings, remarks
from unmdpo.stages.shared.files import EVIDENCE, Evidence
from unmdpo.store.store import Store

BY_HAND = {"dpo": {"objective": "dpo"}, "dpo-17": {"objective": "dpo", "training": {"seed": 17}}}
LIKING = (("a", 62.0), ("b", 70.0))


def evaluation(**more):
    functions = {"long": "tests.worlds.judges:longest", "short": "tests.worlds.judges:shortest"}
    judges = {name: {"function": function} for name, function in functions.items()}
    panels = {"one": {"size": 5, "seed": 1}}
    return {"baseline": "dpo", "panels": panels, "judges": judges, "max_new_tokens": 6, "initial": True} | more


def seeded_recipe(folder):
    policies = {
        "dpo": {"objective": "dpo", "seeds": [42, 17]},
        "fixed": {"objective": "fixed-margin", "seeds": [17, 42]},
        "simpo": {"objective": "simpo"},
    }
    return recipe(folder, policies=policies, scales={}, evaluation=evaluation())


@pytest.fixture(scope="module")
def finished(folder):
    return execute(open_run(seeded_recipe(folder), Store(folder / "store-of-seeds")))


def test_every_seed_is_trained_judged_and_reported(finished):
    assert {"policy[dpo@42]", "policy[dpo@17]", "policy[simpo]", "judgement[fixed@17,one,short]"} <= {*finished.stages}
    outcome = finished.summary["one"]["judges"]["short"]["against"]["dpo"]["fixed"]
    assert [*outcome["seeds"]] == ["17", "42"]
    mean = sum(one["win_rate"]["value"] for one in outcome["seeds"].values()) / 2
    assert outcome["win_rate"]["value"] == pytest.approx(mean)
    assert finished.summary["one"]["judges"]["long"]["against"]["dpo"]["simpo"]["seeds"] == {}  # the baseline's own
    assert problems(finished) == []


def test_what_was_trained_by_hand_is_found_again(folder, tmp_path):
    store = Store(tmp_path / "store")
    by_hand = recipe(folder, policies=BY_HAND, scales={}, evaluation=judged_by("longest"))
    execute(open_run(by_hand, store))
    seeds = {"dpo": {"objective": "dpo", "seeds": [42, 17]}}
    told = events(open_run(recipe(folder, policies=seeds, scales={}, evaluation=judged_by("longest")), store))
    assert ("policy[dpo@17]", "cached") in told
    assert ("judgement[dpo@42,one]", "cached") in told
    assert [name for name, event in told if event == "finished"] == ["summary"]


def test_lengths_of_the_data_are_of_chosen_and_rejected(finished):
    rows = [row for row in finished.comparisons() if len(row.chosen) != len(row.rejected)]
    longer = 100 * sum(len(row.chosen) > len(row.rejected) for row in rows) / len(rows)
    assert finished.summary["one"]["longer_chosen"]["value"] == pytest.approx(longer)


def test_one_judge_with_a_name_keeps_it(folder, tmp_path):
    only = {"only": {"function": "tests.worlds.judges:longest"}}
    made = recipe(folder, policies=BY_HAND, scales={}, evaluation=evaluation(judges=only))
    run = execute(open_run(made, Store(tmp_path / "store")))
    assert problems(run) == []
    assert {row["judge"] for row in run.table()} == {"only"}


def test_a_training_must_be_named(finished):
    with pytest.raises(UserError, match="several seeds; name one: dpo@42, dpo@17"):
        finished.policy("dpo")
    with pytest.raises(UserError, match="name one"):
        finished.generations("dpo", "one")
    assert finished.policy("dpo@17").is_dir()


def test_a_judge_of_pairs_needs_one_baseline_for_what_has_no_seed(folder):
    judge = {"endpoint": "http://localhost:1/v1", "model": "m"}
    policies = {"dpo": {"objective": "dpo", "seeds": [1, 2]}}
    with pytest.raises(ValueError, match="a judge of pairs sees 'initial'"):
        recipe(folder, policies=policies, scales={}, evaluation=evaluation(judges={"pairs": judge}))


def test_the_table_has_a_row_for_the_mean_and_for_each_seed(finished):
    rows = [row for row in finished.table() if row["policy"] == "fixed" and row["against"] == "dpo"]
    assert [(row["judge"], row["seed"]) for row in rows] == [
        ("long", None), ("long", "17"), ("long", "42"), ("short", None), ("short", "17"), ("short", "42"),
    ]  # fmt: skip
    assert all(0 < row["p_win_rate"] <= 1 for row in rows)
    assert rows[0]["holm_win_rate"] >= rows[0]["p_win_rate"]


def test_any_two_are_compared_by_seed_or_one_by_one(finished):
    together = finished.compare_all("fixed", "dpo", "one")[1]
    alone = finished.compare("fixed@17", "dpo@17", "one")
    assert together["seeds"]["17"] == alone.to_dict()
    with pytest.raises(UserError, match="'dpo@3' is not a policy; did you mean"):
        finished.compare("dpo@3", "dpo", "one")


def test_judges_that_disagree_are_reported(finished):
    (pair,) = finished.summary["one"]["agreement"]
    assert pair["judges"] == ["long", "short"]
    assert pair["rank_correlation"] < 0
    assert (
        "judges long and short say the same about" in [*remarks(finished.summary["one"], finished.recipe.methods)][-1]
    )


def test_a_judge_that_likes_length_more_than_the_data_is_reported():
    of_data = {"value": 60.0, "low": 55.0, "high": 65.0}
    tables = {
        name: {"longer_preferred": {"value": low + 5, "low": low, "high": low + 10}, "against": {"dpo": {}}}
        for name, low in LIKING
    }
    said = [*remarks({"judges": tables, "baseline": "dpo", "agreement": [], "longer_chosen": of_data}, {})]
    assert len(said) == 1
    assert said[0].startswith("judge b prefers the longer of two answers in 75 [70, 80] % of pairs")


def test_the_report_shows_judges_and_seeds(finished, tmp_path):
    page = write_report(finished, tmp_path / "report.html").read_text("utf-8")
    for text in (
        "one, by short",
        "each seed",
        "<td>17</td>",
        "dpo@17",
        "not measured here",
        "say the same",
        "p, Holm",
    ):
        assert text in page, text


def test_pilots_with_several_seeds_are_averaged(folder, tmp_path):
    both = recipe(folder, pilots={"folds": 2, "updates": 2, "seeds": [42, 17]}, evaluation=None)
    run = execute(open_run(both, Store(tmp_path / "store")), until="scale[seq]")
    assert {"pilot[0@42]", "pilot[1@17]", "oof[42]", "oof[17]"} <= {*run.stages}
    seeds = run.evidence("seq")
    assert not seeds[0].evidence.equal(seeds[1].evidence)
    assert Evidence.mean(seeds).evidence.allclose((seeds[0].evidence + seeds[1].evidence) / 2)
    alone = recipe(folder, pilots={"folds": 2, "updates": 2, "seed": 17}, evaluation=None)
    again = execute(open_run(alone, Store(tmp_path / "store")), until="oof")
    assert EVIDENCE.load(again.artifact("oof")).evidence.equal(seeds[1].evidence)


@pytest.mark.parametrize(
    ("policies", "message"),
    [
        ({"dpo": {"objective": "dpo", "seeds": [1, 1]}}, "each seed counts once"),
        ({"dpo": {"objective": "dpo", "seeds": [1], "training": {"seed": 2}}}, "not both"),
        (
            {"dpo": {"objective": "dpo", "seeds": [1, 2]}, "fixed": {"objective": "fixed-margin", "seeds": [2, 3]}},
            "seed 3 has no counterpart",
        ),
        (
            {"dpo": {"objective": "dpo", "seeds": [1, 2]}, "fixed": {"objective": "fixed-margin"}},
            "seed 42 has no counterpart",
        ),
    ],
)
def test_seeds_that_cannot_be_compared_are_refused(folder, policies, message):
    with pytest.raises(ValueError, match=message):
        recipe(folder, policies=policies, scales={}, evaluation=evaluation(initial=False))


def test_one_judge_or_several_by_name(folder):
    with pytest.raises(ValueError, match="give a judge, or several by name"):
        recipe(folder, evaluation=evaluation(judge={"function": "a:b"}))
    with pytest.raises(ValueError, match="give a judge, or several by name"):
        recipe(folder, evaluation=evaluation(judges={}))


def test_seeds_for_every_policy(folder):
    policies = {"dpo": {"objective": "dpo"}, "fixed": {"objective": "fixed-margin", "training": {"seed": 7}}}
    made = recipe(folder, policies=policies, scales={}, evaluation=evaluation(seeds=[7, 8]))
    assert [*made.trained] == ["dpo@7", "dpo@8", "fixed"]
    assert json.loads(made.model_dump_json())["evaluation"]["seeds"] == [7, 8]


def test_the_best_setting_of_each_method_that_has_several():
    gains = {"odpo-1": 0.1, "odpo-2": 0.3, "simpo": 0.9, "wr-1": -0.2, "wr-2": -0.1, "wr-one": 0.0}
    methods = {"odpo-1": "odpo, None", "odpo-2": "odpo, None", "simpo": "simpo, None", "wr-one": "unm-wr, one"}
    methods |= {"wr-1": "unm-wr, seq", "wr-2": "unm-wr, seq"}
    outcomes = {name: {"reward_difference": {"value": gain}} for name, gain in gains.items()}
    assert best_settings(outcomes, methods) == {"odpo, None": "odpo-2", "unm-wr, seq": "wr-2"}
    tables = {"against": {"dpo": outcomes}, "longer_preferred": None}
    report = {"judges": {"": tables}, "baseline": "dpo", "agreement": [], "longer_chosen": None}
    assert [*remarks(report, methods)] == ["the best setting of each method by ΔR: odpo-2, wr-2"]


def test_a_comparison_resamples_as_the_summary_does(done):
    """With the recipe's seed, so that both show the same interval."""
    assert done.recipe.seed != 0
    outcome = done.compare("unm-wr", done.recipe.evaluation.baseline, "one")
    known = done.summary["one"]["judges"][""]["against"][done.recipe.evaluation.baseline]["unm-wr"]
    for name in ("win_rate", "reward_difference"):
        assert outcome.to_dict()[name] == known[name]
