"""From files to comparisons, panels of prompts, and tokens."""

from pathlib import Path

from unmdpo.data import Comparisons, DataRef, SourceSettings, load_comparisons
from unmdpo.data.domains import modal_domains
from unmdpo.data.pairing import PairRule
from unmdpo.data.panels import sample_panel, split_prompts
from unmdpo.data.prompts import read_prompts
from unmdpo.data.sources import SOURCES
from unmdpo.engine.encode import EncodedPairs
from unmdpo.engine.models import make_encoder
from unmdpo.errors import UserError
from unmdpo.pipeline.common import model_source
from unmdpo.pipeline.stage import Job, Notes
from unmdpo.pipeline.tables import Panel, read_comparisons, write_comparisons
from unmdpo.recipe.data import DataRecipe

TRAIN, VALIDATION = "train.parquet", "validation.parquet"


def comparisons(job: Job) -> Notes:
    """Training rows, without ties and without the prompts that are held out."""
    recipe = DataRecipe.model_validate(job.settings["data"])
    loaded = _load(recipe, recipe.path, recipe.split)
    apart = _held_out(recipe, loaded)
    rows = [row for row in loaded.rows if row.prompt_hash not in apart]
    write_comparisons(job.folder / TRAIN, rows)
    return {
        "comparisons": len(rows),
        "prompts": len({row.prompt_hash for row in rows}),
        "ties": len(loaded.ties),
        "skipped": [str(error) for error in loaded.skipped],
    }


def validation(job: Job) -> Notes:
    """Rows whose prompts are for evaluation; ties too, since only their prompts are used."""
    recipe = DataRecipe.model_validate(job.settings["data"])
    given = recipe.validation
    if given.fraction is not None:
        loaded = _load(recipe, recipe.path, recipe.split)
        apart = _held_out(recipe, loaded)
        rows = [row for row in (*loaded.rows, *loaded.ties) if row.prompt_hash in apart]
    else:
        loaded = _load(recipe, given.path or recipe.path, "train" if given.path is not None else given.split)
        rows = [*loaded.rows, *loaded.ties]
    write_comparisons(job.folder / VALIDATION, rows)
    return {"rows": len(rows), "prompts": len({row.prompt_hash for row in rows})}


def _held_out(recipe: DataRecipe, loaded: Comparisons) -> set[str]:
    given = recipe.validation
    if given.fraction is None:
        return set()
    return split_prompts((row.prompt_hash for row in loaded.rows), given.fraction, given.seed)


def _load(recipe: DataRecipe, path: str | None, split: str) -> Comparisons:
    official = SOURCES[recipe.source].hub
    place = path or (official.path if official is not None else "")
    rule = PairRule(recipe.pairing.pairs, recipe.pairing.min_gap)
    settings = SourceSettings(strength=recipe.strength.rule, pairing=rule)
    ref = DataRef(place, split, recipe.revision, recipe.config)
    return load_comparisons(ref, source=recipe.source, settings=settings, max_bad_rows=recipe.max_bad_rows)


def panel(job: Job) -> Notes:
    """Prompts of the validation rows, or of a file of prompts, stratified by domain, without those of
    earlier panels."""
    if "validation" in job.inputs:
        rows = read_comparisons(job.inputs["validation"].file(VALIDATION))
        prompts, domains = {row.prompt_hash: row.prompt for row in rows}, modal_domains(rows)
    else:
        prompts, domains = read_prompts(Path(job.settings["path"]).expanduser())
    earlier = {
        prompt
        for name, artifact in job.inputs.items()
        if name != "validation"
        for prompt in Panel.read(artifact.file("panel.json")).hashes
    }
    drawn = sample_panel(domains, job.settings["size"], job.settings["seed"], exclude=earlier)
    chosen = Panel(drawn, [prompts[name] for name in drawn], [domains[name] for name in drawn])
    chosen.write(job.folder / "panel.json")
    return {"prompts": len(chosen), "candidates": len(domains)}


def encoded(job: Job) -> Notes:
    """Token ids of every training comparison, over-long and empty ones flagged."""
    rows = read_comparisons(job.inputs["comparisons"].file(TRAIN))
    encoder = make_encoder(model_source(job.settings["model"], job.inputs), job.settings["max_length"])
    pairs = EncodedPairs.of(encoder.encode(rows))
    if not pairs.valid.any():
        raise UserError(
            f"none of the {len(pairs)} comparisons has two responses and fits {encoder.max_length} tokens: "
            "raise data.max_length, or look at the data"
        )
    pairs.save(job.folder / "pairs.safetensors")
    return {
        "pairs": len(pairs),
        "valid": int(pairs.valid.sum()),
        "tokens": int(pairs.lengths[pairs.valid].sum()),
    }
