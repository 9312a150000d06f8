"""`unmdpo.train`: rows and models that a program holds become a policy, as a recipe would make it."""

import random
import signal
import warnings

import pandas as pd
import pytest
import torch
from datasets import Dataset, DatasetDict
from transformers import AutoModelForCausalLM, AutoTokenizer

import unmdpo
from tests.worlds.pipeline import write_model
from unmdpo.core.errors import Stopped, UserError
from unmdpo.store.runs import find_run, remove_record, remove_unused, unused
from unmdpo.store.store import Store

SHORT = {"updates": 2, "batch": 4}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return write_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def rows():
    rng = random.Random(0)

    def text():
        return " ".join(f"w{rng.randrange(60)}" for _ in range(rng.randint(2, 7)))

    return [
        {"prompt": f"w{n} {text()}", "chosen": text(), "rejected": text(), "strength": rng.randint(1, 3)}
        for n in range(20)
    ]


def weights(model):
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def test_rows_and_a_folder_become_a_policy_that_answers(tmp_path, model, rows):
    heard = []
    policy = unmdpo.train(model, rows, training=SHORT, store=tmp_path, progress=heard.append)
    AutoModelForCausalLM.from_pretrained(policy)
    assert len(policy.generate(["w1 w2"], max_new_tokens=3)) == 1
    assert {event["stage"] for event in heard if event["event"] == "finished"} >= {"comparisons", "policy[policy]"}

    heard.clear()
    assert unmdpo.train(model, rows, training=SHORT, store=tmp_path, progress=heard.append) == policy
    assert not [event for event in heard if event["event"] == "started"]


def test_ctrl_c_is_one_and_the_same_call_goes_on(tmp_path, model, rows):
    heard = []

    def interrupted(event):
        heard.append(event)
        if "1/4" in event.get("text", "") and len(heard) < 60:
            raise Stopped(signal.SIGINT)

    call = {"training": {"updates": 4, "batch": 4}, "compute": {"checkpoint_minutes": 1e-9}, "store": tmp_path}
    with pytest.raises(KeyboardInterrupt, match="the same call goes on"):
        unmdpo.train(model, rows, progress=interrupted, **call)
    assert (unmdpo.train(model, rows, progress=False, **call).parent / "metrics.jsonl").is_file()


def test_strengths_are_not_overlooked(tmp_path, model, rows):
    """DPO needs none and says nothing; what learns from them refuses data without."""
    renamed = [{"degree" if key == "strength" else key: value for key, value in row.items()} for row in rows]
    assert unmdpo.train(model, renamed, training=SHORT, store=tmp_path, progress=False).is_dir()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(UserError, match="learns from strengths, but all are equal here"):
            unmdpo.train(model, renamed, objective="fixed-margin", store=tmp_path)


def test_what_programs_brought_is_garbage_once_no_run_needs_it(tmp_path, model, rows):
    unmdpo.train(AutoModelForCausalLM.from_pretrained(model), rows, training=SHORT, store=tmp_path, progress=False)
    store = Store(tmp_path)
    assert unused(store) == {}
    (run,) = (tmp_path / "runs").iterdir()
    remove_record(find_run(store, run.name))
    brought = [place for place in unused(store) if place.startswith("given/")]
    assert brought == [f"given/{path.name}" for path in sorted((tmp_path / "given").iterdir())]
    assert len(brought) == 2
    remove_unused(store, [*unused(store)])
    assert unused(store) == {}
    assert not [*(tmp_path / "given").iterdir()]


def test_a_dataset_and_a_loaded_model_with_a_scale(tmp_path, model, rows):
    """Training starts from the weights in memory, not from those of the folder that they were loaded from."""
    loaded = AutoModelForCausalLM.from_pretrained(model)
    with torch.no_grad():
        loaded.get_output_embeddings().weight.mul_(1.5)
    policy = unmdpo.train(
        loaded,
        Dataset.from_list(rows),
        objective="ulnm-wr",
        scale="pooled",
        training=SHORT | {"learning_rate": 1e-9},
        pilots={"updates": 2, "folds": 2},
        store=tmp_path,
        progress=False,
    )
    ours, started = weights(AutoModelForCausalLM.from_pretrained(policy)), weights(loaded)
    assert all(torch.allclose(ours[name], started[name], atol=1e-6) for name in started)


def test_an_objective_that_needs_a_scale_gets_one(tmp_path, model, rows):
    from unmdpo.integrations.training import recipe_of

    recipe = recipe_of(str(model), rows, "unm-wr", None, None, tmp_path, {"tau": 0.5}, {"seed": 7})
    assert (recipe.seed, recipe.scales["q"].estimator, recipe.policies["policy"].scale) == (7, "auto", "q")
    assert recipe.training.epochs == recipe.pilots.epochs == 2
    with pytest.raises(UserError, match="objective 'dpo' does not use a scale"):
        recipe_of(str(model), rows, "dpo", "ridge", None, tmp_path, None, {})
    with pytest.raises(UserError, match="did you mean 'dpo'"):
        recipe_of(str(model), rows, "dpoo", None, None, tmp_path, None, {})


def test_columns_of_any_name(tmp_path, model, rows):
    renamed = [{"question" if key == "prompt" else key: value for key, value in row.items()} for row in rows]
    policy = unmdpo.train(
        model, renamed, training=SHORT, data={"columns": {"prompt": "question"}}, store=tmp_path, progress=False
    )
    assert (policy / "config.json").is_file()


@pytest.mark.parametrize(
    ("dataset", "message"),
    [
        (lambda rows: DatasetDict(train=Dataset.from_list(rows)), "row 1 is a str: of several splits give one"),
        (lambda rows: pd.DataFrame(rows), r"of a data frame its to_dict\('records'\)"),
        (lambda rows: [rows[0], rows[1] | {"when": object()}], "row 2 of the dataset cannot be written as JSON"),
        (lambda rows: [rows[0] | {"strength": float("nan")}], "row 1 of the dataset cannot be written as JSON"),
    ],
)
def test_datasets_that_are_none(tmp_path, model, rows, dataset, message):
    with pytest.raises(UserError, match=message):
        unmdpo.train(model, dataset(rows), store=tmp_path)
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_models_that_are_none(tmp_path, model, rows):
    with pytest.raises(UserError, match="not a Linear"):
        unmdpo.train(torch.nn.Linear(2, 2), rows, store=tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(model)
    loaded.name_or_path = ""
    with pytest.raises(UserError, match="give its tokenizer too"):
        unmdpo.train(loaded, rows, store=tmp_path)
    policy = unmdpo.train(
        loaded, rows, tokenizer=AutoTokenizer.from_pretrained(model), training=SHORT, store=tmp_path, progress=False
    )
    assert (policy / "tokenizer.json").is_file()
