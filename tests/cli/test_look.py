"""`look` and `init`, from a file to a run."""

import json
import re

import pytest
from typer.testing import CliRunner

from tests.worlds.pipeline import write_data, write_model
from unmdpo.cli import app
from unmdpo.recipe import load_recipe


def run(*arguments):
    return CliRunner().invoke(app, [*map(str, arguments)])


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("look")
    write_data(folder / "votes.jsonl", prompts=30)
    write_model(folder / "model")
    return folder


def test_look_fits_on_a_screen_and_ends_in_a_recipe(place):
    done = run("look", place / "votes.jsonl", "--model", place / "model")
    assert done.exit_code == 0, done.output
    lines = done.output.splitlines()
    assert len(lines) <= 50
    assert all(len(line) <= 160 for line in lines)
    assert "helpsteer3, by its columns context, overall_preference, response1, response2" in " ".join(
        done.output.split()
    )
    assert "60 read · 0 bad" in done.output
    assert "tokens      of " in done.output
    assert "general 50 %" in done.output
    text = done.output[done.output.index("name: ") :]
    assert load_recipe_text(text, place).data.source == "helpsteer3"


def load_recipe_text(text, place):
    path = place / "printed.yaml"
    path.write_text(text)
    return load_recipe(str(path))


def test_look_as_json_and_as_a_page(place, tmp_path):
    done = run("look", place / "votes.jsonl", "--json", tmp_path / "look.json", "--html", tmp_path / "look.html")
    assert done.exit_code == 0, done.output
    seen = json.loads((tmp_path / "look.json").read_text())
    assert seen["look"]["read"] == 60
    page = (tmp_path / "look.html").read_text()
    assert "<script" not in page
    assert "policies:" in page


def test_a_page_escapes_what_the_data_says(write, tmp_path):
    rows = [
        {"prompt": f"{i}?", "chosen": "a", "rejected": "b", "strength": 1 + i % 2, "domain": f"<b>{i}</b>"}
        for i in range(3)
    ]
    assert run("look", write(rows), "--html", tmp_path / "x.html").exit_code == 0
    page = (tmp_path / "x.html").read_text()
    assert "&lt;b&gt;" in page
    assert "<b>" not in page


def test_init_writes_a_recipe_that_runs(place, monkeypatch):
    monkeypatch.chdir(place)
    done = run("init", "votes.jsonl", "--model", "model")
    assert done.exit_code == 0, done.output
    assert "60 comparisons" in run("plan", "votes.yaml", "--store", "store").output
    few = run("plan", "votes.yaml", "data.max_length=16", "--store", "store").output
    assert re.search(r"only some \d+ of 33 comparisons fit in 16 tokens: raise data.max_length", few), few
    none = run("plan", "votes.yaml", "data.max_length=8", "--store", "store")
    assert (none.exit_code, "none of 33" in none.output) == (2, True)
    again = run("init", "votes.jsonl", "--model", "model")
    assert (again.exit_code, "votes.yaml exists" in again.output) == (2, True)
    ran = run("run", "votes.yaml", "--store", "store", "--jobs", "1")
    assert ran.exit_code == 0, ran.output
    assert "60 rows read · 0 bad · 60 comparisons · " in ran.output
    assert " used" in ran.output
    page = run("report", "votes.yaml", "--store", "store", "--out", "report.html")
    assert page.exit_code == 0, page.output
    assert "training comparisons" in (place / "report.html").read_text()


def test_a_model_without_a_template_is_given_one(place, tmp_path):
    text = (
        "{% for m in messages %}[{{ m.role }}] {{ m.content }}{% endfor %}{% if add_generation_prompt %}[a]{% endif %}"
    )
    (tmp_path / "mine.jinja").write_text(text)
    out = tmp_path / "r.yaml"
    given = ["--model", place / "model", "--template", tmp_path / "mine.jinja", "--out", out]
    done = run("init", place / "votes.jsonl", *given)
    assert done.exit_code == 0, done.output
    assert str(tmp_path / "mine.jinja") in out.read_text()
    assert load_recipe(str(out)).model.template == text


def test_what_cannot_be_looked_at(tmp_path, write):
    assert run("look", tmp_path / "none.jsonl").exit_code == 2
    assert "no such file or folder" in run("look", tmp_path / "none.jsonl").output
    unknown = run("look", write([{"a": 1}]))
    assert (unknown.exit_code, "match no known source" in unknown.output) == (2, True)
    folder = run("init", write([{"a": 1}]), "--out", tmp_path)
    assert (folder.exit_code, "should go to a file" in folder.output) == (2, True)


def test_columns_by_other_names(write, tmp_path):
    rows = [{"q": {"text": f"{i}?"}, "good": "a", "bad": "b", "how": 1 + i % 3} for i in range(20)]
    named = [
        "--column",
        "prompt=q.text",
        "--column",
        "chosen=good",
        "--column",
        "rejected=bad",
        "--column",
        "strength=how",
    ]
    out = tmp_path / "mine.yaml"
    done = run("init", write(rows), *named, "--max-bad-rows", "5%", "--out", out)
    assert done.exit_code == 0, done.output
    data = load_recipe(str(out)).data
    assert (data.columns["prompt"], data.max_bad_rows) == ("q.text", 0.05)
    assert "--column should be what it holds and its name" in run("look", write(rows), "--column", "prompt").output


def test_only_ties_get_no_recipe(write, tmp_path):
    path = write([{"prompt": "Q?", "chosen": "a", "rejected": "b", "strength": 0}])
    assert "name:" not in run("look", path).output
    refused = run("init", path, "--out", tmp_path / "x.yaml")
    assert (refused.exit_code, "only ties" in refused.output) == (2, True)


def test_continuous_strengths_are_seen_and_written_down(write, tmp_path):
    rows = [{"prompt": f"{i}?", "chosen": "a", "rejected": "b", "margin": 0.1 + i / 7} for i in range(20)]
    out = tmp_path / "mine.yaml"
    done = run("look", write(rows), "--continuous", "--html", tmp_path / "page.html")
    assert "strengths   from 0.1 to 2.81, half of them over 1.53" in done.output
    assert run("init", write(rows), "--continuous", "--out", out).exit_code == 0
    assert load_recipe(str(out)).data.strength.continuous
    both = run("look", write(rows), "--continuous", "--label", "x=1")
    assert (both.exit_code, "continuous strengths have no levels" in both.output) == (2, True)


def test_annotators_in_columns_of_their_own(write):
    rows = [
        {
            "task": f"{i}?",
            "response_a": "x",
            "response_b": "y",
            "ann_1": "A",
            "ann_2": "B",
            "ann_3": "" if i % 2 else "A",
        }
        for i in range(9)
    ]
    done = run("look", write(rows), "--column", "prompt=task", "--column", "label=ann_1, ann_2, ann_3")
    assert "5 comparisons" in done.output, done.output
    wrong = run("look", write(rows), "--column", "prompt=task", "--column", "label=ann_1, ann_2, ann_9")
    assert (wrong.exit_code, "there is no 'ann_9'" in wrong.output) == (2, True)
    assert "9 comparisons have votes of several annotators" in " ".join(done.output.split())
