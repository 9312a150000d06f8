"""Servers that answer anything: one sentence, that never repeats the key."""

import base64
import contextlib
import json
from http.server import BaseHTTPRequestHandler
from typing import ClassVar

import pytest

from tests.worlds.models import word_tokenizer
from tests.worlds.pipeline import recipe, world
from tests.worlds.servers import served_by
from unmdpo.core.errors import UserError
from unmdpo.data.identity import Message
from unmdpo.engine.inference import endpoints
from unmdpo.engine.inference.endpoints import Endpoint, secret_of, shown
from unmdpo.engine.inference.judges import EndpointSettings
from unmdpo.engine.inference.pairwise import PairwiseJudge, Question
from unmdpo.engine.inference.remote import RemoteGenerator
from unmdpo.execute import execute
from unmdpo.results.run import open_run
from unmdpo.store.store import Store

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
    monkeypatch.setenv("UNMDPO_ALLOW_KEYS", "OPENAI_API_KEY@127.0.0.1")


def told(ask):
    with pytest.raises(UserError) as caught:
        ask()
    assert SECRET not in str(caught.value)
    assert len(str(caught.value)) < 700
    assert "127.0.0.1" in str(caught.value)


@pytest.mark.parametrize("case", ODD)
def test_odd_answers_are_reported(address, case):
    Odd.reply = ODD[case]
    generator = RemoteGenerator(Endpoint(endpoint=address, model="m", key="OPENAI_API_KEY"), word_tokenizer(), 5)
    told(lambda: list(generator.generate([PROMPT])))


@pytest.mark.parametrize("case", ODD_JUDGES)
def test_odd_verdicts_are_reported(address, case):
    Odd.reply = ODD_JUDGES[case]
    judge = PairwiseJudge(EndpointSettings(endpoint=address, model="m", key="OPENAI_API_KEY"))
    told(lambda: list(judge.answers([Question(PROMPT, "abc", "yes", "no")], seed=1)))


class Endless(BaseHTTPRequestHandler):
    def do_POST(self):
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        with contextlib.suppress(OSError):  # until the other side has had enough
            while True:
                self.wfile.write(b" " * 65536)

    def log_message(self, *_):
        """Logs nothing."""


def test_an_answer_without_end_is_not_read_to_its_end(monkeypatch):
    monkeypatch.setattr(endpoints, "LARGEST", 1 << 20)
    with served_by(Endless) as place:
        generator = RemoteGenerator(Endpoint(endpoint=place, model="m"), word_tokenizer(), 5)
        with pytest.raises(UserError, match="it sent more than 1 MiB"):
            list(generator.generate([PROMPT]))


def test_plain_answers_are_taken(address):
    Odd.reply = (200, completion("fine"))
    generator = RemoteGenerator(Endpoint(endpoint=address, model="m", key="OPENAI_API_KEY"), word_tokenizer(), 5)
    ((answer,),) = generator.generate([PROMPT])
    assert answer.text == "fine"
    Odd.reply = (200, completion("A", likely(("A", -0.1), ("B", -2.4))))
    judge = PairwiseJudge(EndpointSettings(endpoint=address, model="m", key="OPENAI_API_KEY"))
    ((place, preferred),) = judge.answers([Question(PROMPT, "abc", "yes", "no")], seed=1)
    assert place == 0
    assert 0 < preferred < 1


@pytest.mark.parametrize("place", ["http://x/v1?key=secret", "http://me:secret@x/v1", "http://x/v1#key"])
def test_no_key_is_part_of_an_address(place):
    for kind in (Endpoint, EndpointSettings):
        with pytest.raises(ValueError, match="endpoint"):
            kind(endpoint=place, model="m")


HERE = Endpoint(endpoint="http://localhost:8000/v1", model="m", key="SOME_KEY")


def test_nothing_is_shown_of_a_server_that_was_sent_a_key(monkeypatch):
    """Which it may repeat as it likes: in base64, or without its ends."""
    assert shown("none of the models is loaded", HERE) == "none of the models is loaded"
    monkeypatch.setenv("SOME_KEY", SECRET)
    monkeypatch.setenv("UNMDPO_ALLOW_KEYS", "SOME_KEY@localhost")
    for said in (SECRET, base64.b64encode(SECRET.encode()).decode(), SECRET[1:-1]):
        assert shown(f"bad key {said}", HERE) == "not shown, since the server was sent a key"


def test_keys_are_sent_where_they_belong_or_where_the_user_says(monkeypatch):
    monkeypatch.delenv("UNMDPO_ALLOW_KEYS")
    openai = Endpoint(endpoint="https://api.openai.com/v1", model="m")
    assert secret_of(HERE) is None
    monkeypatch.setenv("OPENAI_API_KEY", SECRET)
    assert secret_of(openai) == SECRET
    for open_to_all in ("http://api.openai.com/v1", "https://api.openai.com:8443/v1"):
        assert secret_of(Endpoint(endpoint=open_to_all, model="m")) is None
    assert secret_of(Endpoint(endpoint="http://localhost:8000/v1", model="m")) is None  # nobody asked for it
    monkeypatch.setenv("SOME_KEY", SECRET)
    elsewhere = openai.model_copy(update={"key": "SOME_KEY"}), HERE.model_copy(update={"key": "OPENAI_API_KEY"})
    for stolen in (HERE, *elsewhere):
        with pytest.raises(UserError, match="export UNMDPO_ALLOW_KEYS="):
            secret_of(stolen)
    monkeypatch.setenv("UNMDPO_ALLOW_KEYS", "SOME_KEY@localhost")
    assert secret_of(HERE) == SECRET


def test_a_recipe_that_wants_a_key_elsewhere_stops_before_any_work(tmp_path, monkeypatch):
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    folder = world(tmp_path)
    stealing = {"endpoint": "http://127.0.0.1:1/v1", "model": "m", "key": "AWS_SECRET_ACCESS_KEY"}
    described = recipe(folder).model_dump()["evaluation"]
    for evaluation in (described | {"judge": stealing}, described | {"generator": stealing}):
        run = open_run(recipe(folder, evaluation=evaluation), Store(folder / "store"))
        with pytest.raises(UserError, match="wants to send what the variable AWS_SECRET_ACCESS_KEY holds to 127"):
            execute(run)
        assert not run.finished.keys() & {"encoded", "policy[dpo]"}
