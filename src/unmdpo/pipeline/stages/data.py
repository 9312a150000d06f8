"""From files to comparisons, panels of prompts, and tokens."""

from unmdpo.data import Comparison, Comparisons, DataRef, SourceSettings, load_comparisons
from unmdpo.data.domains import modal_domains
from unmdpo.data.pairing import PairRule
from unmdpo.data.panels import sample_panel, split_prompts
from unmdpo.data.sources import SOURCES
from unmdpo.engine.encode import EncodedPairs
from unmdpo.engine.models import make_encoder
from unmdpo.pipeline.common import model_source
from unmdpo.pipeline.stage import Job, Notes
from unmdpo.pipeline.tables import Panel, read_comparisons, write_comparisons
from unmdpo.recipe import DataRecipe

TRAIN, VALIDATION = "train.parquet", "validation.parquet"


def comparisons(job: Job) -> Notes:
    """Training rows without ties; validation rows with them, since only their prompts are used."""
    recipe = DataRecipe.model_validate(job.settings["data"])
    train = _load(recipe, recipe.path, recipe.split)
    rows, held_out = list(train.rows), list[Comparison]()
    validation = recipe.validation
    if validation.fraction is not None:
        apart = split_prompts((row.prompt_hash for row in rows), validation.fraction, validation.seed)
        held_out = [row for row in (*rows, *train.ties) if row.prompt_hash in apart]
        rows = [row for row in rows if row.prompt_hash not in apart]
    elif job.settings["validation"]:
        split = "train" if validation.path is not None else validation.split
        found = _load(recipe, validation.path or recipe.path, split)
        held_out = [*found.rows, *found.ties]
    write_comparisons(job.folder / TRAIN, rows)
    write_comparisons(job.folder / VALIDATION, held_out)
    return {
        "comparisons": len(rows),
        "prompts": len({row.prompt_hash for row in rows}),
        "ties": len(train.ties),
        "skipped": [str(error) for error in train.skipped],
        "validation_rows": len(held_out),
    }


def _load(recipe: DataRecipe, path: str | None, split: str) -> Comparisons:
    official = SOURCES[recipe.source].hub
    place = path or (official.path if official is not None else "")
    rule = PairRule(recipe.pairing.pairs, recipe.pairing.min_gap)
    settings = SourceSettings(strength=recipe.strength.rule, pairing=rule)
    ref = DataRef(place, split, recipe.revision, recipe.config)
    return load_comparisons(ref, source=recipe.source, settings=settings, max_bad_rows=recipe.max_bad_rows)


def panel(job: Job) -> Notes:
    """Prompts of the validation rows, stratified by domain, without those of earlier panels."""
    rows = read_comparisons(job.inputs["comparisons"].file(VALIDATION))
    earlier = {
        prompt
        for name, artifact in job.inputs.items()
        if name != "comparisons"
        for prompt in Panel.read(artifact.file("panel.json")).hashes
    }
    domains = modal_domains(rows)
    drawn = sample_panel(domains, job.settings["size"], job.settings["seed"], exclude=earlier)
    prompts = {row.prompt_hash: row.prompt for row in rows}
    chosen = Panel(drawn, [prompts[name] for name in drawn], [domains[name] for name in drawn])
    chosen.write(job.folder / "panel.json")
    return {"prompts": len(chosen), "candidates": len(domains)}


def encoded(job: Job) -> Notes:
    """Token ids of every training comparison, over-long and empty ones flagged."""
    rows = read_comparisons(job.inputs["comparisons"].file(TRAIN))
    encoder = make_encoder(model_source(job.settings["model"]), job.settings["max_length"])
    pairs = EncodedPairs.of(encoder.encode(rows))
    pairs.save(job.folder / "pairs.safetensors")
    return {
        "pairs": len(pairs),
        "valid": int(pairs.valid.sum()),
        "tokens": int(pairs.lengths[pairs.valid].sum()),
    }
