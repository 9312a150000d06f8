"""The judge behind an endpoint: both orders of a pair, probabilities from labels, errors that name the endpoint.

If `UNMDPO_TEST_ENDPOINT` and `UNMDPO_TEST_ENDPOINT_MODEL` name a language model server (vLLM's and llama.cpp's have
been used), it judges a whole run.
"""

import json
import math
import os
from http.server import BaseHTTPRequestHandler
from typing import ClassVar
from urllib.parse import urlsplit

import pytest
from openai.types.chat import ChatCompletion
from pydantic import TypeAdapter

from tests.worlds.pipeline import recipe, world
from tests.worlds.servers import served_by
from unmdpo.core.errors import UserError
from unmdpo.core.files import read_lines
from unmdpo.data import Message
from unmdpo.engine.inference.judges import AnyJudge, EndpointSettings
from unmdpo.engine.inference.pairwise import PairwiseJudge, Question, candidate_is_first
from unmdpo.execute import execute
from unmdpo.results.run import open_run
from unmdpo.store.store import Store

PROMPT = (Message("user", "Say {something}."),)
ASKED = Question(PROMPT, "abc", "ours", "theirs")
HERE = EndpointSettings(endpoint="http://127.0.0.1:9/v1", model="judge")


def said(token, **likely):
    """A completion in the client's types."""
    tops = [{"token": t, "logprob": math.log(p), "bytes": None} for t, p in likely.items()]
    content = [{"token": token, "logprob": -0.1, "bytes": None, "top_logprobs": tops}]
    choice = {
        "index": 0,
        "finish_reason": "length",
        "message": {"role": "assistant", "content": token},
        "logprobs": {"content": content if likely else None},
    }
    described = {"id": "1", "created": 0, "model": "m", "object": "chat.completion", "choices": [choice]}
    return ChatCompletion.model_validate(described)


def test_places_are_drawn_by_a_fair_coin_that_anyone_can_throw_again():
    names = [f"prompt {i}" for i in range(2000)]
    first = [candidate_is_first(name, 1) for name in names]
    assert first == [candidate_is_first(name, 1) for name in names]
    assert 0.45 < sum(first) / len(first) < 0.55
    assert 0.4 < sum(a == candidate_is_first(n, 2) for a, n in zip(first, names, strict=True)) / 2000 < 0.6


def test_the_question_holds_all_texts_as_they_are():
    ((_, text),) = [message.values() for message in PairwiseJudge(HERE).prompt.ask(PROMPT, "{first} %s", "second\n{}")]
    for part in ("Say {something}.", "{first} %s", "second\n{}"):
        assert part in text


def test_spellings_of_a_label_count_together():
    judge = PairwiseJudge(HERE)
    found = judge.label_probabilities(said("A", **{"A": 0.3, " A": 0.1, "B": 0.2, "Both": 0.4}), ASKED)
    assert found == pytest.approx([0.4, 0.2])
    assert judge.label_probabilities(said("B", B=0.9), ASKED) == pytest.approx([0, 0.9])


def test_answers_without_labels_or_probabilities_are_errors():
    judge = PairwiseJudge(HERE)
    with pytest.raises(UserError, match="neither A nor B"):
        judge.label_probabilities(said("<think>", **{"<think>": 0.98, "A": 0.01}), ASKED)
    with pytest.raises(UserError, match="unexpected response"):
        judge.label_probabilities("<html>", ASKED)
    with pytest.raises(UserError, match="no log-probabilities"):
        judge.label_probabilities(said("A"), ASKED)


def test_an_endpoint_that_is_not_there_is_named():
    judge = PairwiseJudge(HERE)
    with pytest.raises(UserError, match=r"127\.0\.0\.1:9/v1 did not answer"):
        list(judge.answers([ASKED], seed=1))


@pytest.mark.parametrize(
    "given",
    [
        {"endpoint": "http://x/v1"},
        {"model": "m", "path": "p"},
        {"endpoint": "http://x/v1", "model": "m", "path": "p"},
        {"endpoint": "ftp://x", "model": "m"},
        {"endpoint": "http://user:secret@x/v1", "model": "m"},
    ],
)
def test_recipes_say_one_judge_whole(given):
    with pytest.raises(ValueError, match=r"judge|endpoint|pattern|unknown key"):
        TypeAdapter(AnyJudge).validate_python(given)


@pytest.mark.skipif("UNMDPO_TEST_ENDPOINT" not in os.environ, reason="no server is named")
def test_a_run_is_judged_by_a_real_server(tmp_path, monkeypatch):
    monkeypatch.setenv("A_SECRET", "sk-never-written")
    host = urlsplit(os.environ["UNMDPO_TEST_ENDPOINT"]).hostname
    monkeypatch.setenv("UNMDPO_ALLOW_KEYS", f"A_SECRET@{host}")
    folder = world(tmp_path)
    judge = {
        "endpoint": os.environ["UNMDPO_TEST_ENDPOINT"],
        "model": os.environ["UNMDPO_TEST_ENDPOINT_MODEL"],
        "key": "A_SECRET",
    }
    described = recipe(folder).model_dump()["evaluation"] | {"judge": judge}
    run = execute(open_run(recipe(folder, evaluation=described), Store(folder / "store")))
    ours = [row["score"] for row in read_lines(run.artifact("judgement[dpo,one]").file("scores.jsonl"))]
    assert ours == [0.5] * 3
    others = read_lines(run.artifact("judgement[initial,one]").file("scores.jsonl"))
    assert all(0 < row["score"] < 1 for row in others)
    again = PairwiseJudge(EndpointSettings(endpoint=judge["endpoint"], model=judge["model"]))
    panel = run.generations("initial", "one")
    baseline = run.generations("dpo", "one")
    asked = [
        Question(row["prompt"], other["prompt_hash"], row["text"], base["text"])
        for row, other, base in zip(panel, others, baseline, strict=True)
    ]
    found = dict(again.answers(asked, seed=42))
    expected = [0.5 if one.candidate == one.baseline else found[i] for i, one in enumerate(asked)]
    assert [row["score"] for row in others] == pytest.approx(expected, abs=1e-3)
    assert any(score != 0.5 for score in expected)
    for path in (folder / "store").rglob("*.json*"):
        assert "sk-never-written" not in path.read_text("utf-8")


class Canned(BaseHTTPRequestHandler):
    """A server that prefers A with probability 0.8, until its patience runs out."""

    patience: ClassVar[int] = 10**9
    asked: ClassVar[list[str]] = []

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if len(self.asked) >= self.patience:
            self.send_error(400, "out of patience")
            return
        self.asked.append(body["messages"][0]["content"])
        answer = said("A", A=0.8, B=0.2).model_dump_json().encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_):
        """Logs nothing."""


@pytest.fixture
def server():
    Canned.asked, Canned.patience = [], 10**9
    with served_by(Canned) as place:
        yield place


def test_a_run_asks_only_what_is_left(tmp_path, server):
    """The server stops after one answer; the next run asks only the other questions. Equal answers are never asked."""
    folder = world(tmp_path)
    judge = {"endpoint": server, "model": "canned"}
    described = recipe(folder).model_dump()["evaluation"] | {"judge": judge, "panels": {"one": {"size": 5, "seed": 1}}}
    run = open_run(recipe(folder, evaluation=described), Store(folder / "store"))
    execute(run, until="generation[initial,one]")
    execute(run, until="generation[dpo,one]")
    texts = [
        [row["text"] for row in read_lines(run.artifact(f"generation[{name},one]").file("generations.jsonl"))]
        for name in ("initial", "dpo")
    ]
    different = sum(ours != theirs for ours, theirs in zip(*texts, strict=True))
    assert different >= 2
    Canned.patience = 1
    with pytest.raises(UserError, match="did not answer"):
        execute(run, until="judgement[initial,one]")
    Canned.patience = 10**9
    execute(run, until="judgement[initial,one]")
    assert len(Canned.asked) == len(set(Canned.asked)) == different
    scores = read_lines(run.artifact("judgement[initial,one]").file("scores.jsonl"))
    for row, ours, theirs in zip(scores, *texts, strict=True):
        first = candidate_is_first(row["prompt_hash"], run.recipe.seed)
        expected = 0.5 if ours == theirs else 0.8 if first else 0.2
        assert row["score"] == pytest.approx(expected)


def test_a_preference_is_relative_to_both_labels():
    """The judge may also say other words: A with 0.3 and B with 0.1 prefers A by three to one."""
    asked = Question(PROMPT, "abc", "yes", "no")
    ahead = candidate_is_first("abc", 1)
    assert PairwiseJudge(HERE)._preference(Saying(said("A", A=0.3, B=0.1)), asked, 1) == pytest.approx(
        0.75 if ahead else 0.25
    )


class Saying:
    """A client whose every answer is this one."""

    def __init__(self, completion):
        self.chat = self.completions = self
        self.create = lambda **asked: completion
