"""A policy behind a vLLM server of its own, for as long as it is needed.

vLLM is run as a command, `vllm serve`, so it may live in an environment of its own: its versions of PyTorch and
Transformers need not be ours.
"""

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO
from urllib.error import URLError
from urllib.request import urlopen

from unmdpo.core.errors import UserError
from unmdpo.core.processes import FAREWELL
from unmdpo.engine.inference.endpoints import Endpoint
from unmdpo.engine.settings import ModelSource

PATIENCE, POLL = 900.0, 0.5  # seconds until a server must be ready, and between looks
TORCHRUN = ("TORCHELASTIC_", "RANK", "LOCAL_", "WORLD_SIZE", "MASTER_", "GROUP_", "ROLE_")
REMARKS = 20  # last lines of a server that failed


@dataclass(frozen=True)
class Served:
    """What is served: a model's folder, perhaps with an adapter beside it."""

    name: str
    model: ModelSource
    adapter: Path | None = None
    adapter_rank: int | None = None
    gpus: int = 1  # that share the model

    def command(self, port: int) -> list[str]:
        command = [
            _executable(), "serve", self.model.path, "--port", str(port), "--host", "127.0.0.1",
            "--tensor-parallel-size", str(self.gpus), "--generation-config", "vllm", *self._options(),
        ]  # fmt: skip
        if self.adapter is None:
            return [*command, "--served-model-name", self.name]
        rank = [] if self.adapter_rank is None else ["--max-lora-rank", str(self.adapter_rank)]
        return [*command, "--enable-lora", "--lora-modules", f"{self.name}={self.adapter}", *rank]

    def _options(self) -> list[str]:
        """What the recipe says about the model besides its place."""
        model, options = self.model, list[str]()
        if model.revision is not None:
            options += ["--revision", model.revision, "--tokenizer-revision", model.revision]
        if model.trust_remote_code:
            options.append("--trust-remote-code")
        if model.template is not None:
            options += ["--chat-template", model.template]  # text or a file, for vLLM too
        if model.chat_template:
            options += ["--default-chat-template-kwargs", json.dumps(model.chat_template)]
        return options


@contextlib.contextmanager
def serving(served: Served, more: Sequence[str] = ()) -> Iterator[Endpoint]:
    """The endpoint of a server that ends with this context; `more` arguments are for vLLM."""
    port = _free_port()
    with (
        tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as said,
        subprocess.Popen(
            [sys.executable, "-P", "-m", "unmdpo.core.processes", *served.command(port), *more],
            stdin=subprocess.PIPE,  # the server ends when this is closed, so also if this process is killed
            stdout=said,
            stderr=subprocess.STDOUT,
            env=_environment(),
            start_new_session=True,  # so that Ctrl-C is for us alone
        ) as server,
    ):
        try:
            _wait(server, port)
            yield Endpoint(endpoint=f"http://127.0.0.1:{port}/v1", model=served.name)
        except UserError as error:
            if server.poll() is None:
                raise
            raise UserError(f"{error}\n{_last_words(server, said)}") from error
        finally:
            _end(server)


def _wait(server: "subprocess.Popen[bytes]", port: int) -> None:
    until = time.monotonic() + PATIENCE
    while time.monotonic() < until:
        if server.poll() is not None:
            raise UserError("vLLM ended before it was ready")
        with contextlib.suppress(URLError, OSError), urlopen(f"http://127.0.0.1:{port}/health", timeout=5):
            return
        time.sleep(POLL)
    raise UserError(f"vLLM was not ready after {PATIENCE / 60:.0f} minutes")


def _end(server: "subprocess.Popen[bytes]") -> None:
    assert server.stdin is not None
    server.stdin.close()
    try:
        server.wait(2 * FAREWELL)
    except subprocess.TimeoutExpired:
        server.kill()


def _environment() -> dict[str, str]:
    """Ours, without what `torchrun` says to its ranks, which is not meant for vLLM's."""
    return {name: value for name, value in os.environ.items() if not name.startswith(TORCHRUN)}


def _last_words(server: "subprocess.Popen[bytes]", said: IO[str]) -> str:
    said.seek(0)
    return f"vLLM ended with code {server.returncode}:\n{''.join(said.readlines()[-REMARKS:])}"


def _executable() -> str:
    found = shutil.which("vllm")
    if found is None:
        raise UserError(
            "evaluation.generator is vllm, but there is no command `vllm`: install vLLM, in this environment or in "
            "another one whose bin folder is on the PATH"
        )
    return found


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
    return port
