"""The nodes of a Ray cluster: whether all see the store, what their GPUs have, and which kind of GPU suits a stage."""

import contextlib
import os
import secrets
import socket
import subprocess
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from unmdpo.core.errors import UserError
from unmdpo.engine.cost import USABLE
from unmdpo.execute.gpu_scheduler import Need

ANSWER, SEEN = 10.0, 300.0  # seconds that a cluster, and a look at the store, may take
STEP = 0.5  # seconds between two looks at a file
KIND = "accelerator_type:"
UNKNOWN = 80e9  # bytes of a GPU that does not say
SMI = ("nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader,nounits")


@dataclass
class Gpus:
    """Those of one kind."""

    kind: str | None  # as Ray names it
    count: float
    memory: float  # bytes of the smallest
    load: float = 0.0  # GPUs that stages of this run have

    def fits(self, need: Need) -> bool:
        return need.memory <= USABLE * self.memory


def most_suitable(gpus: list[Gpus], needs: Mapping[str | None, Need]) -> Gpus:
    """Of the kinds that a stage fits on, the one with the most room; else the largest. `needs` is by kind, since a
    larger GPU takes larger microbatches."""
    fitting = [one for one in gpus if one.fits(needs[one.kind])]
    if fitting:
        return min(fitting, key=lambda one: (one.load / one.count, -one.memory))
    return max(gpus, key=lambda one: one.memory)


def check_answers(address: str) -> None:
    """Ray itself waits for minutes without a word, where nothing answers."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdigit():
        return  # `auto`, or none: Ray looks on this machine
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=ANSWER).close()
    except OSError as error:
        raise UserError(
            f"RAY_ADDRESS={address}: nothing answers there ({error.strerror or error}). Is the cluster up? `ray "
            "status` asks it; without RAY_ADDRESS, a run starts a cluster on this machine"
        ) from error


def look_at_nodes(root: Path, only: str | None) -> list[Gpus]:
    """Every node must see the store, under the same path, before hours are spent. Returns the cluster's kinds of GPUs,
    or the `only` one wanted."""
    import ray  # noqa: PLC0415 - an extra
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy  # noqa: PLC0415

    look, word = ray.remote(num_cpus=0)(reads), secrets.token_hex(8)
    nodes = [node for node in ray.nodes() if node["Alive"]]  # type: ignore[no-untyped-call]
    with tempfile.NamedTemporaryFile("w", dir=root, prefix=".seen-") as file:
        file.write(word)
        file.flush()
        os.fsync(file.fileno())  # or a shared file system may show the name without the content
        asked = {
            look.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)).remote(
                file.name
            ): node
            for node in nodes
        }
        answered, silent = ray.wait([*asked], num_returns=len(asked), timeout=SEEN)
        seen = {one: _got(one) for one in answered}
    if silent:
        names = _named(asked[one] for one in silent)
        raise UserError(f"these nodes of the cluster did not answer within {SEEN:.0f} s: {names}. Is unmdpo there?")
    blind = [asked[one] for one, found in seen.items() if found is None or found.text != word]
    if blind:
        raise UserError(
            f"{root}: the store is not seen under this path by {_named(blind)}. It must lie on a file "
            "system that all nodes share, such as NFS or Lustre; object storage is not one"
        )
    return kinds_of([(asked[one]["Resources"], found.memory) for one, found in seen.items() if found], only)


def kinds_of(nodes: list[tuple[Mapping[str, float], float | None]], only: str | None) -> list[Gpus]:
    """From each node's resources, and the bytes of its smallest GPU if that is known."""
    found = dict[str | None, Gpus]()
    for resources, memory in nodes:
        count = resources.get("GPU", 0.0)
        kind = next((name.removeprefix(KIND) for name in resources if name.startswith(KIND)), None)
        if not count or (only is not None and kind != only):
            continue
        known = found.setdefault(kind, Gpus(kind, 0.0, float("inf")))
        known.count += count
        known.memory = min(known.memory, memory or UNKNOWN)
    if only is not None and not found:
        raise UserError(f"compute.ray.gpu_type: no node of the cluster has a GPU of the kind {only}")
    return [*found.values()]


class Seen(NamedTuple):
    text: str  # what the file in the store says
    memory: float | None  # bytes of the node's smallest GPU


def reads(path: str) -> Seen:
    """Runs on a node. A shared file system may show the file a little later."""
    until, text, memory = time.monotonic() + ANSWER, "", None
    while not text and time.monotonic() < until:
        time.sleep(STEP)
        text = Path(path).read_text("utf-8") if Path(path).is_file() else ""
    with contextlib.suppress(OSError, subprocess.SubprocessError, ValueError):  # no NVIDIA GPUs here
        said = subprocess.run(SMI, capture_output=True, text=True, timeout=ANSWER, check=True).stdout
        memory = min(float(line) for line in said.split()) * 2**20
    return Seen(text, memory)


def _got(reference: Any) -> Seen | None:
    import ray  # noqa: PLC0415 - an extra

    try:
        found: Seen = ray.get(reference)
    except ray.exceptions.RayError:  # no Python with unmdpo there, or the node is gone
        return None
    return found


def _named(nodes: Any) -> str:
    return ", ".join(sorted(node["NodeManagerHostname"] for node in nodes))
