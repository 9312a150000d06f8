"""Lets processes on a GPU compute at the same time, by NVIDIA's Multi-Process Service, which comes with the driver.

Without it they take turns, and a small model leaves most of the GPU idle in its turn: on one H200, two policies of
SmolLM2-135M train 1.2 times as fast with it (docs/evidence/performance.md).
"""

import contextlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator

PIPES, LOGS = "CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY"
# The service runs until its input is closed: also when we are killed, so that nothing of it is left.
SERVE = '"$0" -d && cat > /dev/null; echo "quit -t 5" | "$0"'


@contextlib.contextmanager
def shared_gpus(*, wanted: bool = True) -> Iterator[dict[str, str]]:
    """Environment variables for the processes that share GPUs; none where the service is missing, or where the user
    runs one."""
    control = shutil.which("nvidia-cuda-mps-control")
    if not wanted or control is None or PIPES in os.environ:
        yield {}
        return
    with tempfile.TemporaryDirectory(prefix="unmdpo-mps-", ignore_cleanup_errors=True) as folder:
        ours = {PIPES: folder, LOGS: folder}
        # it numbers the GPUs itself
        environment = {name: value for name, value in os.environ.items() if name != "CUDA_VISIBLE_DEVICES"} | ours
        with subprocess.Popen(
            ["sh", "-c", SERVE, control],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # an interrupt is for us, not for the service, which stages need to the end
        ):
            yield ours
