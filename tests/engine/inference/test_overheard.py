"""What judges print, by any of the ways of printing; and judges that want to end everything."""

import os
import subprocess
import sys

import pytest

from unmdpo.engine.inference.overheard import SHOWN, kept_running, overheard
from unmdpo.errors import UnmdpoWarning


def by_buffer():
    sys.stdout.buffer.write(b"scored 3 of 3")


def after_reconfiguring():
    sys.stdout.reconfigure(line_buffering=True)
    print("scored 3 of 3")


@pytest.mark.parametrize("prints", [lambda: print("scored 3 of 3"), by_buffer, after_reconfiguring])
def test_every_way_of_printing_is_overheard(prints, capsys):
    with pytest.warns(UnmdpoWarning, match="the judge printed: scored 3 of 3"), overheard("the judge"):
        prints()
    assert capsys.readouterr().out == ""


def test_a_little_of_much_is_told():
    with pytest.warns(UnmdpoWarning, match=f"x and {10**6 + 1 - SHOWN:,} bytes more"), overheard("the judge"):
        print("x" * 10**6)


def test_programs_that_a_judge_starts_print_where_messages_go(capfd):
    with overheard("the judge"):
        subprocess.run([sys.executable, "-c", "print('from a child')"], stdout=sys.stdout, check=True)
    out, err = capfd.readouterr()
    assert (out, err) == ("", "from a child\n")


def test_nobody_leaves_for_all():
    leave = os._exit
    with pytest.raises(SystemExit, match=r"os\._exit\(0\)"), kept_running():
        os._exit(0)
    assert os._exit is leave


def test_a_fork_may_leave():
    script = (
        "import os\n"
        "from unmdpo.engine.inference.overheard import kept_running\n"
        "with kept_running():\n"
        "    child = os.fork()\n"
        "    if not child: os._exit(7)\n"
        "    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))\n"
    )
    assert subprocess.run([sys.executable, "-c", script], capture_output=True, text=True).stdout == "7\n"
