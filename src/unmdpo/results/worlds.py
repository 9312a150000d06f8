"""What computed the numbers of one table: libraries, device and precision, where they are not the same for all."""

from collections.abc import Mapping
from typing import Any

from unmdpo.stages.generation import GENERATION_STAGE
from unmdpo.stages.judgement import JUDGEMENT_STAGE
from unmdpo.stages.pipeline import Pipeline
from unmdpo.stages.policy import POLICY_STAGE

VERBS = {POLICY_STAGE: "trained", GENERATION_STAGE: "answered for", JUDGEMENT_STAGE: "judged"}
NOT_COMPUTING = ("unmdpo", "machine")  # our own code is in the keys, and the machine is said by its device


def world_differences(run: Pipeline) -> list[str]:
    """A sentence for each kind of work that was not done alike for all policies of a table."""
    sentences: list[str] = []
    finished = run.finished
    for kind, verb in VERBS.items():
        worlds = {
            name.removeprefix(f"{kind.name}[").removesuffix("]"): _world(artifact.manifest)
            for name, artifact in finished.items()
            if run.stages[name].kind is kind
        }
        differing = [key for key in _keys(worlds) if len({world.get(key) for world in worlds.values()}) > 1]
        alike: dict[str, list[str]] = {}
        for name, world in worlds.items():
            described = ", ".join(f"{key} {world.get(key, 'none')}" for key in differing)
            alike.setdefault(described, []).append(name)
        if differing:
            parts = (f"{_named(names)} {verb} with {described}" for described, names in alike.items())
            sentences.append(f"not computed alike: {'; '.join(parts)}")
    return sentences


def _world(manifest: Mapping[str, Any]) -> dict[str, str]:
    versions = {name: text for name, text in manifest["versions"].items() if name not in NOT_COMPUTING}
    device = str(manifest["device"]).partition(",")[0]  # without the number of threads
    return versions | {"device": device, "precision": str(manifest.get("precision", "unknown"))}


def _keys(worlds: Mapping[str, Mapping[str, str]]) -> list[str]:
    return list(dict.fromkeys(key for world in worlds.values() for key in world))


def _named(names: list[str]) -> str:
    shown = ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
    return f"{shown} {'was' if len(names) == 1 else 'were'}"
