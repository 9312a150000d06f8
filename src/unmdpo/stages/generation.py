"""Answers to a panel: from policies on this machine, from a server, or made elsewhere."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel

from unmdpo.core.errors import UserError
from unmdpo.core.places import Place
from unmdpo.data.panels import read_answers
from unmdpo.engine.adapters import attach, is_adapter
from unmdpo.engine.inference.endpoints import Endpoint
from unmdpo.engine.inference.generate import GenerationSettings, Generator
from unmdpo.engine.inference.remote import RemoteGenerator
from unmdpo.engine.models import load_in_four_bits, load_tokenizer
from unmdpo.engine.ranks import Ranks, local_device
from unmdpo.engine.settings import ModelSource, Sampling
from unmdpo.engine.sharding import open_to_read
from unmdpo.engine.text.encode import Encoder
from unmdpo.stages.shared.base import Job, Kind, Notes
from unmdpo.stages.shared.files import GENERATIONS, MODEL, PANEL, Panel
from unmdpo.store.artifact import Line
from unmdpo.store.journal import Journal

BATCHES = "batches.jsonl"  # answers so far


def answer(
    job: Job,
    *,
    model: ModelSource,
    max_new_tokens: int,
    answers: Place | None,
    sampling: Sampling | None,
    server: Endpoint | None,
) -> Notes:
    """Writes responses to every prompt of a panel; resumes after the last complete batch.

    `answers` is a file of answers that were made elsewhere. Without `sampling`, there is one greedy answer to a
    prompt; without a `server`, the model answers on this machine.
    """
    if answers is not None:
        return _bring_in(job, Path(answers), model)
    if server is not None:
        return _ask(job, server, model, max_new_tokens, sampling)
    prompts = job.load(PANEL, "panel")
    ranks = Ranks.current()
    journal = Journal(job.state / BATCHES) if ranks.first else None
    begun: list[Any] = ranks.share([] if journal is None else journal.values)
    # with more free memory, batches would be larger now
    budget = begun[0]["budget"] if begun else None
    settings = GenerationSettings(max_new_tokens=max_new_tokens, token_budget=budget, sampling=sampling)
    generator = Generator(policy_of(job, model), Encoder.of(model), settings)
    if journal is not None and not begun:
        journal.add({"budget": generator.budget})
    return _collect(job, generator, prompts, sampling, journal, begun[1:])


def _ask(job: Job, server: Endpoint, model: ModelSource, max_new_tokens: int, sampling: Sampling | None) -> Notes:
    """Asks a server; answers that it gave before are not asked for again, since they may have cost money."""
    if not Ranks.current().first:
        return {}
    generator = RemoteGenerator(server, load_tokenizer(model), max_new_tokens, sampling)
    journal = Journal(job.state / BATCHES)
    try:
        notes = _collect(job, generator, job.load(PANEL, "panel"), sampling, journal, journal.values)
    except UserError as error:
        if "policy" not in job.inputs:
            raise
        raise UserError(f"{error}. Is the policy served? It lies in {job.load(MODEL, 'policy')}") from error
    return notes | {"server": server.endpoint, "served_as": server.model}


def _collect(
    job: Job,
    generator: Generator | RemoteGenerator,
    prompts: Panel,
    sampling: Sampling | None,
    journal: Journal | None,
    begun: Sequence[list[Line]],
) -> Notes:
    """Adds the answers that are missing to those that an earlier attempt began with, batch by batch, and saves all of
    them in order. The first rank keeps the journal."""
    batches = [*begun]
    samples = 1 if sampling is None else sampling.samples
    asked = [prompt for prompt in prompts.prompts for _ in range(samples)]
    answered = {response["prompt"] for batch in batches for response in batch}
    for batch in generator.generate(asked, answered):
        batches.append([response.to_dict() for response in batch])
        if journal is not None:
            journal.add(batches[-1])
        job.report(f"{sum(map(len, batches))}/{len(asked)} answered")
    responses = sorted((response for batch in batches for response in batch), key=lambda row: int(row["prompt"]))
    rows = [{"prompt_hash": prompts.hashes[response["prompt"] // samples]} | response for response in responses]
    if journal is not None:
        job.save(GENERATIONS, rows)
    return {"tokens": sum(row["tokens"] for row in rows), "unfinished": sum(not row["finished"] for row in rows)}


def policy_of(job: Job, source: ModelSource) -> PreTrainedModel:
    """The policy to answer with: the initial model, another one in its place, or an adapter beside it."""
    if "policy" not in job.inputs:
        return open_policy(source, None)
    adapter = job.stage.inputs["policy"].settings.training.adapter
    return open_policy(source, job.load(MODEL, "policy"), four_bit=adapter is not None and adapter.four_bit)


def open_policy(source: ModelSource, folder: Path | None, *, four_bit: bool = False) -> PreTrainedModel:
    """The initial model, or what was trained from it and lies in a folder."""
    if folder is None:
        return open_to_read(source, lambda model: model)
    if is_adapter(folder) and four_bit and Ranks.current().world == 1:
        return attach(load_in_four_bits(source, device=local_device()), folder)
    if is_adapter(folder):
        return open_to_read(source, lambda model: model, adapter=folder)
    return open_to_read(source.at_path(str(folder)), lambda model: model)


def _bring_in(job: Job, path: Path, model: ModelSource) -> Notes:
    """Takes answers that were made elsewhere, one for every prompt of the panel."""
    prompts, answers = job.load(PANEL, "panel"), read_answers(path)
    missing = [place for place, name in enumerate(prompts.hashes) if name not in answers]
    if missing:
        raise UserError(
            f"{path}: no answer to {len(missing)} of {len(prompts)} prompts of the panel, for example to "
            f"{prompts.prompts[missing[0]][-1].content[:80]!r}"
        )
    tokenizer = Encoder.of(model).tokenizer
    rows = [
        {
            "prompt_hash": name,
            "prompt": place,
            "text": answers[name],
            "tokens": len(tokenizer(answers[name], add_special_tokens=False)["input_ids"]),
            "finished": True,
        }
        for place, name in enumerate(prompts.hashes)
    ]
    if Ranks.current().first:
        job.save(GENERATIONS, rows)
    return {"tokens": sum(row["tokens"] for row in rows), "unfinished": 0, "answers": str(path)}


GENERATION_STAGE = Kind(
    "generation",
    answer,
    uses_model=True,
    runs_elsewhere=lambda stage: stage.settings.answers is not None or stage.settings.server is not None,
    ranked="on request",
)
