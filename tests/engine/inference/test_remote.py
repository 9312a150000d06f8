"""Answers from a server: many at once, retried when it is busy, never asked for twice.

If `UNMDPO_TEST_ENDPOINT` and `UNMDPO_TEST_ENDPOINT_MODEL` name a language model server, it answers a whole panel.
"""

import json
import os
import threading
import time
from http.server import BaseHTTPRequestHandler
from typing import ClassVar

import pytest

from tests.worlds.pipeline import recipe, world
from tests.worlds.servers import served_by
from unmdpo.core.errors import UserError
from unmdpo.core.files import read_lines
from unmdpo.engine.inference import remote as served
from unmdpo.execute import execute
from unmdpo.results.run import open_run
from unmdpo.store.store import Store

ANSWERED = {"one": {"size": 6, "seed": 1}}


class Server(BaseHTTPRequestHandler):
    """Answers with the question's last words and the model's name; says twice that it is busy, if asked to."""

    patience: ClassVar[int] = 10**9
    busy: ClassVar[int] = 0
    asked: ClassVar[list[dict]] = []
    lock: ClassVar = threading.Lock()
    at_once: ClassVar[list[int]] = [0, 0]  # now, and most

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with Server.lock:
            if Server.busy > 0:
                Server.busy -= 1
                return self.send_error(503, "busy")
            if len(Server.asked) >= Server.patience:
                return self.send_error(400, "no such model")
            Server.asked.append(body | {"key": self.headers["Authorization"]})
            number = len(Server.asked)
            Server.at_once[0] += 1
            Server.at_once[1] = max(Server.at_once)
        time.sleep(0.2)
        choice = {
            "index": 0,
            "finish_reason": "length" if number % 2 else "stop",
            "message": {"role": "assistant", "content": f"{body['messages'][-1]['content'][-5:]} {body['model']}"},
        }
        answer = json.dumps({
            "id": "1", "created": 0, "model": body["model"], "object": "chat.completion", "choices": [choice],
            "usage": {"prompt_tokens": 3, "completion_tokens": 7, "total_tokens": 10},
        }).encode()  # fmt: skip
        with Server.lock:
            Server.at_once[0] -= 1
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)
        return None

    def log_message(self, *_):
        """Logs nothing."""


@pytest.fixture
def server():
    Server.asked, Server.patience, Server.busy, Server.at_once = [], 10**9, 0, [0, 0]
    with served_by(Server) as place:
        yield place


def opened(folder, **changes):
    described = recipe(folder).model_dump()["evaluation"] | {"panels": ANSWERED} | changes
    return open_run(recipe(folder, evaluation=described), Store(folder / "store"))


def texts(run, name):
    return [row["text"] for row in read_lines(run.artifact(f"generation[{name},one]").file("generations.jsonl"))]


def test_a_hosted_opponent_answers_the_panel(tmp_path, server, monkeypatch):
    monkeypatch.setenv("HOSTED_KEY", "sk-secret")
    monkeypatch.setenv("UNMDPO_ALLOW_KEYS", "OTHER@example.com,HOSTED_KEY@127.0.0.1")
    folder, hosted = world(tmp_path), {"endpoint": server, "model": "large", "key": "HOSTED_KEY"}
    run = execute(opened(folder, answers={"hosted": hosted}), until="judgement[hosted,one]")
    prompts = run.panel("one").prompts
    assert texts(run, "hosted") == [f"{prompt[-1].content[-5:]} large" for prompt in prompts]
    rows = list(read_lines(run.artifact("generation[hosted,one]").file("generations.jsonl")))
    assert {row["tokens"] for row in rows} == {7}
    assert {row["finished"] for row in rows} == {True, False}
    assert all(asked["temperature"] == 0 and asked["max_tokens"] for asked in Server.asked)
    assert {asked["key"] for asked in Server.asked} == {"Bearer sk-secret"}
    assert Server.at_once[1] > 1
    assert all("sk-secret" not in path.read_text("utf-8") for path in (folder / "store").rglob("*.json*"))


def test_policies_answer_from_a_server_by_their_names(tmp_path, server):
    folder = world(tmp_path)
    run = opened(folder, generator={"endpoint": server, "model": "run-{policy}"})
    execute(run, until="generation[dpo,one]")
    assert all(text.endswith("run-dpo") for text in texts(run, "dpo"))
    assert run.artifact("generation[dpo,one]").manifest["notes"]["served_as"] == "run-dpo"
    assert "policy[dpo]" in run.finished


def test_answers_are_kept_when_the_server_gives_up_and_busy_ones_are_asked_again(tmp_path, server):
    folder = world(tmp_path)
    run = opened(folder, generator={"endpoint": server, "model": "run-{policy}"})
    Server.patience = 2
    with pytest.raises(UserError, match=r"did not answer prompt \d+ as 'run-dpo'.*Is the policy served\? It lies in"):
        execute(run, until="generation[dpo,one]")
    Server.patience, Server.busy = 10**9, 2
    execute(run, until="generation[dpo,one]")
    questions = [asked["messages"][-1]["content"] for asked in Server.asked]
    assert len(questions) == len(set(questions)) == 6


def test_a_server_that_is_not_there_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(served, "RETRIES", 1)
    run = opened(world(tmp_path), answers={"hosted": {"endpoint": "http://127.0.0.1:9/v1", "model": "m"}})
    with pytest.raises(UserError, match=r"127\.0\.0\.1:9/v1 did not answer"):
        execute(run, until="generation[hosted,one]")


@pytest.mark.skipif("UNMDPO_TEST_ENDPOINT" not in os.environ, reason="no server is named")
def test_a_real_server_answers_a_panel(tmp_path):
    hosted = {"endpoint": os.environ["UNMDPO_TEST_ENDPOINT"], "model": os.environ["UNMDPO_TEST_ENDPOINT_MODEL"]}
    run = execute(opened(world(tmp_path), answers={"hosted": hosted}), until="generation[hosted,one]")
    assert len(texts(run, "hosted")) == 6
