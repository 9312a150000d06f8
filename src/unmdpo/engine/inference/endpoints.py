"""Models behind an OpenAI-compatible API: their settings, how they are called, and their errors."""

import contextlib
import os
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Self, TypeVar

from pydantic import Field

from unmdpo.core.errors import UserError, printable
from unmdpo.core.settings import Strict

if TYPE_CHECKING:
    from openai import OpenAI

Q = TypeVar("Q")
A = TypeVar("A")
ADDRESS = r"^https?://[^@?#\s]+$"  # keys and passwords belong in the environment
SHOWN = 300  # characters
SHORTEST = 8  # characters of a secret: servers that want none are given any word, which may be anywhere in a message
ODD = (ValueError, TypeError, LookupError, AttributeError, ArithmeticError)  # of reading what has another shape


class Vllm(Strict):
    vllm: list[str] = Field(description="further arguments for `vllm serve`, such as --dtype float32")


class Endpoint(Strict):
    """`key` names an environment variable, so the secret itself is never part of any settings."""

    endpoint: str = Field(pattern=ADDRESS, description="URL of an OpenAI-compatible API, without any key")
    model: str = Field(description="the model's name at the endpoint; {policy} is replaced by the policy's name")
    key: str = Field("OPENAI_API_KEY", description="environment variable with the endpoint's API key")

    def naming(self, policy: str) -> Self:
        """The endpoint for one policy."""
        return self.model_copy(update={"model": self.model.replace("{policy}", policy)})


@contextlib.contextmanager
def explain_errors(who: str, key: str, advice: str = "") -> Iterator[None]:
    """Explains a server that does not answer, or not in the shape that was asked for. `key` names the environment
    variable with the secret, which no message repeats."""
    from openai import OpenAIError  # noqa: PLC0415 - an extra

    try:
        yield
    except UserError:
        raise
    except OpenAIError as error:
        raise UserError(f"{who} did not answer{advice and ' ' + advice}: {redacted(error, key)}") from None
    except ODD as error:
        what = f"{type(error).__name__}: {redacted(error, key)}"
        raise UserError(f"{who} returned an unexpected response ({what})") from None


def redacted(what: object, key: str) -> str:
    """Enough of it for a message."""
    text, secret = str(what), os.environ.get(key)
    if secret and len(secret) >= SHORTEST:
        text = text.replace(secret, "…")
    return printable(text if len(text) <= SHOWN else text[:SHOWN] + "…")


def open_client(settings: Endpoint, retries: int = 2) -> "OpenAI":
    try:
        from openai import OpenAI  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise UserError("an endpoint needs the OpenAI client: pip install 'unmdpo[endpoint]'") from error
    # local servers need no key, but the client insists on one
    key = os.environ.get(settings.key) or "none"
    return OpenAI(base_url=settings.endpoint, api_key=key, max_retries=retries)


def as_they_arrive(asked: Sequence[Q], ask: Callable[[Q], A], workers: int) -> Generator[tuple[int, A]]:
    """Asks several at once, and yields each one's index with its answer. After a failure nothing new is asked, but
    what is under way is still waited for: it may have cost money. After a stop nothing is waited
    for, since a server may never answer."""
    waiting, answers = SimpleQueue[tuple[int, Q]](), SimpleQueue[tuple[int, A] | Exception | None]()
    for place, one in enumerate(asked):
        waiting.put((place, one))
    stopped = threading.Event()

    def work() -> None:
        with contextlib.suppress(Empty):
            while not stopped.is_set():
                place, one = waiting.get_nowait()
                try:
                    answers.put((place, ask(one)))
                except Exception as error:
                    stopped.set()
                    answers.put(error)
        answers.put(None)

    running, problem = min(workers, len(asked)), None
    for _ in range(running):
        threading.Thread(target=work, daemon=True).start()
    try:
        while running:
            answer = answers.get()
            if answer is None:
                running -= 1
            elif isinstance(answer, Exception):
                problem = problem or answer
            else:
                yield answer
    finally:
        stopped.set()
    if problem is not None:
        raise problem
