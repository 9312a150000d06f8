"""Servers that answer anything: one sentence, that never repeats the key."""

import json
from http.server import BaseHTTPRequestHandler
from typing import ClassVar

import pytest

from tests.worlds.models import word_tokenizer
from tests.worlds.servers import served_by
from unmdpo.core.errors import UserError
from unmdpo.data.identity import Message
from unmdpo.engine.inference.endpoints import Endpoint, redacted
from unmdpo.engine.inference.judges import EndpointSettings
from unmdpo.engine.inference.pairwise import PairwiseJudge, Question
from unmdpo.engine.inference.remote import RemoteGenerator

pytest.importorskip("openai")
SECRET = "sk-very-secret"
PROMPT = (Message("user", "Which?"),)


def completion(content, logprobs=None, **more):
    message = {"role": "assistant", "content": content}
    choice = {"index": 0, "finish_reason": "stop", "message": message, "logprobs": logprobs} | more
    return json.dumps({"id": "1", "created": 0, "model": "m", "object": "chat.completion", "choices": [choice]})


def likely(*values):
    top = [{"token": token, "logprob": value} for token, value in values]
    return {"content": [{"token": "A", "logprob": 0.0, "top_logprobs": top}]}


ODD = {
    "nothing": (204, ""),
    "broken": (200, '{"choices": ['),
    "null": (200, "null"),
    "a list": (200, "[1, 2]"),
    "a number for choices": (200, '{"choices": 3}'),
    "no message": (200, '{"choices": [{}]}'),
    "null for a message": (200, completion(None)),
    "a list for a message": (200, completion(["a", {"b": 1}])),
    "megabytes": (200, completion("x" * 3_000_000)),
    "html": (200, "<html>" + "x" * 100_000),
    "the key": (400, json.dumps({"error": {"message": f"bad key {SECRET}"}})),
}
ODD_JUDGES = ODD | {
    "not a number": (200, completion("A", likely(("A", float("nan")), ("B", -1.0)))),
    "more than certain": (200, completion("A", likely(("A", 5.0), ("B", -1.0)))),
    "infinitely so": (200, completion("A", likely(("A", 1e308), ("B", -1.0)))),
    "text for a number": (200, completion("A", likely(("A", "high"), ("B", -1.0)))),
    "null for a token": (200, completion("A", likely((None, -1.0)))),
    "text for probabilities": (200, completion("A", "high")),
}


class Odd(BaseHTTPRequestHandler):
    reply: ClassVar[tuple[int, str]] = (200, "")

    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        status, body = Odd.reply
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, *_):
        """Logs nothing."""


@pytest.fixture(scope="module")
def address():
    with served_by(Odd) as place:
        yield place


@pytest.fixture(autouse=True)
def key(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", SECRET)


def told(ask):
    with pytest.raises(UserError) as caught:
        ask()
    assert SECRET not in str(caught.value)
    assert len(str(caught.value)) < 700
    assert "127.0.0.1" in str(caught.value)


@pytest.mark.parametrize("case", ODD)
def test_odd_answers_are_reported(address, case):
    Odd.reply = ODD[case]
    generator = RemoteGenerator(Endpoint(endpoint=address, model="m"), word_tokenizer(), 5)
    told(lambda: list(generator.generate([PROMPT])))


@pytest.mark.parametrize("case", ODD_JUDGES)
def test_odd_verdicts_are_reported(address, case):
    Odd.reply = ODD_JUDGES[case]
    judge = PairwiseJudge(EndpointSettings(endpoint=address, model="m"))
    told(lambda: list(judge.answers([Question(PROMPT, "abc", "yes", "no")], seed=1)))


def test_plain_answers_are_taken(address):
    Odd.reply = (200, completion("fine"))
    generator = RemoteGenerator(Endpoint(endpoint=address, model="m"), word_tokenizer(), 5)
    ((answer,),) = generator.generate([PROMPT])
    assert answer.text == "fine"
    Odd.reply = (200, completion("A", likely(("A", -0.1), ("B", -2.4))))
    judge = PairwiseJudge(EndpointSettings(endpoint=address, model="m"))
    ((place, preferred),) = judge.answers([Question(PROMPT, "abc", "yes", "no")], seed=1)
    assert place == 0
    assert 0 < preferred < 1


@pytest.mark.parametrize("place", ["http://x/v1?key=secret", "http://me:secret@x/v1", "http://x/v1#key"])
def test_no_key_is_part_of_an_address(place):
    for kind in (Endpoint, EndpointSettings):
        with pytest.raises(ValueError, match="endpoint"):
            kind(endpoint=place, model="m")


def test_a_word_that_is_no_secret_is_not_cut_out_of_messages(monkeypatch):
    monkeypatch.setenv("SOME_KEY", "none")
    assert redacted("none of the models is loaded", "SOME_KEY") == "none of the models is loaded"
    monkeypatch.setenv("SOME_KEY", SECRET)
    assert SECRET not in redacted(f"bad key {SECRET}", "SOME_KEY")
