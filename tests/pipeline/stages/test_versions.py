"""Code that makes results has changed: then the same settings may give other results, and old ones must not be taken
for new ones.

When this fails: raise the version of every `Kind` of stage whose results change, at the end of its file, and write the
record anew. For stages whose version stays, say why their results are the same:

    python -m tests.pipeline.stages.test_versions "only messages have changed"
"""

import hashlib
import json
import sys
from dataclasses import replace
from pathlib import Path

from tests.worlds.pipeline import recipe
from unmdpo.pipeline import code
from unmdpo.pipeline.executors import execute
from unmdpo.pipeline.run import open_run
from unmdpo.pipeline.stages import KINDS
from unmdpo.pipeline.store import Store

RECORD = Path(__file__).with_name("versions.json")


def current():
    return {
        name: {
            "version": kind.version,
            "code": hashlib.sha256(json.dumps(code.code_of(kind), sort_keys=True).encode()).hexdigest()[:16],
        }
        for name, kind in KINDS.items()
    }


def recorded():
    return json.loads(RECORD.read_text())


def test_changed_code_has_been_thought_about():
    assert current() == recorded()["kinds"], __doc__
    assert recorded()["same results"].strip()


def test_versions_never_go_back():
    assert all(kind.version >= recorded()["kinds"][name]["version"] for name, kind in KINDS.items())


def test_a_stage_reaches_what_makes_its_result():
    reached = {name: {*code.code_of(kind)} for name, kind in KINDS.items()}
    assert {"engine/training/trainer", "objectives/pairs", "objectives/losses", "adamw"} <= reached["policy"]
    assert {"scale/pooled", "scale/maps", "scale/fitting"} <= reached["scale"]
    assert {"data/load", "data/sources/helpsteer3"} <= reached["comparisons"]
    assert "stats/evaluation" in reached["summary"]
    others = ("cli", "report", "recipe", "pipeline/store")
    assert not any(module.startswith(others) for modules in reached.values() for module in modules)


def test_docstrings_and_comments_are_no_code(tmp_path):
    plain, told = tmp_path / "plain.py", tmp_path / "told.py"
    plain.write_text("def f(x):\n    return x\n")
    told.write_text('"""Why."""\n\n\ndef f(x):\n    """What."""\n    return x  # as it is\n')
    other = tmp_path / "other.py"
    other.write_text("def f(x):\n    return x + 1\n")
    assert len({code._module(path).digest for path in (plain, told)}) == 1
    assert code._module(plain) != code._module(other)


def test_what_a_run_mixes_is_told(folder, tmp_path, monkeypatch):
    run = execute(open_run(recipe(folder), Store(tmp_path / "store")), until="encoded")
    assert code.mixed(run) == []
    made = code._module

    def other(path):
        return made(path)._replace(digest="other") if path.name == "encode.py" else made(path)

    monkeypatch.setattr(code, "_module", other)
    (line,) = code.mixed(run)
    assert line.startswith("comparisons, encoded: made by other code than there is now (engine/pairs/encode)")
    monkeypatch.undo()
    artifact = run.artifact("encoded")
    path = artifact.path / "manifest.json"
    manifest = json.loads(path.read_text())
    manifest["versions"]["torch"] = "1.0"
    del manifest["code"]
    path.write_text(json.dumps(manifest))
    unknown, several = code.mixed(replace(run))
    assert unknown == "encoded: made by a version that did not note its code"
    assert several.startswith("made with several versions: torch 1.0: encoded; torch 2")


if __name__ == "__main__":
    before = recorded() if RECORD.exists() else {"kinds": {}, "same results": ""}
    now = current()
    kept = [name for name, kind in now.items() if kind["version"] == before["kinds"].get(name, {}).get("version")]
    unsaid = [name for name in kept if now[name] != before["kinds"][name]]
    why = " ".join(sys.argv[1:])
    if unsaid and not why:
        sys.exit(f"{', '.join(unsaid)}: code has changed and the version has not. Why are the results the same?")
    RECORD.write_text(json.dumps({"kinds": now, "same results": why or before["same results"]}, indent=2) + "\n")
