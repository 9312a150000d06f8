"""The digest of code: what changes results changes it, and tidying does not."""

import inspect
from pathlib import Path

import pytest

from unmdpo.engine.inference.judges import JUDGES
from unmdpo.objectives.table import OBJECTIVES
from unmdpo.scale.table import ESTIMATORS
from unmdpo.stages.table import STAGES
from unmdpo.store import code
from unmdpo.store.code import ROOT, code_digest, reached

BEFORE = '"""A module."""\n\n\ndef double(x: int) -> int:\n    """Twice."""\n    return 2 * x\n'


@pytest.fixture
def module(tmp_path, monkeypatch):
    monkeypatch.setattr(code, "ROOT", tmp_path)
    monkeypatch.setattr(code, "ROOMS", ("engine/",))
    (tmp_path / "engine").mkdir()
    path = tmp_path / "engine" / "module.py"
    path.write_text(BEFORE)
    return path


@pytest.mark.parametrize(
    "after",
    [
        BEFORE.replace("Twice.", "Two times that."),
        BEFORE.replace("A module.", "A better module,\nin two lines."),
        BEFORE.replace("    return", "    # the trap\n    return"),
        BEFORE.replace("\n\n\n", "\n"),
        BEFORE.replace("2 * x", "(2\n * x)"),
        '"""unmdpo.engine.other is not imported by being named here."""\n' + BEFORE.partition("\n")[2],
    ],
)
def test_tidying_changes_nothing(module, after):
    before = code_digest(module)
    module.write_text(after)
    assert code_digest(module) == before


@pytest.mark.parametrize("after", [BEFORE.replace("2", "3"), BEFORE.replace("x: int", "x: float"), BEFORE + "y = 1\n"])
def test_statements_count(module, after):
    before = code_digest(module)
    module.write_text(after)
    assert code_digest(module) != before


@pytest.mark.parametrize(
    "importing",
    [
        "from unmdpo.engine.other import thing",
        "from unmdpo.engine import other",
        "import unmdpo.engine.other",
        "def later() -> None:\n    from unmdpo.engine import other",
        'ROW = Code("unmdpo.engine.other:thing")',
        'OTHER = "unmdpo.engine.other"\nROW = Code(f"{OTHER}:thing")',
    ],
)
def test_what_is_imported_or_referred_to_counts(module, importing):
    other = module.with_name("other.py")
    other.write_text("thing = 1\n")
    module.write_text(f"{importing}\n")
    before = code_digest(module)
    assert other in reached(module)
    other.write_text("thing = 2\n")
    assert code_digest(module) != before


TABLES = {
    "losses": ("objectives/table.py", [row.formula for row in OBJECTIVES.values()]),
    "estimators": ("scale/table.py", [row.make for row in ESTIMATORS.values()]),
    "judges": ("engine/inference/judges.py", [row.open for row in JUDGES.values() if hasattr(row.open, "place")]),
}


@pytest.mark.parametrize("table", TABLES)
def test_every_row_of_a_table_is_reached(table):
    file, references = TABLES[table]
    files = {path.relative_to(ROOT).as_posix() for path in reached(ROOT / file)}
    named = {
        reference.place.partition(":")[0].removeprefix("unmdpo.").replace(".", "/") + ".py" for reference in references
    }
    assert named
    assert named <= files


def test_every_kind_of_stage_reaches_its_own_file_and_sources_are_reached_by_reading():
    sources = {path.relative_to(ROOT).as_posix() for path in (ROOT / "data" / "sources").glob("*.py")}
    for kind in STAGES.values():
        own = Path(inspect.getfile(inspect.unwrap(kind.work)))
        assert own in reached(own)
    read = {path.relative_to(ROOT).as_posix() for path in reached(ROOT / "stages" / "comparisons.py")}
    assert sources <= read | {"data/sources/__init__.py"}
