"""Answers to a panel: from policies on this machine, from a server, or made elsewhere."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from transformers import PreTrainedModel

from unmdpo.core.errors import UserError
from unmdpo.core.places import Place
from unmdpo.core.settings import Strict
from unmdpo.data.panels import read_answers
from unmdpo.engine.adapters import attach, is_adapter
from unmdpo.engine.inference.endpoints import Endpoint, Vllm
from unmdpo.engine.inference.generate import GenerationSettings, Generator
from unmdpo.engine.inference.remote import RemoteGenerator
from unmdpo.engine.inference.vllm import Served, serving
from unmdpo.engine.models import load_in_four_bits, load_tokenizer
from unmdpo.engine.ranks import Ranks, local_device
from unmdpo.engine.settings import ModelSource, Sampling
from unmdpo.engine.sharding import open_to_read
from unmdpo.engine.text.encode import Encoder
from unmdpo.objectives.table import INITIAL
from unmdpo.stages.data import prompts_to_answer
from unmdpo.stages.shared.base import Job, Kind, Notes, Stage
from unmdpo.stages.shared.estimates import Cost, Estimates
from unmdpo.stages.shared.files import GENERATIONS, MODEL, PANEL, Panel
from unmdpo.store.artifact import Line
from unmdpo.store.journal import Journal

BATCHES = "batches.jsonl"  # answers so far


class AnswerSettings(Strict):
    model: ModelSource
    max_new_tokens: int
    answers: Place | None  # a file with answers that were made elsewhere
    sampling: Sampling | None = None  # None: one greedy answer


class ServedSettings(AnswerSettings):
    """Answers that a server gives."""

    server: Endpoint | Vllm | Literal["vllm"]


def answer(job: Job[AnswerSettings]) -> Notes:
    """Writes responses to every prompt of a panel; resumes after the last complete batch."""
    if job.settings.answers is not None:
        return _bring_in(job, Path(job.settings.answers))
    if isinstance(job.settings, ServedSettings):
        return _ask(job, job.settings)
    prompts, source, ranks = job.load(PANEL, "panel"), job.settings.model, Ranks.current()
    journal = Journal(job.state / BATCHES) if ranks.first else None
    begun: list[Any] = ranks.share([] if journal is None else journal.values)
    # with more free memory, batches would be larger now
    settings = GenerationSettings(
        max_new_tokens=job.settings.max_new_tokens,
        token_budget=begun[0]["budget"] if begun else None,
        sampling=job.settings.sampling,
    )
    generator = Generator(policy_of(job, source), Encoder.of(source), settings)
    if journal is not None and not begun:
        journal.add({"budget": generator.budget})
    return _collect(job, generator, prompts, journal, begun[1:])


def _ask(job: Job[AnswerSettings], settings: ServedSettings) -> Notes:
    """Asks a server; answers that it gave before are not asked for again, since they may have cost money."""
    if not Ranks.current().first:
        return {}
    if not isinstance(settings.server, Endpoint):
        more = settings.server.vllm if isinstance(settings.server, Vllm) else []
        with serving(_served(job), more) as server:
            return _ask_at(job, server) | {"server": "vllm"}
    notes = {"server": settings.server.endpoint, "served_as": settings.server.model}
    try:
        return _ask_at(job, settings.server) | notes
    except UserError as error:
        if "policy" not in job.inputs:
            raise
        raise UserError(f"{error}. Is the policy served? It lies in {job.load(MODEL, 'policy')}") from error


def _ask_at(job: Job[AnswerSettings], server: Endpoint) -> Notes:
    tokenizer = load_tokenizer(job.settings.model)
    generator = RemoteGenerator(server, tokenizer, job.settings.max_new_tokens, job.settings.sampling)
    journal = Journal(job.state / BATCHES)
    return _collect(job, generator, job.load(PANEL, "panel"), journal, journal.values)


def _served(job: Job[AnswerSettings]) -> Served:
    """The policy, or the initial model, for a server that starts for it."""
    model, gpus = job.settings.model, job.compute.ranks_of.get(job.stage.kind.name, 1)
    if "policy" not in job.inputs:
        return Served(INITIAL, model, gpus=gpus)
    folder = job.load(MODEL, "policy")
    if not is_adapter(folder):
        return Served("policy", model.at_path(str(folder)), gpus=gpus)
    adapter = job.stage.inputs["policy"].settings.training.adapter
    if adapter.four_bit:
        raise UserError(
            "vLLM would serve this adapter beside weights in 16 bits, not four: leave evaluation.generator out"
        )
    return Served("policy", model, folder, adapter.rank, gpus)


def _collect(
    job: Job[AnswerSettings],
    generator: Generator | RemoteGenerator,
    prompts: Panel,
    journal: Journal | None,
    begun: Sequence[list[Line]],
) -> Notes:
    """Adds the answers that are missing to those that an earlier attempt began with, batch by batch, and saves all of
    them in order. The first rank keeps the journal."""
    done, count = [*begun], 1 if job.settings.sampling is None else job.settings.sampling.samples
    asked = [prompt for prompt in prompts.prompts for _ in range(count)]
    answered = {response["prompt"] for batch in done for response in batch}
    for batch in generator.generate(asked, answered):
        done.append([response.to_dict() for response in batch])
        if journal is not None:
            journal.add(done[-1])
        job.report(f"{sum(map(len, done))}/{len(asked)} answered")
    ordered = sorted((response for batch in done for response in batch), key=lambda response: int(response["prompt"]))
    rows = [{"prompt_hash": prompts.hashes[response["prompt"] // count]} | response for response in ordered]
    if journal is not None:
        job.save(GENERATIONS, rows)
    return {"tokens": sum(row["tokens"] for row in rows), "unfinished": sum(not row["finished"] for row in rows)}


def policy_of(job: Job[Any], source: ModelSource) -> PreTrainedModel:
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


def _bring_in(job: Job[AnswerSettings], path: Path) -> Notes:
    """Takes answers that were made elsewhere, one for every prompt of the panel."""
    prompts, answers = job.load(PANEL, "panel"), read_answers(path)
    missing = [place for place, name in enumerate(prompts.hashes) if name not in answers]
    if missing:
        raise UserError(
            f"{path}: no answer to {len(missing)} of {len(prompts)} prompts of the panel, for example to "
            f"{prompts.prompts[missing[0]][-1].content[:80]!r}"
        )
    tokenizer = Encoder.of(job.settings.model).tokenizer
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


def _answering_cost(estimates: Estimates, stage: Stage[AnswerSettings]) -> Cost:
    settings = stage.settings
    if settings.answers is not None or (
        isinstance(settings, ServedSettings) and isinstance(settings.server, Endpoint)
    ):
        return Cost()
    prompts: int = prompts_to_answer(estimates, stage.inputs["panel"])
    samples = 1 if settings.sampling is None else settings.sampling.samples
    written = estimates.writing(settings.model, float(samples * prompts * settings.max_new_tokens))
    # vLLM takes most of a GPU, whatever it serves
    return replace(written, memory=estimates.memory) if isinstance(settings, ServedSettings) else written


GENERATION_STAGE = Kind("generation", answer, uses_model=True, ranked="on request", cost=_answering_cost)
