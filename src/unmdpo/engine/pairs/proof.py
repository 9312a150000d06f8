"""Before a model is used, proof that a layout scores pairs as the model itself would.

Some of the user's own pairs are scored the plain way (one sequence at a time, the model's own logits) and in each
layout from the fastest on, in rows as full as those of training. The first layout that passes two tests is used:

1. Sharp: with weights in a higher precision, it gives what the plain way gives. Mistakes of masks and positions are
   found here, since rounding is too small to hide them.
2. As it will be used: it is as close to the truth, the plain way in the higher precision, as the model's own plain way
   is. How much a model rounds depends on its weights, so it is measured, not assumed.

In float32 most models round so little that the first comparison is sharp enough by itself.

Nothing is assumed about families of models, so one that does not exist yet is scored right or refused.
"""

import contextlib
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch
from scipy import stats
from torch import Tensor, nn
from transformers import PreTrainedModel

from unmdpo.core.errors import UnmdpoWarning, UserError
from unmdpo.engine.cost import available, microbatch_tokens
from unmdpo.engine.models import longest_input
from unmdpo.engine.pairs.flash import MISSED, check_kernel, is_missed
from unmdpo.engine.pairs.layout import Layout
from unmdpo.engine.pairs.masks import CannotPack
from unmdpo.engine.pairs.packing import PackedBatch
from unmdpo.engine.pairs.sample import Sample
from unmdpo.engine.pairs.scorer import PairScorer
from unmdpo.engine.ranks import Ranks
from unmdpo.engine.text.encoded import EncodedPair, EncodedPairs, longest, unmarked

SHARP = {torch.float32: 5e-3, torch.float64: 5e-4}  # of layouts in these; even then, some models sum in float32
# Less never matters. In bfloat16, SmolLM2-135M packed on an H200 is off by up to 0.19.
FLOORS = {torch.float64: 1e-5, torch.float32: 5e-4, torch.float16: 0.05, torch.bfloat16: 0.4}
TF32 = 0.02  # of FlexAttention, which multiplies float32 in that precision
CHANCE = 1e-3  # how often a right layout may be refused, if its errors are like the model's own
OFFSET = 8  # some tables of positions have a few rows more
DENSE = 16_384  # tokens of a row with a dense mask, in the sharp test
COSTS: dict[Layout, str] = {
    "flash": "",
    "packed": "",
    "padded": "pairs are padded instead, and prompts computed twice, which is slower",
    "masked": "pairs are padded and masked instead, which is slower",
    "single": "each sequence goes through the model alone, which is several times slower",
}


@dataclass(frozen=True)
class Proof:
    """Errors are the largest of a response, in nats or of its score: the layout's, and that of the model's own plain
    way, both relative to the plain way in a higher precision. Where there is no room for that, the first is relative
    to the plain way."""

    layout: Layout
    error: float
    own_error: float | None
    pairs: int
    passed_over: dict[str, str] = field(default_factory=dict)  # faster layouts, and why not

    @property
    def notes(self) -> dict[str, object]:
        """For a manifest."""
        return {"layout": self.layout, "error": self.error, "own_error": self.own_error}


def prove(scorer: PairScorer, pairs: EncodedPairs, token_budget: int | None = None) -> Proof:
    """Finds the fastest layout that is right, and has the scorer use it."""
    sample = Sample(pairs, microbatch_tokens(scorer, token_budget))
    if not len(sample):
        return Proof(scorer.packing.layout, 0.0, None, 0)
    _check_sizes(scorer.model, pairs)
    plain = sample.plain(scorer)
    _check_finite(scorer, plain, sample.places)
    trial = Trial(scorer, sample, plain)
    for layout in scorer.layouts:
        error = trial.error_of(layout)
        if error is not None:
            proof = Proof(layout, error, trial.own_error, len(sample), trial.passed_over)
            scorer.use(layout)  # the sharp test had another attention
            scorer.proven = True
            _tell(scorer, proof)
            return proof
    raise UserError(
        f"{type(scorer.model).__name__} does not give the same log-probabilities twice, so nothing can be learned "
        f"from them ({trial.passed_over['single']})"
    )


def prove_once(scorer: PairScorer, pairs: EncodedPairs, token_budget: int | None = None) -> None:
    """Nothing is scored or trained without proof."""
    if not scorer.proven:
        prove(scorer, pairs, token_budget)


@dataclass(frozen=True)
class Trial:
    """One layout after another, on the same pairs."""

    scorer: PairScorer
    sample: Sample
    plain: Tensor  # (n, 2) scores as the model is used
    truths: dict[torch.dtype, Tensor] = field(default_factory=dict)  # (n, 2) scores in higher precisions
    passed_over: dict[str, str] = field(default_factory=dict)

    @property
    def own_error(self) -> float | None:
        """Of the model's plain way, the largest, if it was measured."""
        return None if not self.truths else float((self.plain - self._truth).abs().max())

    @property
    def _truth(self) -> Tensor:
        return next(iter(self.truths.values()), self.plain)

    def error_of(self, layout: Layout) -> float | None:
        """The largest error of a layout that is right; None, and why, of one that is not."""
        found = self._scores(layout, training=layout != "single")
        if found is None:
            return None
        floor, errors = _floor(self.scorer) * self._units, (found - self.plain).abs()
        precise = _dtype(self.scorer.model) in SHARP
        if (precise or layout == "single") and bool((errors <= floor).all()):
            return float(errors.max())
        if layout != "single":
            if not self._agrees_sharply(layout):
                return None
            errors = (found - self._truth).abs()
            if bool((errors <= torch.maximum(floor, self._chance)).all()):
                return float(errors.max())
        own = "" if self.own_error is None else f"; its own rounding is {self.own_error:.3g}"
        self._refuse(layout, errors, own)
        return None

    def _refuse(self, layout: Layout, errors: Tensor, more: str) -> None:
        what = "log-probabilities" if self.scorer.summed else "scores"
        self.passed_over[layout] = f"{what} differ by {float(errors.max()):.3g} from the model's own{more}"

    @property
    def _units(self) -> Tensor:
        """(n, 2) what errors are measured in: rounding adds up like a random walk over a response's tokens, so the
        root of their number; for scores that are no sums, a quarter of how far they differ."""
        if self.scorer.summed:
            return self.sample.roots
        return torch.full_like(self.plain, float(self.plain.std()) / 4)

    @property
    def _chance(self) -> Tensor:
        """(n, 2) how far from the truth a right layout may be: as far as chance takes errors of the size of the
        model's own. That is Student's t, for the largest of n errors relative to the mean size of n others."""
        own = (self.plain - self._truth) / self._units
        times = float(stats.t.isf(CHANCE / 2 / own.numel(), own.numel()))
        return times * float(own.square().mean().sqrt()) * self._units

    def _agrees_sharply(self, layout: Layout) -> bool:
        """In a higher precision; and in a still higher one, if rounding could explain why not. FlashAttention has
        none: it is as right as `packed`, if its kernel is. True, too, if there is no room for any."""
        twin: Layout = "packed" if layout == "flash" else layout
        compared = False
        for precision in _higher_precisions(self.scorer.model):
            try:
                with _weights_in(precision, self.scorer.model):
                    if precision not in self.truths:
                        self.truths[precision] = self.sample.plain(self.scorer)
                    found = self._scores(twin, training=True, sharp=True)
            except Exception:  # the model cannot compute in it, or there is no room after all
                continue
            if found is None:
                self.passed_over[layout] = self.passed_over[twin]
                return False
            compared, differences = True, (found - self.truths[precision]).abs()
            if bool((differences <= SHARP[precision] * self._units).all()):
                return True
            self._refuse(layout, differences, f" in {str(precision).removeprefix('torch.')}")
        return not compared

    def _scores(self, layout: Layout, *, training: bool, sharp: bool = False) -> Tensor | None:
        """(n, 2); None, and why, if the model cannot be used this way. The sharp test takes the model's usual
        attention, and a dense mask."""
        scorer, budget = self.scorer, self.sample.budget
        try:
            if layout in ("flash", "packed") and scorer.device.type == "cuda" and _has_position_table(scorer.model):
                raise CannotPack("it looks positions up in a table")  # an index outside it would end the process
            scorer.use(layout, usual_attention=sharp)
            if layout == "flash":
                _check_flash(scorer, self.sample.compared)
            return self.sample.scores(scorer, min(budget, DENSE) if sharp else budget, training=training)
        except torch.OutOfMemoryError:
            raise
        except Exception as error:  # a model's code may fail in any way on inputs that it was not made for
            self.passed_over[layout] = str(error).splitlines()[0] if str(error) else type(error).__name__
            return None


def _floor(scorer: PairScorer) -> float:
    """Errors that never matter."""
    floor = FLOORS.get(_dtype(scorer.model), FLOORS[torch.bfloat16])
    if scorer.device.type == "cuda" and Ranks.current().world > 1:
        return FLOORS[torch.bfloat16]  # float32 shards are the masters of a model that computes in bfloat16
    return max(floor, TF32) if scorer.attention == "flex_attention" else floor


def _check_flash(scorer: PairScorer, pairs: Sequence[EncodedPair]) -> None:
    """Tries the kernel by itself on the shortest pairs, with the model's sliding window too if it has one: in 16 bits,
    a whole model's rounding could hide a small mistake."""
    shortest = sorted(pairs, key=lambda pair: pair.tokens)[:3]
    length = sum(pair.tokens for pair in shortest)
    batch = PackedBatch.of(shortest, length, sequences=True).to(scorer.device)
    assert batch.sequences is not None
    sliding = getattr(scorer.model.config.get_text_config(), "sliding_window", None)
    for window in [None] if sliding is None else [None, max(1, min(sliding, batch.longest // 2))]:
        check_kernel(scorer.model, batch.sequences._replace(window=window), batch.dense_mask(window))


def _tell(scorer: PairScorer, proof: Proof) -> None:
    if "packed" in proof.passed_over:
        why, name = proof.passed_over["packed"], type(scorer.model).__name__
        warnings.warn(f"{name} is not packed ({why}): {COSTS[proof.layout]}", UnmdpoWarning, stacklevel=3)
    elif proof.layout == "flash" and is_missed(scorer.device):
        warnings.warn(MISSED, UnmdpoWarning, stacklevel=3)


def _check_sizes(model: PreTrainedModel, pairs: EncodedPairs) -> None:
    """Refuses what would read outside the model's tables, which ends a process on a GPU and is nonsense elsewhere."""
    embeddings = model.get_input_embeddings()
    largest, known = int(unmarked(pairs.tokens).max(initial=0)), getattr(embeddings, "num_embeddings", None)
    if known is not None and largest >= known:
        raise UserError(
            f"the tokenizer gives token {largest}, but the model knows only {known}: use the tokenizer that came with "
            "it, or resize its embeddings (resize_token_embeddings) and train the new ones first"
        )
    most, context = int(longest(pairs.valid_lengths).max()), longest_input(model.config)
    if context is not None and most > context and _has_position_table(model):
        raise UserError(f"a pair has {most} tokens, but the model takes {context}: lower max_length")


def _has_position_table(model: PreTrainedModel) -> bool:
    """Whether positions are learned: an embedding with a row for each of them."""
    tokens, context = model.get_input_embeddings(), longest_input(model.config)
    tables = [module for module in model.modules() if isinstance(module, nn.Embedding) and module is not tokens]
    return context is not None and any(abs(table.num_embeddings - context) <= OFFSET for table in tables)


def _check_finite(scorer: PairScorer, plain: Tensor, places: Sequence[int]) -> None:
    bad = [place for place, fine in zip(places, plain.isfinite().all(dim=1).tolist(), strict=True) if not fine]
    if bad:
        raise UserError(
            f"the log-probabilities that {type(scorer.model).__name__} gives are not finite, for example of "
            f"comparisons {bad} (counted from 0); check the model's weights"
        )


def _dtype(model: PreTrainedModel) -> torch.dtype:
    """The least precise dtype of the weights."""
    kinds = {parameter.dtype for parameter in model.parameters() if parameter.is_floating_point()}
    return max(kinds, key=lambda kind: torch.finfo(kind).eps, default=torch.float32)


def _higher_precisions(model: PreTrainedModel) -> Iterator[torch.dtype]:
    """Those higher than the model's for which there is room beside it, if its weights are whole."""
    quantized = getattr(model, "hf_quantizer", None) is not None
    quantized = quantized or any(parameter.dtype not in FLOORS for parameter in model.parameters())
    if quantized or Ranks.current().world > 1:
        return
    on_gpu = model.device.type == "cuda"
    room = torch.cuda.mem_get_info(model.device)[0] if on_gpu else available(model.device)
    for precision in SHARP:
        needed = sum(precision.itemsize * parameter.numel() for parameter in model.parameters())
        if torch.finfo(precision).eps < torch.finfo(_dtype(model)).eps and 1.5 * needed < room:
            yield precision


@contextlib.contextmanager
def _weights_in(precision: torch.dtype, model: PreTrainedModel) -> Iterator[None]:
    """For a moment, all weights are in this precision."""
    before = {parameter: parameter.data for parameter in model.parameters()}
    try:
        for parameter, weight in before.items():
            parameter.data = weight.to(precision)
        yield
    finally:
        for parameter, weight in before.items():
            parameter.data = weight
