"""Final policies: any objective, with a frozen scale, a scale that learns beside it, or none."""

import torch
from safetensors.torch import load_file

from unmdpo.catalog import CATALOG
from unmdpo.engine.encode import EncodedPairs
from unmdpo.engine.export import Provenance, export_model
from unmdpo.engine.models import load_tokenizer
from unmdpo.engine.rows import TrainingData
from unmdpo.engine.score import score
from unmdpo.engine.train import ObjectiveChoice, Trainer
from unmdpo.objectives import beta_ln_from_lengths
from unmdpo.pipeline.common import model_source, strengths
from unmdpo.pipeline.stage import Job, Notes
from unmdpo.pipeline.stages.data import TRAIN
from unmdpo.pipeline.stages.scales import UnitNames, scale_of_rows, units_of
from unmdpo.pipeline.tables import read_comparisons, read_lines
from unmdpo.pipeline.training import train_in
from unmdpo.recipe import as_yaml
from unmdpo.scale import Rows, ScaleBesidePolicy, make_estimator, save_scale


def policy(job: Job) -> Notes:
    rows = read_comparisons(job.inputs["comparisons"].file(TRAIN))
    pairs = EncodedPairs.load(job.inputs["encoded"].file("pairs.safetensors"))
    reference = None
    if "reference" in job.inputs:
        reference = load_file(job.inputs["reference"].file("reference.safetensors"))["logps"]
    frozen = scale_of_rows(job.inputs["scale"], rows) if "scale" in job.inputs else None
    beside, names = None, None
    if "estimator" in job.settings:
        units, names = units_of(rows, job)
        made = make_estimator(job.settings["estimator"], _beside_settings(job))
        assert isinstance(made, ScaleBesidePolicy)
        beside = made.start(units, names.of_row)
    data = TrainingData(pairs, strengths(rows), reference, frozen, None if names is None else names.of_row)
    choice = ObjectiveChoice(job.settings["objective"], _settings(job, pairs))
    trained = train_in(job, data, choice, beside)
    notes = trained.notes | {"settings": dict(choice.settings)}
    if beside is not None and names is not None:
        _finish_scale(beside, trained.trainer, names, job)
        notes |= beside.diagnostics_
    metrics = read_lines(job.folder / "metrics.jsonl")[-1]
    provenance = Provenance(
        name=job.stage.name,
        base_model=job.settings["model"]["path"],
        objective=choice.name,
        recipe=as_yaml(dict(job.settings)),
        data={"comparisons": len(rows), "artifact": job.inputs["comparisons"].digest},
        scale=_scale_facts(job, frozen),
        metrics=metrics,
    )
    export_model(
        trained.model,
        load_tokenizer(model_source(job.settings["model"], job.inputs)),
        job.folder / "model",
        provenance,
    )
    trained.done()
    return notes


def _beside_settings(job: Job) -> dict[str, object]:
    """The scale's own, with the policy's margins; EMA also takes the policy's placement ("How EMA-joint
    learns q") unless the recipe says otherwise."""
    name = job.settings["objective"]
    resolved = CATALOG[name].resolve(name, job.settings["objective_settings"])
    policy: dict[str, object] = {
        "tau": resolved["tau"],
        "levels": resolved["levels"],
        "seed": job.settings["training"]["seed"],
    }
    if job.settings["estimator"] == "ema":
        policy["placement"] = name.rpartition("-")[2]
    return policy | dict(job.settings["settings"])


def _settings(job: Job, pairs: EncodedPairs) -> dict[str, float | tuple[float, ...]]:
    """The recipe's, with β_LN from β₀ and lengths where a length-normalized objective leaves β open."""
    given = dict(job.settings["objective_settings"])
    if CATALOG[job.settings["objective"]].normalized and "beta" not in given:
        tokens = torch.from_numpy(pairs.lengths[pairs.valid][:, 1:])
        given["beta"] = beta_ln_from_lengths(tokens[:, 0], tokens[:, 1], job.settings["beta"])
    return given


def _finish_scale(beside: ScaleBesidePolicy, trainer: Trainer, names: UnitNames, job: Job) -> None:
    """Describes the learned scale with the final policy's own evidence, and saves it."""
    logs = score(trainer.scorer, trainer.data.pairs, job.compute.token_budget)
    slots = list(range(len(trainer.data)))
    gaps = trainer.data.logps(slots, logs, None)
    ratio = gaps.mean_log_ratio if trainer.rule.spec.normalized else gaps.log_ratio
    valid = torch.from_numpy(trainer.data.pairs.valid)
    evidence = trainer.resolved["beta"] * ratio
    beside.finish(Rows(names.of_row, evidence, trainer.data.strength, valid))
    if trainer.ranks.first:
        save_scale(beside, job.folder / "scale")


def _scale_facts(job: Job, frozen: torch.Tensor | None) -> dict[str, object]:
    if frozen is None:
        return {"estimator": job.settings["estimator"]} if "estimator" in job.settings else {}
    facts: dict[str, object] = {"artifact": job.inputs["scale"].digest}
    return facts | {"smallest q": float(frozen.min()), "largest q": float(frozen.max())}
