"""How many training pairs there are and how long they are, as far as a plan can know.

Exact once the pairs are encoded. Before that, data on this machine is read as the run will read it, and some of its
pairs are tokenized. What is neither here nor known beforehand is assumed, and the plan says so.
"""

import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from unmdpo.engine.models import context_length
from unmdpo.engine.pairs.encode import EncodedPairs, Encoder
from unmdpo.engine.shapes import pair_lengths
from unmdpo.files import expanded
from unmdpo.pipeline.artifacts import COMPARISONS, PAIRS
from unmdpo.pipeline.run import Run
from unmdpo.pipeline.stage import Job, Notes
from unmdpo.pipeline.stages.data import COMPARISONS_STAGE, ENCODED_STAGE

ASSUMED_PAIRS = 10_000
SAMPLED_PAIRS = 512


@dataclass(frozen=True)
class Sizes:
    lengths: NDArray[np.int32]  # (n, 3) of the pairs that can be trained on: prompt, chosen, rejected
    prompts: int  # distinct ones
    assumed: list[str]  # what is neither known nor measured


def sizes_of(run: Run) -> Sizes:
    """Writes nothing, and reaches for nothing on the Hub."""
    data, finished = run.recipe.data, run.finished
    if ENCODED_STAGE.name in finished:
        lengths = PAIRS.load(finished[ENCODED_STAGE.name]).valid_lengths
        return Sizes(lengths, min(int(_notes(run)["prompts"]), len(lengths)), [])
    if COMPARISONS_STAGE.name in finished:
        return _sampled(run, finished[COMPARISONS_STAGE.name].path, _notes(run))
    if all(part.path is not None and _here(part.path) for part in data.parts.values()):
        with tempfile.TemporaryDirectory() as name:
            stage, folder = run.stages[COMPARISONS_STAGE.name], Path(name)
            notes = Job(stage, folder, {}, run.recipe.compute, lambda _: None).do()
            return _sampled(run, folder, notes)
    assumed = ["lengths as in HelpSteer3"]
    if data.path is None and data.official is not None:
        pairs, prompts = data.official.pairs, data.official.prompts
    else:
        pairs = prompts = ASSUMED_PAIRS
        assumed = [f"{ASSUMED_PAIRS:,} comparisons", *assumed]
    return Sizes(_like_helpsteer3(pairs, data.max_length), prompts, assumed)


def _notes(run: Run) -> Notes:
    notes: Notes = run.artifact(COMPARISONS_STAGE.name).manifest["notes"]
    return notes


def _here(path: str) -> bool:
    return expanded(path).exists()


def _sampled(run: Run, folder: Path, notes: Notes) -> Sizes:
    """Of comparisons that are read but not encoded: all of them, as long as some of them are."""
    count, prompts, longest = int(notes["comparisons"]), int(notes["prompts"]), run.recipe.data.max_length
    model = run.recipe.model
    if not Path(model.path).is_dir():
        return Sizes(_like_helpsteer3(count, longest), prompts, ["lengths as in HelpSteer3"])
    rows = COMPARISONS.read(folder / COMPARISONS.name)
    chosen = np.linspace(0, len(rows) - 1, min(SAMPLED_PAIRS, len(rows))).astype(int)
    encoder = Encoder.of(model, min(longest, context_length(model) or longest))
    pairs = EncodedPairs.of(encoder.encode([rows[int(row)] for row in chosen]))
    fitting = round(count * float(pairs.valid.mean()))
    return Sizes(np.resize(pairs.valid_lengths, (fitting, 3)), min(prompts, fitting), [])


def _like_helpsteer3(count: int, longest: int) -> NDArray[np.int32]:
    return np.array(pair_lengths(count, longest), dtype=np.int32)
