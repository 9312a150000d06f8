"""UNM-AO, UNM-WR and ULNM-WR inside TRL's DPOTrainer: two columns, and the loss that reads them.

Usage:

    dataset = add_margin_and_scale(dataset, run.scale("ln"))
    trainer = UNMTrainer(model, objective="ulnm-wr", args=DPOConfig(beta=0.05), train_dataset=dataset)
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from packaging.version import Version
from torch import Tensor

from unmdpo.core.errors import UserError
from unmdpo.core.extras import needed
from unmdpo.data import Comparison, StrengthRule
from unmdpo.data.bad import BadRows
from unmdpo.data.comparison import Origin
from unmdpo.data.rows import Row
from unmdpo.data.sources import SOURCES
from unmdpo.data.sources.base import SourceSettings
from unmdpo.objectives import OBJECTIVES, Objective, PairLogps, beta_ln_from_lengths

with needed("unmdpo.integrations.trl", "trl"):
    import trl
    from trl import DPOTrainer

if TYPE_CHECKING:
    from datasets import Dataset

    from unmdpo.results.scale import FittedScale

OLDEST, NEXT = Version("1.16"), Version("2.0")
MARGIN, SCALE = "margin", "scale"
TRAINED = ("unm-ao", "unm-wr", "ulnm-wr")


def check_version(version: str) -> None:
    """The losses below depend on what these versions of the trainer compute, so other versions are refused."""
    if not OLDEST <= Version(version) < NEXT:
        raise UserError(
            f"TRL {version} is installed, but this integration needs at least {OLDEST} and less than {NEXT}: "
            f"pip install 'trl>={OLDEST},<{NEXT}'"
        )


check_version(trl.__version__)


def add_margin_and_scale(
    dataset: "Dataset",
    scale: "FittedScale | Mapping[str, float]",
    *,
    tau: float = 1.0,
    strength: StrengthRule | None = None,
) -> "Dataset":
    """The dataset without ties, with each row's `margin` τ·k and `scale` q added.

    Strengths are read as everywhere in this package: from a column `strength`, or `margin`, or from two scores.
    `scale` is either a fitted scale, which predicts q for prompts it was not fitted to, or a mapping from prompt hash
    to q.
    """
    rows = _comparisons(dataset, strength or StrengthRule())
    kept = [place for place, row in enumerate(rows) if row.strength > 0]
    q = _scale_of([rows[place] for place in kept], scale)
    taken = [name for name in (MARGIN, SCALE) if name in dataset.column_names]
    chosen = dataset.remove_columns(taken).select(kept)
    return chosen.add_column(MARGIN, [tau * rows[place].strength for place in kept]).add_column(SCALE, q)


def _comparisons(dataset: "Dataset", rule: StrengthRule) -> list[Comparison]:
    source = SOURCES["preference"].configured(SourceSettings(strength=rule))
    rows = (Row(values, Origin("dataset", place + 1)) for place, values in enumerate(dataset))
    bad = BadRows(0)
    comparisons = source.all_of(bad.counted(rows), bad)
    bad.settle("dataset")
    return comparisons


def _scale_of(rows: list[Comparison], scale: "FittedScale | Mapping[str, float]") -> list[float]:
    """q of each row's prompt: the fitted value if the scale was fitted to it, otherwise a prediction."""
    if isinstance(scale, Mapping):
        missing = [row for row in rows if row.prompt_hash not in scale]
        if missing:
            raise UserError(f"no scale for the prompts of {len(missing)} rows; the first is {missing[0].source}")
        return [float(scale[row.prompt_hash]) for row in rows]
    table = scale.known()
    known = dict(zip(table["prompt_hash"].to_pylist(), table["q"].to_pylist(), strict=True))
    unseen = {row.prompt_hash: row.prompt for row in rows if row.prompt_hash not in known}
    if unseen:
        predicted = scale.predict([*unseen.values()]).tolist()
        known |= dict(zip(unseen, predicted, strict=True))
    return [float(known[row.prompt_hash]) for row in rows]


class UNMTrainer(DPOTrainer):  # type: ignore[misc]  # TRL has no types
    """TRL's DPOTrainer with one of our losses. `args.beta` is β₀; for ULNM-WR it is multiplied by the median response
    length of the training data ("Length-normalized configurations")."""

    data_collator: Any
    _signature_columns: Any

    def __init__(self, *args: Any, objective: str = "ulnm-wr", **kwargs: Any) -> None:
        if objective not in TRAINED:
            raise UserError(f"objective '{objective}' is not supported here; use one of {', '.join(TRAINED)}")
        super().__init__(*args, **kwargs)
        _refuse_other_losses(self)
        for name, data in (("train_dataset", self.train_dataset), ("eval_dataset", self.eval_dataset)):
            absent = {MARGIN, SCALE} - set(getattr(data, "column_names", None) or (MARGIN, SCALE))
            if data is not None and absent:
                raise UserError(f"{name} has no column '{min(absent)}': call add_margin_and_scale first")
        entry = OBJECTIVES[objective]
        assert isinstance(entry, Objective)
        self.objective = entry
        self.gap_beta = self._length_calibrated() if entry.normalized else float(self.beta)
        self.data_collator = _WithColumns(self.data_collator)

    def _length_calibrated(self) -> float:
        chosen, rejected = (
            torch.tensor([len(ids) for ids in self.train_dataset[f"{side}_ids"]]) for side in ("chosen", "rejected")
        )
        return beta_ln_from_lengths(chosen, rejected, float(self.beta))

    def _set_signature_columns_if_needed(self) -> None:
        super()._set_signature_columns_if_needed()
        self._signature_columns = [*dict.fromkeys([*self._signature_columns, MARGIN, SCALE])]

    def compute_loss(
        self, model: Any, inputs: dict[str, Any], return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        pairs, outputs = self._pairs(model, dict(inputs))
        losses = self.objective.loss(pairs, beta=self.gap_beta, tau=1.0)  # the margin column holds τ·k
        self._record_pair_metrics(pairs)
        loss = losses.mean()
        return (loss, outputs) if return_outputs else loss

    def _pairs(self, model: Any, inputs: dict[str, Any]) -> tuple[PairLogps, Any]:
        """Log-probabilities from policy and reference; the batch's first half is chosen, its second half rejected."""
        margin, scale = inputs.pop(MARGIN), inputs.pop(SCALE)
        completion = inputs["completion_mask"]
        model_inputs = {
            name: value
            for name, value in inputs.items()
            if name not in {"completion_mask", "ref_chosen_logps", "ref_rejected_logps"}
        }
        labels = inputs["input_ids"].masked_fill(completion == 0, -100)
        outputs = model(**model_inputs, labels=labels, use_cache=False, fused_lm_head=True)
        scored = completion[:, 1:]  # (2n, t) the first token is never predicted
        logps = outputs.log_probs[:, -scored.shape[1] :].sum(dim=1)
        if "ref_chosen_logps" in inputs:
            reference = inputs["ref_chosen_logps"], inputs["ref_rejected_logps"]
        else:
            reference = self.compute_ref_log_probs(self.ref_model or model, inputs)
        (chosen, rejected), (chosen_tokens, rejected_tokens) = logps.chunk(2), scored.sum(dim=1).chunk(2)
        pairs = PairLogps(chosen, rejected, chosen_tokens, rejected_tokens, margin, *reference, scale)
        return pairs, outputs

    @torch.no_grad()
    def _record_pair_metrics(self, pairs: PairLogps) -> None:
        """Records metrics under TRL's names."""
        ratio = pairs.mean_log_ratio if self.objective.normalized else pairs.log_ratio
        gap = self.gap_beta * ratio
        logged: dict[str, Tensor] = {
            "rewards/accuracies": (gap > 0).float(),
            "rewards/margins": gap,
            "logps/chosen": pairs.chosen,
            "logps/rejected": pairs.rejected,
        }
        metrics = self._metrics["train" if self.model.training else "eval"]
        for name, values in logged.items():
            metrics[name].append(self.accelerator.gather_for_metrics(values).mean().item())


class _WithColumns:
    """A collator whose batches also hold `margin` and `scale`, (n,) each."""

    def __init__(self, collator: Any) -> None:
        self.collator = collator

    def __call__(self, examples: list[dict[str, Any]]) -> dict[str, Any]:
        batch: dict[str, Any] = self.collator(examples)
        for name in (MARGIN, SCALE):
            batch[name] = torch.tensor([float(example[name]) for example in examples])
        return batch


def _refuse_other_losses(trainer: Any) -> None:
    """Settings of TRL's built-in losses would be ignored here, so they are refused."""
    changed = {
        "loss_type": list(trainer.loss_types) != ["sigmoid"],
        "use_weighting": trainer.use_weighting,
        "ld_alpha": trainer.ld_alpha is not None,
        "f_divergence_type": trainer.f_divergence_type != "reverse_kl",
        "output_router_logits": trainer.aux_loss_enabled,
    }
    for name in (name for name, is_set in changed.items() if is_set):
        raise UserError(f"'{name}' only affects TRL's built-in losses; leave it at its default")
