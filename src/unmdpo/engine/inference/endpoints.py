"""Models behind an OpenAI-compatible API: their settings, how they are called, and their errors."""

import contextlib
import os
import threading
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, Self, TypeVar
from urllib.parse import urlsplit

from pydantic import Field, field_validator

from unmdpo.core.errors import UserError, printable
from unmdpo.core.extras import needed
from unmdpo.core.settings import Strict

if TYPE_CHECKING:
    from openai import OpenAI

Q = TypeVar("Q")
A = TypeVar("A")
ADDRESS = r"^https?://[^@?#\s]+$"  # keys and passwords belong in the environment
SHOWN = 300  # characters
LARGEST, LONGEST = 1 << 24, 600.0  # bytes of an answer, and seconds that it may take to arrive
ODD = (ValueError, TypeError, LookupError, AttributeError, ArithmeticError)  # of reading what has another shape
ALLOWED = "UNMDPO_ALLOW_KEYS"
USUAL = {  # host → the variable that its provider's own client reads
    "api.openai.com": "OPENAI_API_KEY", "api.anthropic.com": "ANTHROPIC_API_KEY", "api.mistral.ai": "MISTRAL_API_KEY",
    "generativelanguage.googleapis.com": "GEMINI_API_KEY", "api.groq.com": "GROQ_API_KEY", "api.x.ai": "XAI_API_KEY",
    "openrouter.ai": "OPENROUTER_API_KEY", "api.deepseek.com": "DEEPSEEK_API_KEY",
    "api.together.xyz": "TOGETHER_API_KEY", "api.fireworks.ai": "FIREWORKS_API_KEY",
    "router.huggingface.co": "HF_TOKEN", "integrate.api.nvidia.com": "NVIDIA_API_KEY",
}  # fmt: skip


class Endpoint(Strict):
    """`key` names an environment variable, so the secret itself is never part of any settings."""

    endpoint: str = Field(pattern=ADDRESS, description="URL of an OpenAI-compatible API, without any key")
    model: str = Field(description="the model's name at the endpoint; {policy} is replaced by the policy's name")
    key: str | None = Field(
        None, description="environment variable with the API key; default: the usual one of the host's provider"
    )

    @field_validator("endpoint")
    @classmethod
    def _check_address(cls, endpoint: str) -> str:
        place = urlsplit(endpoint)  # raises for half an IPv6 address, and `port` for what is no port
        if not place.hostname or place.port == 0:
            raise ValueError("there is no host, or no port 0")
        return endpoint

    def naming(self, policy: str) -> Self:
        """The endpoint for one policy."""
        return self.model_copy(update={"model": self.model.replace("{policy}", policy)})


def secret_of(settings: Endpoint) -> str | None:
    """What the variable holds, if there is one. A recipe may come from anywhere, so it cannot send a variable to a
    host of its choice: that is for the user to allow, outside the recipe."""
    place = urlsplit(settings.endpoint)
    host = place.hostname or ""
    usual = USUAL.get(host) if place.scheme == "https" and place.port in (None, 443) else None
    name = settings.key or usual
    secret = os.environ.get(name) if name else None
    if secret and usual != name and f"{name}@{host}" not in os.environ.get(ALLOWED, "").split(","):
        raise UserError(
            f"the recipe wants to send what the variable {name} holds to {host}. If you trust both, allow it: "
            f"export {ALLOWED}={name}@{host}"
        )
    return secret or None


class EndlessAnswer(ValueError):
    """A server that does not stop sending."""


@contextlib.contextmanager
def explain_errors(settings: Endpoint, who: str, advice: str = "") -> Iterator[None]:
    """Explains a server that does not answer, or not in the shape that was asked for."""
    from openai import OpenAIError  # noqa: PLC0415 - an extra

    try:
        yield
    except UserError:
        raise
    except OpenAIError as error:
        if isinstance(error.__cause__, EndlessAnswer):
            raise UserError(f"{who} returned an unexpected response: {error.__cause__}") from None
        raise UserError(f"{who} did not answer{advice and ' ' + advice}: {shown(error, settings)}") from None
    except ODD as error:
        what = f"{type(error).__name__}: {shown(error, settings)}"
        raise UserError(f"{who} returned an unexpected response ({what})") from None


def shown(what: object, settings: Endpoint) -> str:
    """Enough of what a server sent for a message; nothing of it if it was sent a key, which it may repeat in any
    form."""
    from openai import APIConnectionError  # noqa: PLC0415 - an extra

    if secret_of(settings) is not None and not isinstance(what, APIConnectionError):
        status = getattr(what, "status_code", None)
        return f"HTTP status {status}" if isinstance(status, int) else "not shown, since the server was sent a key"
    text = str(what)
    return printable(text if len(text) <= SHOWN else text[:SHOWN] + "…")


def open_client(settings: Endpoint, retries: int = 2) -> "OpenAI":
    with needed("an endpoint", "endpoint"):
        from openai import DefaultHttpxClient, OpenAI  # noqa: PLC0415 - an extra

    client = DefaultHttpxClient(event_hooks={"response": [_read_all]})
    secret = secret_of(settings) or "none"  # local servers need no key, but the client insists on one
    return OpenAI(base_url=settings.endpoint, api_key=secret, max_retries=retries, http_client=client)


def _read_all(response: Any) -> None:
    """Reads the body, unpacked, up to a size and a time that no honest answer takes: a server may send without end."""
    content, until = bytearray(), time.monotonic() + LONGEST
    for part in response.iter_bytes():
        content += part
        if len(content) > LARGEST or time.monotonic() > until:
            raise EndlessAnswer(f"it sent more than {LARGEST >> 20} MiB, or for more than {LONGEST / 60:.0f} minutes")
    response._content = bytes(content)  # what `read` returns from now on


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
