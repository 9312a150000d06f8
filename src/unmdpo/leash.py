"""Runs a program of somebody else's that must end with whoever started it, however that ended.

    python -m unmdpo.leash PROGRAM [ARGUMENT ...]

Whoever starts it holds the other end of its standard input and writes nothing to it. When that end closes, as it does
with a process that was killed, the program and all that it started are ended too.
"""

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time

FAREWELL = 30.0  # seconds that a program may take to end
POLL = 0.05


def main(*command: str) -> int:
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True) as program:
        threading.Thread(target=_watch, args=(program,), daemon=True).start()
        code = program.wait()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(program.pid, signal.SIGKILL)  # what it started and left behind
    return code if code >= 0 else 128 - code


def _watch(program: "subprocess.Popen[bytes]") -> None:
    while os.read(0, 1024):
        pass
    with contextlib.suppress(ProcessLookupError):
        os.killpg(program.pid, signal.SIGTERM)
        until = time.monotonic() + FAREWELL
        while time.monotonic() < until:  # no `wait`: another thread is in it
            time.sleep(POLL)
            os.killpg(program.pid, 0)
        os.killpg(program.pid, signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
