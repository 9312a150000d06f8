"""From files to comparisons, panels of prompts, and tokens."""

import warnings
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from unmdpo.core.errors import UnmdpoWarning, UserError
from unmdpo.core.places import Place
from unmdpo.core.settings import PanelSize, Strict
from unmdpo.data.domains import modal_domains
from unmdpo.data.identity import comparable
from unmdpo.data.panels import panel_size, prompts_in, read_prompts, sample_panel
from unmdpo.data.table import ComparisonTable, concatenate
from unmdpo.engine.models import context_length
from unmdpo.engine.settings import ModelSource
from unmdpo.engine.tally import Tally
from unmdpo.engine.text.encode import Encoder
from unmdpo.engine.text.encoded import EncodedPairs
from unmdpo.recipe.settings import MixedRows, ValidationRecipe
from unmdpo.stages.scoring import READ, graded
from unmdpo.stages.shared.base import Graph, Job, Kind, Notes, Stage
from unmdpo.stages.shared.estimates import Estimates
from unmdpo.stages.shared.files import COMPARISONS, PAIRS, PANEL, VALIDATION, Panel
from unmdpo.stages.shared.rows import NO_QUANTILES, LoadedRows, Quantiles
from unmdpo.store.artifact import ArtifactFile

MANY = 0.05  # share of the comparisons that may be left out without a word
AFTER = "after "  # begins the names of inputs whose prompts a panel leaves out
TRAINING = "training"  # the comparisons that policies learn from
LOST_TO = {"read": "rows read", "bad": "bad", "ties": "ties"}


class ComparisonsSettings(Strict):
    parts: dict[str, MixedRows]  # by name; one without a name if the data is not a mixture
    held_out: ValidationRecipe | None  # set if validation is a share of the training prompts


class ValidationSettings(Strict):
    parts: dict[str, MixedRows]
    validation: ValidationRecipe


class PanelSettings(Strict):
    size: PanelSize
    seed: int
    path: Place | None


class EncodedSettings(Strict):
    model: ModelSource
    max_length: int


def comparisons(graph: Graph) -> Stage[Any]:
    """The training comparisons."""
    return graded(graph, as_read(graph))


def as_read(graph: Graph) -> Stage[ComparisonsSettings]:
    """The training comparisons before a judge gave them strengths; the only validation setting that affects them is a
    held-out share."""
    data = graph.recipe.data
    settings = ComparisonsSettings(
        parts=data.parts, held_out=data.validation if data.validation.fraction is not None else None
    )
    judged = data.strength.judge is not None
    return graph.stage(COMPARISONS_STAGE, settings, {}, READ if judged else None)


def read_stage(stages: Mapping[str, Stage[Any]]) -> Stage[Any]:
    """The stage that reads the training comparisons, among all stages of a run."""
    return stages.get(READ) or stages[COMPARISONS_STAGE.name]


def validation(graph: Graph) -> Stage[ValidationSettings]:
    data = graph.recipe.data
    settings = ValidationSettings(parts=data.parts, validation=data.validation)
    return graph.stage(VALIDATION_STAGE, settings, {})


def panel(graph: Graph, name: str) -> Stage[PanelSettings]:
    """A panel, drawn without the prompts of earlier panels."""
    assert graph.recipe.evaluation is not None
    panels = graph.recipe.evaluation.panels
    spec, earlier = panels[name], [*panels][: [*panels].index(name)]
    inputs: dict[str, Stage[Any]] = {f"{AFTER}{other}": panel(graph, other) for other in earlier}
    if spec.path is None:
        inputs[VALIDATION_STAGE.name] = validation(graph)
    inputs[TRAINING] = as_read(graph)
    settings = PanelSettings(size=spec.size, seed=spec.seed, path=spec.path)
    return graph.stage(PANEL_STAGE, settings, inputs, PANEL_STAGE.stage_name(name))


def encoded(graph: Graph, model: ModelSource, suffix: str = "") -> Stage[EncodedSettings]:
    settings = EncodedSettings(model=model, max_length=graph.recipe.data.max_length)
    return graph.stage(ENCODED_STAGE, settings, {"comparisons": comparisons(graph)}, f"{ENCODED_STAGE.name}{suffix}")


def read_comparisons(job: Job[ComparisonsSettings]) -> Notes:
    """Reads the training rows, without ties and held-out prompts."""
    parts = job.settings.parts
    loaded = LoadedRows.of(job, parts)
    excluded = loaded.held_out(job.settings.held_out)
    held_out = loaded.rows_of(excluded)
    rows = concatenate(loaded.training(excluded))
    if not rows:
        counts = ", ".join(f"{loaded.notes[name]:,} {words}" for name, words in LOST_TO.items())
        raise UserError(f"no comparison is left to train on: {counts}, {held_out:,} held out")
    job.save(COMPARISONS, rows)
    prompts = len(set(rows.prompt_hashes()))
    shares: Notes = {}
    if len(parts) > 1:
        weights = {name: part.weight for name, part in parts.items()}
        shares = {"parts": dict(Counter(rows.column("part"))), "weights": weights}
    return {"comparisons": len(rows), "prompts": prompts, "held_out": held_out, **loaded.notes, **shares}


def read_validation(job: Job[ValidationSettings]) -> Notes:
    """Reads rows with prompts for evaluation, including ties, since only the prompts are used."""
    return save_validation(job, VALIDATION)


def save_validation(
    job: Job[ValidationSettings],
    file: ArtifactFile[ComparisonTable],
    *,
    ties: bool = True,
    quantiles: Quantiles = NO_QUANTILES,
) -> Notes:
    """Reads the validation rows; their strengths are cut at the `quantiles` of each part, or else at its own."""
    spec = job.settings.validation
    loaded = LoadedRows.of(job, _validation_parts(job.settings), quantiles)
    tables = [table for part in loaded.parts.values() for table in ((part.rows, part.ties) if ties else (part.rows,))]
    rows = concatenate(tables)
    if spec.fraction is not None:
        held_out = loaded.held_out(spec)
        rows = rows.where(np.fromiter((name in held_out for name in rows.prompt_hashes()), bool, len(rows)))
    job.save(file, rows)
    return {"rows": len(rows), "prompts": len(set(rows.prompt_hashes())), **loaded.notes}


def _validation_parts(settings: ValidationSettings) -> dict[str, MixedRows]:
    parts, spec = settings.parts, settings.validation
    if spec.path is not None:
        (first, *_) = parts.values()
        rules = first if len(parts) == 1 else MixedRows(path=spec.path)
        return {"": rules.model_copy(update={"path": spec.path, "split": "train"})}
    if spec.fraction is None:
        return {name: part.model_copy(update={"split": spec.split}) for name, part in parts.items()}
    return parts


def prompts_to_answer(estimates: Estimates, drawn: Stage[PanelSettings]) -> int:
    """About how many a panel has, which comes from its file, from the prompts to train on, or from those held out."""
    path, share = drawn.settings.path, 1.0 if "comparisons" in drawn.inputs else estimates.held_out
    found = None if path is None else prompts_in(path)
    return panel_size(drawn.settings.size, round(share * estimates.prompts) if found is None else found)


def draw_panel(job: Job[PanelSettings]) -> Notes:
    """Draws prompts from the validation rows or a file of prompts, stratified by domain."""
    if job.settings.path is None:
        rows = (
            job.load(COMPARISONS, "comparisons")
            if "comparisons" in job.inputs
            else job.load(VALIDATION, VALIDATION_STAGE.name)
        )
        prompts, domains, ids = {row.prompt_hash: row.prompt for row in rows}, modal_domains(rows), dict[str, str]()
    else:
        prompts, domains, ids = read_prompts(Path(job.settings.path))
    earlier = {
        prompt
        for name, artifact in job.inputs.items()
        if name.startswith(AFTER)
        for prompt in PANEL.load(artifact).hashes
    }
    drawn = sample_panel(domains, job.settings.size, job.settings.seed, exclude=earlier)
    known = [prompts[name] for name in drawn], [domains[name] for name in drawn], [ids.get(name, "") for name in drawn]
    chosen = Panel(drawn, *known)
    job.save(PANEL, chosen)
    notes = {"prompts": len(chosen), "candidates": len(domains)}
    if TRAINING not in job.inputs:
        return notes
    trained_on = {comparable(row.prompt) for row in job.load(COMPARISONS, TRAINING)}
    known_before = sum(comparable(prompt) in trained_on for prompt in chosen.prompts)
    if known_before:
        warnings.warn(
            f"{job.stage.name}: {known_before:,} of {len(drawn):,} prompts are training prompts, so answers to them "
            "say little about new ones",
            UnmdpoWarning,
            stacklevel=2,
        )
    return notes | {"training_prompts": known_before}


def encode(job: Job[EncodedSettings]) -> Notes:
    """Encodes every training comparison, flagging those that are too long or empty."""
    rows, source, longest = (job.load(COMPARISONS, "comparisons"), job.settings.model, job.settings.max_length)
    context = context_length(source) or longest
    encoder = Encoder.of(source, min(longest, context))
    pairs = EncodedPairs.of(Tally(job.report, len(rows), "comparisons encoded").over(encoder.encode(rows)))
    for remark in encoder.remarks():
        warnings.warn(remark, UnmdpoWarning, stacklevel=2)
    beyond = max(0, pairs.within(longest) - pairs.within(context))
    if beyond:
        warnings.warn(
            f"{beyond} comparisons are left out: they fit data.max_length ({longest} tokens), but not the model's "
            f"context of {context}",
            UnmdpoWarning,
            stacklevel=2,
        )
        longest = context
    if not pairs.valid.any():
        raise UserError(
            f"none of the {len(pairs)} comparisons has two responses and fits in {longest} tokens: "
            "raise data.max_length, or check the data"
        )
    lost = len(pairs) - int(pairs.valid.sum())
    if lost > MANY * len(pairs):
        warnings.warn(
            f"{lost:,} of {len(pairs):,} comparisons ({100 * lost / len(pairs):.0f} %) are not trained on: they are "
            f"longer than {longest} tokens, or empty; data.max_length may be raised",
            UnmdpoWarning,
            stacklevel=2,
        )
    job.save(PAIRS, pairs)
    return {
        "pairs": len(pairs),
        "beyond_context": beyond,
        "valid": int(pairs.valid.sum()),
        "tokens": pairs.valid_tokens,
        "joined": {what: count for what, count in encoder.counts.items() if count},
    }


COMPARISONS_STAGE = Kind("comparisons", read_comparisons)
VALIDATION_STAGE = Kind("validation", read_validation)
PANEL_STAGE = Kind("panel", draw_panel)
ENCODED_STAGE = Kind("encoded", encode)
