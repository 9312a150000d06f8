"""What a stage reads must be what its key says: inputs that are written to meanwhile, proofs that are damaged, and the
modules that a judge imports."""

import json
import os

import pytest

from tests.worlds.pipeline import judged_by_function, problems, recipe, world
from unmdpo.core.errors import UserError
from unmdpo.core.functions import function_files
from unmdpo.engine.inference.function_judge import open_function
from unmdpo.engine.inference.judges import FunctionSettings
from unmdpo.execute import execute
from unmdpo.results.run import open_run
from unmdpo.stages.pipeline import Pipeline
from unmdpo.store.store import Store


def meddle(monkeypatch, stage, path):
    """Changes a file while a stage is at work, and puts it back with its old date."""
    original = Pipeline.job

    def job(run, at_work, *more):
        if at_work.name == stage:
            monkeypatch.undo()
            before, status = path.read_bytes(), path.stat()
            path.write_bytes(before.replace(b"w1 ", b"w2 "))
            path.write_bytes(before)
            os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
        return original(run, at_work, *more)

    monkeypatch.setattr(Pipeline, "job", job)


@pytest.mark.parametrize(
    ("stage", "file"),
    [
        ("comparisons", "data.jsonl"),
        ("encoded", "model/tokenizer.json"),
        ("reference", "model/model.safetensors"),
        ("policy[dpo]", "model/model.safetensors"),
    ],
)
def test_nothing_is_kept_of_inputs_that_were_written_to(tmp_path, monkeypatch, stage, file):
    folder = world(tmp_path)
    made = recipe(folder, policies={"dpo": {"objective": "dpo"}}, scales={}, evaluation=None)
    store = Store(folder / "store")
    meddle(monkeypatch, stage, folder / file)
    with pytest.raises(UserError, match=f"{file} was written to meanwhile"):
        execute(open_run(made, store))
    again = open_run(made, store)
    assert again.find(again.stages[stage]) is None
    assert not any((store.root / "work").glob("*/state/*"))
    assert not problems(execute(again))


@pytest.mark.parametrize("damage", ["layout", "nested", "empty"])
def test_a_damaged_proof_is_made_again(tmp_path, damage):
    folder = world(tmp_path)
    made = recipe(folder, policies={"dpo": {"objective": "dpo"}}, scales={}, evaluation=None)
    store = Store(folder / "store")
    execute(open_run(made, store), until="reference")
    (proof,) = store.proofs.glob("*.json")
    written = proof.read_text()
    known = json.loads(written)
    assert known["layout"] == "packed"
    proof.write_text({"layout": written.replace('"packed"', '"single"'), "nested": "[" * 100_000, "empty": ""}[damage])
    run = execute(open_run(made, store))
    assert run.artifact("policy[dpo]").manifest["notes"]["proof"]["layout"] == "packed"
    assert json.loads(proof.read_text()) == known


def test_a_judge_s_modules_belong_to_it(tmp_path, monkeypatch):
    package = tmp_path / "judging"
    (package / "deep").mkdir(parents=True)
    files = {
        "__init__.py": "",
        "scores.py": "import json, numpy\nfrom . import words\nfrom .deep.most import most\n\ndef judge(p, r):\n"
        "    import helper\n    return [float(most(words.count(t))) for t in r]\n",
        "words.py": "def count(t):\n    return len(t.split())\n",
        "deep/__init__.py": "",
        "deep/most.py": "from ..words import count\n\ndef most(n):\n    return n\n",
        "unused.py": "",
    }
    for name, text in files.items():
        (package / name).write_text(text)
    (tmp_path / "helper.py").write_text("import broken\n")
    (tmp_path / "broken.py").write_text("this is no Python")
    monkeypatch.syspath_prepend(tmp_path)
    found = function_files("judging.scores:judge").values()
    assert {os.path.relpath(file, tmp_path) for file in found} == {
        "judging/__init__.py", "judging/scores.py", "judging/words.py", "judging/deep/__init__.py",
        "judging/deep/most.py", "helper.py", "broken.py",
    }  # fmt: skip
    (package / "deep" / "deeper.py").write_text("def judge(p, r):\n    return r\n")
    found = function_files("judging.deep.deeper:judge").values()
    assert {os.path.relpath(file, package) for file in found} == {"__init__.py", "deep/__init__.py", "deep/deeper.py"}
    assert function_files("no_such.module:judge") == {}


def test_a_judge_is_what_is_in_its_file(tmp_path, monkeypatch):
    """Python would take its old bytecode: size and time are the same."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)
    for number in (1, 2):
        (tmp_path / "sized.py").write_text(f"def judge(prompts, said):\n    return [float({number})] * len(said)\n")
        os.utime(tmp_path / "sized.py", (1e9, 1e9))
        judge = open_function(FunctionSettings(function="sized:judge"))
        assert judge([()], ["a"]) == [number]


@pytest.mark.parametrize("returned", ["{0: 1.0}", "'1'", "b'1'"])
def test_a_judge_returns_a_list(tmp_path, monkeypatch, returned):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "odd_judge.py").write_text(f"def judge(prompts, said):\n    return {returned}\n")
    with pytest.raises(UserError, match="should return a list of numbers"):
        open_function(FunctionSettings(function="odd_judge:judge"))([()], ["a"])


def test_answers_are_judged_again_when_a_helper_changes(tmp_path, monkeypatch):
    folder = world(tmp_path)
    (folder / "helping.py").write_text("def length(text):\n    return len(text)\n")
    (folder / "own_judge.py").write_text(
        "from helping import length\n\ndef judge(prompts, said):\n    return [float(length(text)) for text in said]\n"
    )
    monkeypatch.chdir(folder)
    monkeypatch.setenv("PYTHONPATH", str(folder))
    store = Store(folder / "store")
    first = execute(open_run(judged_by_function(folder, "own_judge:judge"), store))
    (folder / "helping.py").write_text("def length(text):\n    return -len(text)\n")
    second = execute(open_run(judged_by_function(folder, "own_judge:judge"), store))
    assert first.stages["judgement[dpo,one]"].key != second.stages["judgement[dpo,one]"].key
    assert first.stages["generation[dpo,one]"].key == second.stages["generation[dpo,one]"].key


def test_another_microbatch_is_proven_anew(tmp_path):
    """Its rows are filled in another way."""
    folder = world(tmp_path)
    store = Store(folder / "store")
    for number, budget in enumerate((512, 256), 1):
        policies = {"dpo": {"objective": "dpo"}}
        made = recipe(folder, policies=policies, scales={}, evaluation=None, compute={"token_budget": budget})
        run = open_run(made, store)
        execute(run, until="reference", force=["reference"])
        assert len([*store.proofs.glob("*.json")]) == number
