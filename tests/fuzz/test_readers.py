"""Feeds arbitrary bytes and values to every reader: the result is an answer or a UserError, nothing else, and quick.

`UNMDPO_FUZZ=40` tries forty times as many cases, as `make soak` does.
"""

import gzip
import json
import os
import resource
import sys

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tests.worlds.rows import helpsteer3_row
from unmdpo.core.errors import UserError
from unmdpo.core.files import as_json, with_seal
from unmdpo.data import load_comparisons
from unmdpo.data.alpaca import read_annotations, read_gamed
from unmdpo.data.panels import read_prompts
from unmdpo.data.sources import SOURCES
from unmdpo.recipe import Recipe, load_recipe
from unmdpo.store.artifact import MANIFEST
from unmdpo.store.store import Store

BLOW_UP = 2**30  # bytes of growth

TIMES = int(os.environ.get("UNMDPO_FUZZ", "1"))
CASES = 100 * TIMES  # per reader and kind of input

scalars = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=12) | st.just("1e400")
    | st.integers(min_value=10**300, max_value=10**310)
)  # fmt: skip
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
COLUMNS = (
    "prompt", "chosen", "rejected", "strength", "margin", "score_chosen", "score_rejected", "context",
    "response1", "response2", "overall_preference", "individual_preference", "domain", "language",
    "votes", "response", "responses", "scores", "score", "instruction", "output_1", "output_2",
    "preference", "generator_1", "generator_2", "annotator1", "annotator2",
    "annotator3", "input", "response_1", "preference_strength",
)  # fmt: skip
message = st.fixed_dictionaries({"role": st.sampled_from(["user", "assistant", "system"]) | values, "content": values})
cells = values | st.lists(message, max_size=3) | st.integers(-3, 3) | st.lists(st.integers(-3, 3), max_size=3)
rows = st.lists(st.dictionaries(st.sampled_from(COLUMNS), cells, max_size=10), min_size=1, max_size=4)
patient = settings(
    max_examples=CASES, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)


def answers(function, *arguments, **named):
    """Calls the function; any error but a UserError fails the test."""
    try:
        return function(*arguments, **named)
    except UserError as error:
        told = str(error)
    assert 0 < len(told) < 20_000
    return None


def peak_memory():
    """The process's peak memory in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


@pytest.fixture(scope="module", autouse=True)
def no_memory_blow_up():
    before = peak_memory()
    yield
    assert peak_memory() - before < BLOW_UP


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("fuzz")


def written(folder, name, text):
    path = folder / name
    if isinstance(text, bytes):
        path.write_bytes(text)
    else:
        path.write_text(text, encoding="utf-8", errors="surrogatepass")
    return path


def as_lines(table):
    return "".join(json.dumps(row) + "\n" for row in table)


# --- Recipes --------------------------------------------------------------------------------------


@patient
@given(text=st.text(max_size=200))
@example("a: &a [*a]")
@example("<<: *x")
@example("a: &a {b: &b {c: [*a, *b]}}")
@example("? [a]\n: b")
@example("name: 2024-01-01\nseed: 0x1F\nbeta: 1_000")
@example("%YAML 9.9\n---\n...")
def test_any_text_as_a_recipe(folder, text):
    answers(load_recipe, str(written(folder, "r.yaml", text)))


@patient
@given(changes=st.dictionaries(st.sampled_from([*Recipe.model_fields, "extends", "nam"]), values, max_size=6))
def test_any_values_as_a_recipe(folder, changes):
    text = json.dumps({"extends": "hs2-1b"} | changes)  # JSON is YAML
    answers(load_recipe, str(written(folder, "v.yaml", text)))


@patient
@given(text=st.text(max_size=60))
def test_any_text_as_an_override(text):
    answers(load_recipe, "hs2-1b", [text])


# --- Data -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("source", [*SOURCES, "auto"])
@pytest.mark.filterwarnings("ignore::unmdpo.core.errors.UnmdpoWarning")
@patient
@given(table=rows)
def test_any_rows(folder, source, table):
    found = answers(load_comparisons, str(written(folder, "t.jsonl", as_lines(table))), source=source)
    if found is not None:
        assert all(row.strength > 0 for row in found.rows)


@pytest.mark.parametrize("ending", ["jsonl", "json", "parquet", "jsonl.gz"])
@patient
@given(data=st.binary(max_size=300))
@example(b"")
@example(b"\xef\xbb\xbf[]")
@example(b"[" * 5000)
@example(b"PAR1PAR1")
def test_any_bytes(folder, ending, data):
    for text in (data, gzip.compress(data) if ending.endswith("gz") else data):
        answers(load_comparisons, str(written(folder, f"b.{ending}", text)))


@patient
@given(table=rows)
def test_any_prompts(folder, table):
    answers(read_prompts, written(folder, "p.jsonl", as_lines(table)))


@patient
@given(table=rows)
def test_any_annotations(folder, table):
    answers(read_annotations, written(folder, "a.json", json.dumps(table)))


@patient
@given(text=st.text(max_size=200))
@example("preference,std_delta_len,instruction_difficulty,index\n1,nan,x,1e999\n")
def test_any_table_of_gamed_answers(folder, text):
    answers(read_gamed, written(folder, "g.csv", text))


@pytest.mark.filterwarnings("ignore:.*rows is bad")
def test_a_bomb_is_read_as_a_stream(folder):
    """A quarter of a gigabyte, compressed to little: no row of it is held twice, and what is bad in it is found."""
    row = json.dumps(helpsteer3_row("x" * 2000)).encode() + b"\n"
    path = folder / "bomb.jsonl.gz"
    with gzip.open(path, "wb", compresslevel=1) as file:
        file.write(row + b'{"bad": \n')
        for _ in range(2000):
            file.write(row * 20)
    before = peak_memory()
    data = load_comparisons(str(path))
    assert (len(data), len(data.skipped)) == (40_001, 1)
    assert peak_memory() - before < 4 * 2**30


# --- Manifests ------------------------------------------------------------------------------------


@patient
@given(said=values, seal=st.booleans())
@example({"files": {}}, True)
@example({"files": None}, True)
@example({}, True)
def test_any_manifest(folder, said, seal):
    """A nonsense manifest is reported if it is sealed; otherwise it counts as damage and is set aside."""
    store = Store(folder / "store")
    place = folder / "store" / "artifacts" / "policy" / "1"
    place.mkdir(parents=True, exist_ok=True)
    text = json.dumps(said) if not (seal and isinstance(said, dict)) else _sealed(said)
    (place / MANIFEST).write_text(text, "utf-8", errors="surrogatepass")
    found = store.find("policy/1")
    assert found is not None
    assert answers(found.file, "model") is None
    if not found.intact:
        assert store.find("policy/1") is None


def _sealed(said):
    try:
        return as_json(with_seal(said))
    except ValueError:  # a number that JSON cannot express
        return json.dumps(said)


@patient
@given(data=st.binary(max_size=100))
def test_any_bytes_as_a_manifest(folder, data):
    store = Store(folder / "bytes")
    place = folder / "bytes" / "artifacts" / "policy" / "1"
    place.mkdir(parents=True, exist_ok=True)
    (place / MANIFEST).write_bytes(data)
    assert answers(store.find("policy/1").file, "model") is None
