"""Code that is not ours, in a process of its own: it may print, exit, hang or take all memory, and ends only itself.

    python -m unmdpo.core.isolated MODULE:FUNCTION FILE_DESCRIPTOR SECONDS MEMORY

is the child's side: arguments come and the result goes as JSON over the connection.
"""

import contextlib
import json
import math
import os
import resource
import signal
import subprocess
import sys
import time
import traceback
import warnings
from collections.abc import Sequence
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from typing import Any

from unmdpo.core.code import Code
from unmdpo.core.errors import OutOfMemory, UnmdpoWarning, UserError, printable
from unmdpo.core.processes import end_with_input

SHOWN = 200  # bytes of what it printed


def isolated(call: str, *arguments: Any, who: str, seconds: int = 0, memory: int = 0, advice: str = "") -> Any:
    """The result of a function of ours, `module:function`, that runs foreign code; JSON in, JSON out.

    What it prints is kept from the command's own output and shown as a warning. Everything that can go wrong is a
    UserError that begins with `who`: an exception, an exit, and, where a limit is given, more than `seconds` of
    computing (not of waiting: a busy machine is no fault of the code) or more than `memory` bytes.
    """
    ours, theirs = Pipe()
    command = [sys.executable, "-P", "-m", "unmdpo.core.isolated", call, *map(str, (theirs.fileno(), seconds, memory))]
    with subprocess.Popen(
        command,
        stdin=subprocess.PIPE,  # the child ends when this is closed, so also if this process is killed
        stdout=subprocess.PIPE,
        pass_fds=[theirs.fileno()],
        start_new_session=True,  # Ctrl-C is for the command alone
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    ) as child:
        theirs.close()
        try:
            reply = _reply(child, ours, arguments, who, seconds)
        finally:
            ours.close()
            child.kill()
    if "value" in reply:
        return reply["value"]
    if reply["kind"] == "OutOfMemoryError":
        raise OutOfMemory(f"{who}: {reply['error']}")
    raise UserError(f"{who}: {reply['error']}{advice and '; ' + advice}")


def _reply(
    child: "subprocess.Popen[bytes]", ours: Connection, arguments: Sequence[Any], who: str, seconds: int
) -> dict[str, Any]:
    """Sends the arguments, and waits for what comes back; what is printed meanwhile is counted and shown."""
    assert child.stdout is not None
    os.set_blocking(child.stdout.fileno(), False)
    printed, length = b"", 0

    def listen() -> bool:
        """Takes what was printed; whether the child still can print."""
        nonlocal printed, length
        while text := child.stdout.read():  # type: ignore[union-attr]
            printed, length = printed + text[: SHOWN - len(printed)], length + len(text)
        return text is None  # nothing for now; b"" is the end

    out = child.stdout.fileno()
    waiting: list[Connection | int] = [ours, out]
    try:
        with contextlib.suppress(OSError):  # it died already, which is noticed below
            ours.send_bytes(json.dumps(arguments).encode())
        while True:
            ready = wait(waiting)
            if out in ready and not listen():
                waiting.remove(out)
            if ours in ready:
                reply: dict[str, Any] = json.loads(ours.recv_bytes())
                return reply
    except (EOFError, OSError):
        if (code := child.wait()) == -signal.SIGXCPU:
            return {"kind": "", "error": f"did not finish within {seconds} s of computing"}
        return {"kind": "", "error": f"ended its process with exit code {code} before it returned anything"}
    finally:
        listen()
        if printed.strip():
            rest = f" and {length - SHOWN:,} bytes more" if length > SHOWN else ""
            text = printable(printed.decode("utf-8", "ignore").strip())
            warnings.warn(f"{who} printed: {text}{rest}", UnmdpoWarning, stacklevel=4)


def main(call: str, connection: str, seconds: str, memory: str) -> None:
    end_with_input()
    if int(seconds):
        until = math.ceil(time.process_time()) + int(seconds)
        resource.setrlimit(resource.RLIMIT_CPU, (until, until + 1))
    if int(memory) and sys.platform == "linux":  # elsewhere this limit is not kept, or refused
        resource.setrlimit(resource.RLIMIT_AS, (int(memory), int(memory)))
    parent = Connection(int(connection))
    parent.send_bytes(_answer(Code(call), json.loads(parent.recv_bytes())))


def _answer(call: Code, arguments: Sequence[Any]) -> bytes:
    try:
        reply = {"value": call(*arguments)}
        text = json.dumps(reply)
    except UserError as error:
        text = json.dumps({"kind": "", "error": str(error)})
    except BaseException as error:  # foreign code may raise anything
        frames = traceback.extract_tb(error.__traceback__)
        where = f" ({frames[-1].filename}:{frames[-1].lineno})" if frames else ""
        kind = type(error).__name__
        text = json.dumps({"kind": kind, "error": f"{kind}: {error}{where}"})
    sys.stdout.flush()
    return text.encode()


if __name__ == "__main__":
    main(*sys.argv[1:])
