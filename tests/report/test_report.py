"""The report: everything finished is on the page, and model output is never more than text."""

import base64
import csv
import gzip
import json
import re
import shutil
from dataclasses import fields, replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import playwright.sync_api as playwright
import pytest
from playwright.sync_api import expect
from typer.testing import CliRunner

from tests.worlds.pipeline import recipe, world
from unmdpo.cli import app
from unmdpo.core.errors import UserError
from unmdpo.execute import execute
from unmdpo.recipe import Recipe
from unmdpo.report import charts, write_report
from unmdpo.report.charts import Interval, forest
from unmdpo.report.collect import Facts, StageTime, _means, collect
from unmdpo.report.curves import Curves
from unmdpo.report.page import amount, examples, key_facts, render
from unmdpo.results.run import open_run
from unmdpo.store.store import Store

HOSTILE = [
    "<script>alert(1)</script>",
    "</script><img src=x onerror=alert(1)>",
    '"><svg onload=alert(1)>',
    "</title></style><b>bold</b>",
    "{{ 7 * 7 }} {% raw %}",
    "<!-- <script>",
    "\u2028 \x00 \ud83d\ude00 &amp;",
]


class Tags(HTMLParser):
    """All elements with their attributes, and the text outside scripts and styles."""

    def __init__(self, page):
        super().__init__()
        self.found, self.texts, self.ids = [], [], []
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))
        self.ids += [value for name, value in attrs if name == "id"]

    def handle_data(self, data):
        self.texts.append(data)

    @property
    def text(self):
        return " ".join(self.texts)


def unpacked(text):
    return json.loads(gzip.decompress(base64.b64decode(text)))


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("reported")
    described = recipe(world(folder)).model_dump()
    described["evaluation"]["opponents"] = ["ulnm-wr"]
    opened = open_run(Recipe.model_validate(described), Store(folder / "store"))
    return execute(opened)


@pytest.fixture(scope="module")
def page(run):
    return render(collect(run))


def test_every_part_is_there(run, page):
    tags = Tags(page)
    assert {"results", "training", "scale", "answers", "cost", "provenance"} <= set(tags.ids)
    for policy in run.recipe.policies:
        assert policy in tags.text
    for row in run.table():
        assert f"{row['win_rate']:.2f} [{row['win_rate_low']:.2f}, {row['win_rate_high']:.2f}]" in tags.text
    for stage, artifact in run.finished.items():
        assert stage in tags.text
        assert artifact.digest in tags.text
    assert len(tags.ids) == len(set(tags.ids))
    q = run.scale("seq").known()["q"].to_numpy()
    assert f"mean {q.mean():.4f}, standard deviation {q.std():.4f}" in tags.text


def test_the_first_screen_has_the_cost_and_three_examples(run, page):
    facts = collect(run)
    assert "of computing" in key_facts(facts)["cost"]
    asked, shown = run.recipe.primary, examples(facts)
    both = [run.generations(name, asked.panel) for name in (asked.policy, asked.against)]
    gaps = [ours["score"] - theirs["score"] for ours, theirs in zip(*both, strict=True)]
    prompts = [prompt[-1].content for prompt in run.panel(asked.panel).prompts]
    best = next(place for place, prompt in enumerate(prompts) if prompt in shown[0]["prompt"])
    assert gaps[best] == max(gaps)
    assert [example["by"] for example in shown] == [asked.policy] * 3
    assert all(example["what"] in page for example in shown)


def test_a_scale_beside_its_policy_is_described(run, tmp_path):
    """The paper's paragraph on saturation: mean and standard deviation of q."""
    described = run.recipe.model_dump() | {"evaluation": None, "scales": {"sigmoid": {"estimator": "sigmoid-joint"}}}
    described["policies"] = {"sigmoid": {"objective": "unm-wr", "scale": "sigmoid"}}
    other = execute(open_run(Recipe.model_validate(described), Store(tmp_path / "store")))
    facts = collect(other)
    q = np.array(facts.joint_scales["sigmoid"])
    assert ((q > 0.5) & (q < 2)).all()
    told = f"mean {q.mean():.4f}, standard deviation {q.std():.4f}"
    assert (
        f"sigmoid learned a scale as it was trained: q from {q.min():.4f} to {q.max():.4f}, {told}"
        in Tags(render(facts)).text
    )


def test_the_browser_has_every_answer(run, page):
    blocks = dict(re.findall(r'data-answers="([^"]+)">([^<]+)<', page))
    assert len(blocks) == 2 * 4  # panels × (policies and the initial model)
    for name, text in blocks.items():
        panel, policy = name.split(" ")
        expected = run.generations(policy, panel)
        assert [row["text"] for row in unpacked(text)] == [row["text"] for row in expected]
        assert [row["scores"] for row in unpacked(text)] == [[row["score"]] for row in expected]


def test_it_asks_nothing_of_the_outside(page):
    for tag, attributes in Tags(page).found:
        for name in ("src", "href", "action", "data", "srcset", "poster"):
            assert attributes.get(name, "#").startswith("#"), (tag, attributes)
    assert "@import" not in page
    assert "url(" not in page
    assert not re.search(r"fetch\(|XMLHttpRequest|WebSocket|innerHTML|eval\(", page)


@pytest.mark.parametrize("text", HOSTILE)
def test_what_anyone_wrote_stays_text(run, page, text):
    facts = collect(run)
    hostile = replace(
        facts,
        scales=[replace(s, texts=[text] * len(s.q), domains=[text] * len(s.q)) for s in facts.scales],
        costs=[replace(cost, device=text) for cost in facts.costs],
        panels=[
            replace(
                panel,
                prompts=[text] * len(panel.prompts),
                domains=[text] * len(panel.prompts),
                answers={policy: [row | {"text": text} for row in rows] for policy, rows in panel.answers.items()},
            )
            for panel in facts.panels
        ],
    )
    said = facts.run.recipe.model_copy(update={"description": text})
    made = Tags(render(replace(hostile, run=replace(facts.run, recipe=said))))
    kinds = [tag for tag, _ in made.found]
    for tag in ("script", "img", "b", "style", "title"):
        assert kinds.count(tag) == [t for t, _ in Tags(page).found].count(tag) or tag == "title", tag
    assert not any(name.startswith("on") for _, attributes in made.found for name in attributes)


def test_an_unfinished_run_reports_what_it_has(run, tmp_path):
    folder = world(tmp_path)
    opened = open_run(recipe(folder), Store(folder / "store"))
    with pytest.raises(UserError, match="nothing of 'small' is finished"):
        write_report(opened, tmp_path / "report.html")
    execute(opened, until="scale[seq]")
    page = Tags(write_report(opened, tmp_path / "deep" / "report.html").read_text("utf-8"))
    assert "scale" in page.ids
    assert "results" not in page.ids


def test_the_command_writes_it_into_the_runs_folder(run, tmp_path):
    path = tmp_path / "recipe.yaml"
    path.write_text(run.recipe.to_yaml())
    done = CliRunner().invoke(app, ["report", str(path), "--store", str(run.store.root)])
    assert done.exit_code == 0, done.output
    assert (run.folder / "report.html").stat().st_size > 20_000
    bad = CliRunner().invoke(app, ["report", str(path), "--store", str(run.store.root), "--out", str(path / "x")])
    assert bad.exit_code == 2


def test_axes_have_round_ticks_inside():
    axis = charts.Axis(0.13, 0.94, 0, 100)
    assert axis.ticks() == pytest.approx([0.2, 0.4, 0.6, 0.8])
    assert axis.at(0.13) == 0
    assert charts.Axis(2, 2, 0, 1).ticks() == [2]


def test_charts_place_what_they_show():
    drawn = charts.forest([charts.Interval("a<b", 55, 50, 60)], "t", "x", 50)
    assert "a&lt;b" in drawn
    assert drawn.count("whisker") == 1
    bars = charts.histogram([1.0, 1.0, 2.0], "t", "x", bins=2)
    assert "<title>1 to 1.5: 2</title>" in bars
    assert "<title>1.5 to 2: 1</title>" in bars
    assert charts.histogram([1.0, 1.0], "t", "x")  # all equal
    assert charts.forest([], "t", "x", 0) == ""
    assert charts.scatter([(float("nan"), 1.0)], "t", "x", "y") == ""


def test_a_dot_says_where_it_is():
    assert "<title>1, 0.5</title>" in charts.scatter([(1.0, 0.5), (2.0, 1.5)], "t", "x", "y")


def test_curves_share_one_axis_of_updates():
    lines = {"a": [(1.0, 0.5), (3.0, 0.25)], "b": [(2.0, float("nan")), (3.0, 1.0)]}
    made = Curves.of({"loss": lines})
    assert made.names == ["loss"]
    expected = {"x": [1.0, 2.0, 3.0], "y": {"a": [0.5, None, 0.25], "b": [None, None, 1.0]}}
    assert unpacked(made.packed) == {"loss": expected}
    assert Curves.of({}) is None


def test_a_long_name_leaves_room_for_its_interval():
    drawn = charts.forest([charts.Interval("n" * 80, 55, 50, 60)], "t", "x", 50)
    (start, end) = re.search(r'class="whisker" x1="([\d.]+)" y1="[\d.]+" x2="([\d.]+)"', drawn).groups()
    width = float(re.search(r'viewBox="0 0 ([\d.]+) ', drawn)[1])
    assert 7 * charts.LONGEST_NAME <= float(start) < float(end) <= width
    assert width - 7 * charts.LONGEST_NAME >= 230  # of which the intervals have this much
    assert "…" in drawn


def test_amounts_for_people():
    assert [amount(0), amount(12), amount(12_345), amount(2.5e15)] == ["", "12", "12.3 k", "2.5 P"]


def large(facts):
    """800 prompts × 12 policies with known outcomes: every candidate wins the even prompts."""
    prompts = [f"prompt number {i} about {'sorting' if i % 4 else 'adding'}" for i in range(800)]
    domains = ["sorting" if i % 4 else "adding" for i in range(800)]

    def answers(policy):
        return [
            {
                "text": f"{HOSTILE[0]} answer of {policy} to {i} " + "word " * 80,
                "scores": [float(policy != "dpo" and i % 2 == 0) * (1 + (i == 6)), float(policy == "dpo" and i < 8)],
                "finished": i % 5 > 0,
            }
            for i in range(800)
        ]

    policies = ["dpo", *(f"other-{k}" for k in range(11))]
    said = {policy: answers(policy) for policy in policies}
    panel = replace(facts.panels[0], prompts=prompts, domains=domains, judges=["first", "second"], answers=said)
    return replace(facts, panels=[panel])


@pytest.fixture
def browser():
    """Any headless Chromium; tests that need it are skipped if there is none."""
    executable = shutil.which("chromium") or shutil.which("google-chrome")
    if executable is None:
        pytest.skip("no Chromium here")
    with playwright.sync_playwright() as started:
        opened = started.chromium.launch(executable_path=executable, args=["--no-sandbox"])
        yield opened
        opened.close()


def test_people_find_answers_in_a_browser(run, browser, tmp_path):
    path = tmp_path / "report.html"
    path.write_text(render(large(collect(run))), "utf-8")
    assert path.stat().st_size < 4 * 2**20
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    problems, requests = [], []
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("dialog", lambda dialog: problems.append(dialog.message))
    page.on("console", lambda said: problems.append(said.text) if said.type == "error" else None)
    page.on("request", lambda request: requests.append(request.url))
    page.goto(path.as_uri())
    count, prompt = page.locator("#count"), page.locator("#prompt")
    expect(count).to_have_text("10 of 800")
    expect(prompt).to_have_text("prompt number 6 about sorting")  # where they differ most
    page.select_option("#outcome", "")
    expect(count).to_have_text("800 of 800")
    page.select_option("#outcome", "disagree")
    expect(count).to_have_text("4 of 800")
    page.select_option("#judge", "1")
    expect(page.locator("#candidate-name")).to_contain_text("(loss)")
    page.select_option("#judge", "0")
    page.select_option("#outcome", "win")
    expect(count).to_have_text("400 of 800")
    page.select_option("#domain", "adding")
    expect(count).to_have_text("200 of 800")
    page.fill("#search", "number 796")
    expect(count).to_have_text("1 of 800")
    expect(prompt).to_have_text("prompt number 796 about adding")
    expect(page.locator("#candidate-text")).to_contain_text(f"{HOSTILE[0]} answer of other-10 to 796")
    expect(page.locator("#candidate-name")).to_have_text("other-10: first 1.000, second 0.000 (win)")
    page.fill("#search", "nothing like it")
    expect(count).to_have_text("0 of 800")
    page.fill("#search", "")
    page.select_option("#outcome", "")
    page.select_option("#domain", "")
    page.select_option("#candidate", "other-3")
    expect(page.locator("#candidate-name")).to_contain_text("other-3")
    page.locator("#list").focus()
    page.keyboard.press("j")
    page.keyboard.press("j")
    page.keyboard.press("k")
    expect(prompt).to_have_text("prompt number 1 about sorting")
    page.keyboard.press("t")
    first = page.evaluate("document.documentElement.dataset.theme")
    page.click("#theme")
    assert {first, page.evaluate("document.documentElement.dataset.theme")} == {"light", "dark"}
    assert problems == []
    assert [url for url in requests if not url.startswith(("file:", "data:", "blob:"))] == []


def test_tables_sort_and_are_saved_and_answers_have_addresses(run, browser, tmp_path):
    path = tmp_path / "report.html"
    path.write_text(render(large(collect(run))), "utf-8")
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    problems = []
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.goto(path.as_uri())
    head = page.locator("#results thead th", has_text="win %").first
    cells = page.locator("#results table").first.locator("tbody tr:not(.quiet) td:nth-child(2)")
    for down in (True, False):
        head.click()
        rates = [float(text.split()[0]) for text in cells.all_text_contents()]
        assert len(rates) > 1
        assert rates == sorted(rates, reverse=down)
    with page.expect_download() as saved:
        page.locator("#results .save").first.click()
    lines = Path(saved.value.path()).read_text("utf-8").splitlines()
    assert lines[0].startswith('policy,"one, win %",')
    with page.expect_download() as saved:
        page.locator("#results .save").nth(1).click()
    rows = [*csv.reader(Path(saved.value.path()).read_text("utf-8").splitlines())]
    assert rows[0][:4] == ["policy", "win rate, %", "win rate, % low", "win rate, % high"]
    assert {"wins", "ties", "losses"} <= {*rows[0]}
    assert {len(row) for row in rows} == {len(rows[0])}
    assert not [cell for row in rows[1:] for cell in row if "[" in cell or " / " in cell]
    assert len(lines) > len(rates)
    page.select_option("#outcome", "")
    page.select_option("#candidate", "other-3")
    page.locator("#list li").nth(17).click()
    address = page.url
    assert address.endswith("#answer/one/other-3/dpo/17")
    other = browser.new_page()
    other.goto(address)
    expect(other.locator("#prompt")).to_have_text(page.locator("#prompt").text_content())
    expect(other.locator("#candidate-name")).to_contain_text("other-3")
    assert problems == []


def test_curves_zoom_smooth_hide_and_are_saved(run, browser, tmp_path):
    path = tmp_path / "report.html"
    path.write_text(render(collect(run)), "utf-8")
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    problems = []
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("console", lambda said: problems.append(said.text) if said.type == "error" else None)
    page.goto(path.as_uri())
    figure = page.locator('[data-curve="loss"]')
    figure.scroll_into_view_if_needed()
    expect(figure.locator("canvas")).to_be_visible()
    losses = collect(run).curves["loss"]
    updates = len(losses["dpo"])
    assert page.evaluate("charts[0].chart.data.length") == 1 + len(losses)
    over = figure.locator(".u-over")
    box = over.bounding_box()
    page.mouse.move(box["x"] + 2, box["y"] + box["height"] / 2)
    expect(figure.locator("output")).to_contain_text("update 0: ")
    name, value = figure.locator("output").text_content().removeprefix("update 0: ").split()
    assert float(value) == pytest.approx(losses[name][0][1], rel=1e-3)
    page.locator('[data-line="dpo"]').click()
    place = 1 + [*losses].index("dpo")
    assert page.evaluate(f"charts[0].chart.series[{place}].show") is False
    page.locator("#smoothing").fill("0.9")
    last = page.evaluate(f"charts[0].chart.data[{place}].at(-1)")
    weights = 0.1 * 0.9 ** np.arange(updates)[::-1]
    expected = (weights * [value for _, value in losses["dpo"]]).sum() / weights.sum()
    assert last == pytest.approx(expected, rel=1e-6)
    page.mouse.move(box["x"] + 0.6 * box["width"], box["y"] + 20)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] - 1, box["y"] + 60, steps=4)
    page.mouse.up()
    ranges = page.evaluate("charts.map(({ chart }) => chart.scales.x.min)")
    assert min(ranges) > 0  # all are zoomed
    page.locator('[data-curve="rewards/margins"] .u-over').dblclick()
    assert page.evaluate("charts.map(({ chart }) => [chart.scales.x.min, chart.scales.x.max])") == [
        [0, updates - 1]
    ] * page.evaluate("charts.length")
    with page.expect_download() as saved:
        figure.locator(".save").click()
    lines = Path(saved.value.path()).read_text("utf-8").splitlines()
    assert lines[0] == ",".join(["update", *losses])
    assert len(lines) == 1 + updates
    assert float(lines[1].split(",")[place]) == losses["dpo"][0][1]
    assert problems == []


@pytest.mark.parametrize("width", [390, 1280])
def test_it_fits_a_phone_and_a_desk(run, browser, tmp_path, width):
    path = tmp_path / "report.html"
    path.write_text(render(collect(run)), "utf-8")
    page = browser.new_page(viewport={"width": width, "height": 844})
    page.goto(path.as_uri())
    expect(page.locator("#count")).not_to_be_empty()
    assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_numbers_of_the_report_by_hand(done):
    costs = [
        StageTime("pilot[0]", "pilot", 3.0, *[None] * (len(fields(StageTime)) - 3)),
        StageTime("policy[dpo]", "policy", 9.0, *[None] * (len(fields(StageTime)) - 3)),
    ]
    assert Facts(done, costs=costs).pilot_share == pytest.approx(0.25)
    means = _means(np.array([0, 0, 0, 1, 2]), np.array([1.0, 3.0, np.nan, np.nan, 5.0]), 3)
    assert means[0] == 2.0  # of the two that are numbers
    assert np.isnan(means[1])
    assert means[2] == 5.0


def test_a_whisker_reaches_from_end_to_end():
    page = forest([Interval("a", 50.0, 40.0, 70.0), Interval("b", 45.0, 30.0, 60.0)], "t", "x", 50.0)
    ends = [
        tuple(map(float, found)) for found in re.findall(r'x1="([\d.]+)"[^>]*x2="([\d.]+)"[^>]*class="whisker"', page)
    ]
    ends = ends or [
        (float(x1), float(x2)) for x1, x2 in re.findall(r'class="whisker"[^>]*x1="([\d.]+)"[^>]*x2="([\d.]+)"', page)
    ]
    (a, b), wide = ends[:2], ends[0][1] - ends[0][0]
    assert wide == pytest.approx(b[1] - b[0], abs=0.2)  # 30 points each
    assert a[0] - b[0] == pytest.approx(wide / 3, abs=0.2)  # 10 points further
