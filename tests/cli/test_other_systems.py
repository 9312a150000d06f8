"""A Mac has less than Linux: nothing may need what it lacks. There is none here, so its gaps are made."""

import os
import subprocess
import sys

from tests.worlds.pipeline import WAIT, small_run

# In every process of the run, also those that it starts. Libraries may look in /proc, and know what to do elsewhere.
MISSING = """
import os, resource, signal, sys

for name in (
    "sched_getaffinity", "sched_setaffinity", "memfd_create", "posix_fadvise", "posix_fallocate", "copy_file_range",
    "pidfd_open", "eventfd", "splice", "setns", "unshare", "getrandom", "O_TMPFILE", "O_DIRECT", "O_PATH",
):
    if hasattr(os, name):
        delattr(os, name)
for name in ("SIGRTMIN", "SIGRTMAX", "SIGPWR", "SIGSTKFLT", "pidfd_send_signal"):
    if hasattr(signal, name):
        delattr(signal, name)
if hasattr(resource, "prlimit"):
    del resource.prlimit


def refuse(event, arguments):
    if event == "open" and str(arguments[0]).startswith("/proc"):
        caller = sys._getframe(1).f_code.co_filename
        if os.sep + "unmdpo" + os.sep in caller and "site-packages" not in caller:
            raise FileNotFoundError(arguments[0])


sys.addaudithook(refuse)
"""


def test_a_run_without_what_only_linux_has(folder, tmp_path):
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(MISSING)
    environment = os.environ | {"PYTHONPATH": str(tmp_path / "site")}
    look = "import os, sys; sys.exit(hasattr(os, 'sched_getaffinity'))"
    assert subprocess.run([sys.executable, "-c", look], env=environment, check=False).returncode == 0
    words = [*small_run(folder, tmp_path), "--jobs", "2"]
    done = subprocess.run(words, env=environment, timeout=WAIT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert [*(tmp_path / "store" / "artifacts" / "policy").glob("*/manifest.json")]
