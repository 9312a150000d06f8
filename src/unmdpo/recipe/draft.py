"""A first recipe for someone's data: short, complete, and with a word about every number in it. Alone in this room, it
looks at data and model."""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import yaml

from unmdpo.audit.describe import Description, Spread, Tokens, describe
from unmdpo.data.comparison import Comparison
from unmdpo.data.reading import RowsSettings
from unmdpo.engine.settings import ModelSource
from unmdpo.recipe.loader import packaged

DEFAULT_MODEL, DEFAULT_SIZE = "HuggingFaceTB/SmolLM2-135M-Instruct", 134_515_008

PAPER_PAIRS = 128 * 150  # what the paper trains on
SMALL_RATE, PAPER_RATE, PAPER_SIZE = 5e-5, 1e-6, 1e9
LENGTHS = (512, 1024, 2048, 4096, 8192)
RESERVED = ("null", "true", "false", "yes", "no", "on", "off", "y", "n")  # what YAML takes for something else
ENOUGH = 300  # prompts to learn a scale from: the fewest with which one was seen to pay
HELD_OUT = 20  # prompts at least, if that leaves enough to train on
PANEL = 200  # prompts
FEW = 2_000  # comparisons, up to which they are seen twice
HOLDS = 0.99  # share of comparisons that should fit


@dataclass(frozen=True)
class Draft:
    """What a recipe is written from."""

    rows: RowsSettings
    model: str
    comparisons: int
    prompts: int
    template: str | None = None
    parameters: int | None = None
    max_length: int | None = None
    validation_split: str | None = None  # the data's own, if it has one

    @property
    def name(self) -> str:
        """The data's name, as a recipe may be called."""
        words = re.findall(r"[a-z0-9]+", Path(self.rows.place).name.lower().split(".")[0])
        return "-".join(words)[:60] or "mine"

    @property
    def rate(self) -> float:
        """The paper's for models of its size; small models need more, and 5e-5 served SmolLM2-135M best."""
        size = self.parameters or PAPER_SIZE
        scaled = PAPER_RATE * (PAPER_SIZE / size) ** 2
        return float(f"{min(SMALL_RATE, max(PAPER_RATE, scaled)):.0e}")

    @property
    def batch(self) -> int:
        """At most the paper's, and small enough for some twenty updates on what the pilots see."""
        largest = max(1, int(0.75 * self.comparisons) // 20)
        return min(128, 1 << (largest.bit_length() - 1))

    @property
    def budget(self) -> dict[str, object]:
        if self.comparisons >= PAPER_PAIRS:
            return {"updates": 150}
        return {"epochs": 1 if self.comparisons > FEW else 2}

    @property
    def training(self) -> dict[str, object]:
        return {**self.budget, "batch": self.batch, "learning_rate": self.rate}

    def text(self, *, all_methods: bool = False) -> str:
        size = f"{self.parameters / 1e6:,.3g}M parameters" if self.parameters else "a model of unknown size"
        enough = self.prompts >= ENOUGH
        why = "as in the paper" if self.rate == PAPER_RATE else "the paper's 1e-6 is for 1B and more"
        lines = [
            f"name: {self.name if self.name[0].isalpha() and self.name not in RESERVED else json.dumps(self.name)}",
            f"model: {_flow({'path': self.model, 'template': self.template})}",
            f"data:  # {self.comparisons:,} comparisons without ties",
            *(f"  {line}" for line in _block(self.data)),
            f"training: {_flow({**self.training, **self._validation})}  # for {size}; {why}",
            *(self._all_methods() if all_methods else self._with_scale() if enough else self._without_scale()),
            "# To know whether it got better, add a judge: the path of a reward model, a function, an LLM's endpoint,",
            "# or train: {path: other-pairs.jsonl}; primary: {against: initial} asks about the model you start from.",
            f"# evaluation: {{baseline: dpo, initial: true, panels: {{held-out: {self._panel}}}, judge: {{path: …}}}}",
        ]
        return "\n".join(lines) + "\n"

    @property
    def data(self) -> dict[str, object]:
        """What is read, as it was asked for, and where prompts for evaluation come from."""
        first = {"source": str(self.rows.source), "path": str(self.rows.path)}
        data = first | self.rows.model_dump(mode="json", exclude_defaults=True)
        if self.max_length is not None:
            data["max_length"] = self.max_length
        own = self.validation_split
        return data | {"validation": {"split": own} if own else {"fraction": self._fraction}}

    @property
    def _fraction(self) -> float:
        """A twentieth of the prompts; of few, up to a quarter."""
        return round(min(0.25, max(0.05, HELD_OUT / max(1, self.prompts))), 2)

    @property
    def _validation(self) -> dict[str, object]:
        return {"validate_updates": 50} if self.prompts >= HELD_OUT else {}

    def _with_scale(self) -> list[str]:
        return [
            f"pilots: {_flow({**self.budget, 'folds': 5})}",
            "scales: {ln: {estimator: pooled, length_normalized: true}}",
            "policies:",
            "  dpo: {objective: dpo}",
            "  ulnm-wr: {objective: ulnm-wr, scale: ln}",
        ]

    def _without_scale(self) -> list[str]:
        return [
            f"policies:  # {self.prompts:,} prompts are too few to learn from how uncertain each one is",
            "  dpo: {objective: dpo}",
            "  fixed-margin: {objective: fixed-margin}",
        ]

    def _all_methods(self) -> list[str]:
        """Those of the paper's main table. There, SPO learns five times as fast as the others."""
        methods = yaml.safe_load(packaged()["_methods"])
        methods["policies"]["spo"]["training"] = {"learning_rate": float(f"{5 * self.rate:.1e}")}
        blocks = [
            [f"{block}:", *(f"  {name}: {_flow(given)}" for name, given in methods[block].items())]
            for block in methods
        ]
        few = "" if self.prompts >= ENOUGH else f"  # {self.prompts:,} prompts are too few to learn a scale from"
        return [f"pilots: {_flow({**self.budget, 'folds': 5})}{few}", *chain.from_iterable(blocks)]

    @property
    def _panel(self) -> str:
        """All that is held out, up to the paper's 200."""
        return "{size: 200, seed: 1}" if self._fraction * self.prompts > PANEL else "{}"


def fitting_length(shares_over: dict[int, float], context: int | None) -> int:
    """The shortest limit that nearly all comparisons fit in, within the model's context."""
    possible = [length for length in shares_over if context is None or length <= context] or [min(shares_over)]
    return next((length for length in possible if shares_over[length] <= 1 - HOLDS), possible[-1])


def _flow(values: dict[str, object]) -> str:
    """`{a: 1, b: 2}`, without what is not set."""
    known = {name: value for name, value in values.items() if value is not None}
    text: str = yaml.safe_dump(known, default_flow_style=True, sort_keys=False, width=10_000, allow_unicode=True)
    return text.strip()


def _block(values: dict[str, object]) -> list[str]:
    text: str = yaml.safe_dump(values, default_flow_style=None, sort_keys=False, width=10_000, allow_unicode=True)
    return text.splitlines()


def drafted(
    wanted: RowsSettings, model: ModelSource | None, against: Sequence[str] = (), template: str | None = None
) -> tuple[Description, Draft]:
    """What is in the data, and a first recipe for it; without a model, for a small one. The `template` is the model's,
    as it was named."""
    seen, sample = describe(wanted, against)
    parameters: int | None = DEFAULT_SIZE if model is None else None
    max_length: int | None = None
    if model is not None:
        from unmdpo.engine.sharding import size_and_context  # noqa: PLC0415

        seen.tokens = _tokens(model, sample)
        parameters, context = size_and_context(model)
        max_length = fitting_length({most: seen.tokens.over(most) for most in LENGTHS}, context)
    draft = Draft(
        rows=wanted.model_copy(update={"source": seen.source}),
        model=DEFAULT_MODEL if model is None else str(model.path),
        template=template,
        comparisons=seen.comparisons,
        prompts=seen.prompts,
        parameters=parameters,
        max_length=max_length,
        validation_split=next(iter(seen.splits), None),
    )
    return seen, draft


def _tokens(source: ModelSource, rows: Sequence[Comparison]) -> Tokens:
    """What the model's tokenizer makes of some comparisons. PyTorch is imported here, where it is needed."""
    from unmdpo.engine.text.encode import Encoder  # noqa: PLC0415
    from unmdpo.engine.text.encoded import EncodedPairs, longest  # noqa: PLC0415

    encoder = Encoder.of(source)
    lengths = EncodedPairs.of(encoder.encode(rows)).lengths
    return Tokens(
        sampled=len(rows),
        longest=longest(lengths),
        prompt=Spread.of(lengths[:, 0].tolist()),
        response=Spread.of(lengths[:, 1:].ravel().tolist()),
        remarks=tuple(encoder.remarks()),
    )
