"""What ends a command."""

import signal
import subprocess
import sys


def test_a_second_signal_ends_it_with_its_code():
    code = "import os, signal\nfrom unmdpo.core.errors import stop\n"
    code += "signal.signal(signal.SIGTERM, stop)\n"
    code += "try: os.kill(os.getpid(), signal.SIGTERM)\nexcept BaseException: os.kill(os.getpid(), signal.SIGTERM)\n"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 128 + signal.SIGTERM
    assert "stopped immediately" in done.stderr
