"""Judges that say who is better: both orders, ties, what it costs, and answers that say nothing."""

import json
from http.server import BaseHTTPRequestHandler
from typing import ClassVar

import pytest

from tests.worlds.pipeline import recipe, world
from tests.worlds.servers import served_by
from unmdpo.core.errors import UnmdpoWarning, UserError
from unmdpo.data import Message
from unmdpo.engine.inference.judge_prompt import JudgePrompt
from unmdpo.engine.inference.judges import EndpointSettings
from unmdpo.engine.inference.pairwise import Question
from unmdpo.engine.inference.text_judge import TextJudge
from unmdpo.execute import execute
from unmdpo.results.run import open_run
from unmdpo.store.store import Store


class Judge(BaseHTTPRequestHandler):
    """Says what `says` makes of the two responses."""

    says: ClassVar = None
    asked: ClassVar[list[str]] = []

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        text = body["messages"][0]["content"]
        Judge.asked.append(text)
        first, second = (text.partition(f'name="{name}">\n')[2].partition("\n</")[0] for name in "AB")
        message = {"role": "assistant", "content": Judge.says(first, second)}
        choice = {"index": 0, "finish_reason": "stop", "message": message}
        usage = {"prompt_tokens": 100, "completion_tokens": 3, "total_tokens": 103}
        made = {
            "id": "1",
            "created": 0,
            "model": "m",
            "object": "chat.completion",
            "choices": [choice],
            "usage": usage,
        }
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        self.wfile.write(json.dumps(made).encode())

    def log_message(self, *_):
        pass


@pytest.fixture
def endpoint(monkeypatch):
    monkeypatch.setattr(Judge, "asked", [])
    with served_by(Judge) as address:
        yield address


def longer(first, second):
    return "tie" if len(first) == len(second) else "AB"[len(second) > len(first)]


def ask(endpoint, says, pairs, monkeypatch, **more):
    monkeypatch.setattr(Judge, "says", staticmethod(says))
    judge = TextJudge(EndpointSettings(endpoint=endpoint, model="m", logprobs=False, **more))
    questions = [Question((Message("user", "hi"),), f"{n}", *pair) for n, pair in enumerate(pairs)]
    return dict(judge.answers(questions, 1)), judge.spent


@pytest.mark.parametrize(
    ("said", "found"),
    [
        ("A", 1.0), ("B.", 0.0), ("tie", 0.5), ("Tie", 0.5), ("TIE", 0.5), ("**A**", 1.0), ("[[ tie ]]", 0.5),
        ("A is fine, B is better.\n\n[[B]]\n", 0.0), ("A\n\nResponse B is", 1.0), ('{"verdict": "B"}', 0.0),
        ("I cannot say", None), ("", None), ("Response A is worse.", None), ("Not A", None), ("{}", None),
        ("[[A]] is wrong, so: [[B]]", None), ("Response B is better", None), ("A is better than B.", None),
        ("B. A more complete answer", None), ("Neither A nor B", None), ('{"A": 3, "B": 4}', None), ("3", None),
    ],
)  # fmt: skip
def test_what_a_verdict_is(said, found):
    assert JudgePrompt(()).verdict(said) == found


def test_both_orders_and_what_they_cost(endpoint, monkeypatch):
    pairs = [("long answer", "short"), ("x", "longer"), ("same", "size")]
    found, spent = ask(endpoint, longer, pairs, monkeypatch)
    assert found == {0: 1.0, 1: 0.0, 2: 0.5}
    assert spent == {"asked": 6, "unclear": 0, "tokens_read": 600, "tokens_written": 18}


def test_a_judge_that_likes_a_place_says_nothing(endpoint, monkeypatch):
    assert ask(endpoint, lambda *_: "A", [("x", "y")], monkeypatch)[0] == {0: 0.5}


def test_reasons_come_before_the_verdict(endpoint, monkeypatch):
    found, _ = ask(endpoint, lambda a, b: f"B is short.\n[[{longer(a, b)}]]", [("xx", "y")], monkeypatch, reasons=True)
    assert found == {0: 1.0}
    assert "Answer with one letter" not in Judge.asked[0]
    assert "[[tie]]" in Judge.asked[0]


def test_answers_without_a_verdict(endpoint, monkeypatch):
    pairs = [("xx", f"{n}") for n in range(10)]
    with pytest.warns(UnmdpoWarning, match="1 of 20 answers of the judge had no verdict"):
        found, _ = ask(endpoint, lambda a, b: "?" if a == "3" else longer(a, b), pairs, monkeypatch)
    assert found[3] == 0.75
    with pytest.raises(UserError, match=r"no verdict in \d+ of \d+ answers"):
        ask(endpoint, lambda *_: "no idea", pairs, monkeypatch)


def test_what_had_no_verdict_is_reported_last(endpoint, monkeypatch):
    """Whoever keeps answers as they come must not keep ties that nobody has said, if there are too many of them."""
    monkeypatch.setattr(Judge, "says", staticmethod(lambda a, b: "A" if "x" in (a, b) else "no idea"))
    judge = TextJudge(EndpointSettings(endpoint=endpoint, model="m", logprobs=False))
    questions = [Question((Message("user", "hi"),), one, one, "b") for one in "uvwx"]
    kept = []
    with pytest.raises(UserError, match="no verdict in 6 of 8 answers"):
        kept.extend(place for place, _ in judge.answers(questions, 1))
    assert kept == [3]  # the only one that was clear
    judge = TextJudge(EndpointSettings(endpoint=endpoint, model="m", logprobs=False))
    judge.expected = 200  # most of the panel was judged before
    with pytest.warns(UnmdpoWarning, match="6 of 8 answers"):
        assert sorted(place for place, _ in judge.answers(questions, 1)) == [0, 1, 2, 3]


def judged(folder, endpoint):
    judge = {"endpoint": endpoint, "model": "m", "logprobs": False}
    evaluation = recipe(folder).model_dump()["evaluation"] | {"judge": judge, "initial": False}
    policies = {"dpo": {"objective": "dpo"}, "simpo": {"objective": "simpo"}}
    return open_run(recipe(folder, evaluation=evaluation, policies=policies, scales={}), Store(folder / "s"))


def test_a_whole_run(endpoint, monkeypatch, tmp_path):
    monkeypatch.setattr(Judge, "says", staticmethod(longer))
    run = execute(judged(world(tmp_path), endpoint))
    assert run.summarized
    assert "spent" in run.artifact("judgement[simpo,one]").manifest["notes"]


def test_reasons_need_words():
    with pytest.raises(ValueError, match="reasons need logprobs: false"):
        EndpointSettings(endpoint="http://x/v1", model="m", reasons=True)
