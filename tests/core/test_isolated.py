"""Code that is not ours: what it prints, how it fails, and how it tries to end everything."""

import os
import signal
import subprocess
import sys
import time

import pytest

from unmdpo.core.errors import OutOfMemory, UnmdpoWarning, UserError
from unmdpo.core.isolated import SHOWN, isolated

HERE = "tests.core.test_isolated"


def call(name, *arguments, **limits):
    return isolated(f"{HERE}:{name}", *arguments, who="the judge", **limits)


def add(a, b):
    return a + b


def by_print():
    print("scored 3 of 3")


def by_buffer():
    sys.stdout.buffer.write(b"scored 3 of 3")


def by_program():
    subprocess.run([sys.executable, "-c", "print('scored 3 of 3')"], check=True)


def by_file_descriptor():
    os.write(1, b"scored 3 of 3")


def much():
    print("x" * 10**6)


def fails():
    raise LookupError("no such word")


def leaves(how, code):
    {"sys": sys.exit, "os": os._exit}[how](code)


def is_killed():
    os.kill(os.getpid(), signal.SIGKILL)


def computes_forever():
    while True:
        pass


def waits():
    time.sleep(3)


def grows():
    return len(b"x" * (4 << 30))


def is_full():
    raise type("OutOfMemoryError", (RuntimeError,), {})("CUDA")


def answers_nonsense():
    return object()


def test_values_come_back():
    assert call("add", [1, 2], ["3"]) == [1, 2, "3"]


@pytest.mark.parametrize("prints", ["by_print", "by_buffer", "by_program", "by_file_descriptor"])
def test_what_is_printed_is_shown_and_kept_from_the_commands_output(prints, capfd):
    with pytest.warns(UnmdpoWarning, match="the judge printed: scored 3 of 3"):
        assert call(prints) is None
    assert capfd.readouterr().out == ""


def test_only_the_beginning_of_much_is_shown():
    with pytest.warns(UnmdpoWarning, match=f"x and {10**6 + 1 - SHOWN:,} bytes more"):
        call("much")


def test_exceptions_name_their_place():
    with pytest.raises(UserError, match=r"the judge: LookupError: no such word \(.*test_isolated.py:\d+\)$"):
        call("fails")


@pytest.mark.parametrize("code", [0, 3])
def test_nobody_leaves_for_all(code):
    with pytest.raises(UserError, match=f"the judge: ended its process with exit code {code} before"):
        call("leaves", "os", code)
    with pytest.raises(UserError, match=f"the judge: SystemExit: {code}"):
        call("leaves", "sys", code)


def test_a_killed_process_is_noticed():
    with pytest.raises(UserError, match="ended its process with exit code -9"):
        call("is_killed")


def test_what_never_ends_is_ended():
    with pytest.raises(UserError, match="the judge: did not finish within 1 s of computing"):
        call("computes_forever", seconds=1)


def test_waiting_is_not_computing():
    assert call("waits", seconds=1) is None


def test_memory_is_limited():
    with pytest.raises(UserError, match="the judge: MemoryError"):
        call("grows", memory=1 << 30)


def test_a_full_gpu_is_distinguished():
    with pytest.raises(OutOfMemory, match="CUDA"):
        call("is_full")


def test_a_result_that_is_no_json_is_an_error():
    with pytest.raises(UserError, match="TypeError"):
        call("answers_nonsense")
