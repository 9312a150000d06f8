"""`unmdpo.train`: a policy from rows and a model that a program holds, without a recipe to write."""

import hashlib
import json
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformers import AutoTokenizer, PreTrainedModel
from transformers.utils.logging import disable_progress_bar

from unmdpo.core.errors import UserError
from unmdpo.core.files import put_in_place, sha256
from unmdpo.core.settings import resolve
from unmdpo.engine.settings import ModelSource
from unmdpo.objectives.table import OBJECTIVES
from unmdpo.recipe import Recipe, parse_recipe
from unmdpo.recipe.draft import drafted
from unmdpo.recipe.loader import merge
from unmdpo.recipe.margin import MarginRecipe
from unmdpo.recipe.settings import RowsRecipe
from unmdpo.store.store import GIVEN

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

POLICY, SCALE = "policy", "q"
OF_STRENGTHS = {"tau", "offset", "slope", "eta"}  # settings that say what a strength is worth


def recipe_of(
    model: "str | Path | PreTrainedModel",
    dataset: "str | Path | Iterable[Mapping[str, Any]]",
    objective: str,
    scale: str | None,
    tokenizer: "PreTrainedTokenizerBase | str | Path | None",
    store: Path,
    settings: Mapping[str, Any] | None,
    sections: Mapping[str, Any],
) -> Recipe:
    """The recipe that `unmdpo init` would write, with one policy; `sections` are merged over it, and the policy's own
    `settings`."""
    own = {} if settings is None else {"settings": dict(settings)}
    source = resolve(ModelSource, {"path": _model(model, tokenizer, store), **sections.get("model", {})}, "model")
    asked = {key: value for key, value in sections.get("data", {}).items() if key in RowsRecipe.model_fields}
    rows = resolve(RowsRecipe, {"path": _rows(dataset, store), **asked}, "data")
    known = OBJECTIVES.get(objective)
    seen, draft = drafted(rows.as_read, source)
    if needs_strengths(objective) and {*seen.strengths} <= {1}:
        raise UserError(
            f"'{objective}' learns from strengths, but all are equal here ({seen.strength_from}). "
            "If a column holds them, say data={'columns': {'strength': NAME}}; without any, use 'dpo'"
        )
    if scale is None and known is not None and known.scale:
        scale = "auto"
    fitted = {SCALE: {"estimator": scale, "length_normalized": known is not None and known.normalized}}
    chosen = dict(settings or {})
    if "beta" in chosen:  # the scale is fitted to the policy's own log-ratios
        fitted[SCALE]["beta"] = chosen["beta"]
    margin = {name: chosen[name] for name in MarginRecipe.model_fields if name in chosen}
    described = {
        "name": objective,
        "model": source.model_dump(exclude_defaults=True),
        "data": {key: value for key, value in draft.data.items() if key != "validation"},  # all is trained on
        "training": draft.training,
        "pilots": draft.budget,
        "margin": margin,
        "scales": {} if scale is None else fitted,
        "policies": {POLICY: {"objective": objective} | own | ({} if scale is None else {"scale": SCALE})},
    }
    return parse_recipe(merge(described, dict(sections)))


def needs_strengths(objective: str) -> bool:
    known = OBJECTIVES.get(objective)
    return known is not None and not OF_STRENGTHS.isdisjoint(known.settings.model_fields)


def _model(
    model: "str | Path | PreTrainedModel", tokenizer: "PreTrainedTokenizerBase | str | Path | None", store: Path
) -> str:
    """Its name or folder. A loaded model is written to the store as it is, under a name made from its content."""
    if isinstance(model, str | Path):
        return str(model)
    if not isinstance(model, PreTrainedModel):
        kind = type(model).__name__
        raise UserError(f"a model should be a name, a folder, or one that Transformers loaded, not a {kind}")
    if tokenizer is None and not model.name_or_path:
        raise UserError("the model does not say where it came from: give its tokenizer too")
    disable_progress_bar()  # type: ignore[no-untyped-call]
    known = model.name_or_path if tokenizer is None else tokenizer
    reader: Any = AutoTokenizer.from_pretrained(known) if isinstance(known, str | Path) else known

    def write(folder: Path) -> None:
        model.save_pretrained(folder)
        reader.save_pretrained(folder)

    return _kept(store / GIVEN, "model", write)


def _rows(dataset: "str | Path | Iterable[Mapping[str, Any]]", store: Path) -> str:
    """Their path or name; rows that a program holds are written to the store."""
    if isinstance(dataset, str | Path):
        return str(dataset)

    def write(path: Path) -> None:
        with path.open("w", encoding="utf-8") as file:
            file.writelines(_lines(dataset))

    return _kept(store / GIVEN, "rows.jsonl", write)


def _kept(folder: Path, name: str, write: Callable[[Path], None]) -> str:
    """The path of what `write` makes, named by its content: the same again is the same file, so its runs are found."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder, prefix=".") as aside:
        made = Path(aside) / name
        write(made)
        files = [made] if made.is_file() else sorted(made.iterdir())
        digest = hashlib.sha256("".join(f"{file.name} {sha256(file)}\n" for file in files).encode()).hexdigest()
        path = folder / f"{made.stem}-{digest[:16]}{made.suffix}"
        if not path.exists():
            put_in_place(made, path)
    return str(path)


def _lines(dataset: "Iterable[Mapping[str, Any]]") -> Iterator[str]:
    for place, row in enumerate(dataset, start=1):
        if not isinstance(row, Mapping):
            kind = type(row).__name__
            raise UserError(
                f"a dataset should be a name, a file, or rows that are dictionaries, but row {place} is a {kind}: "
                "of several splits give one, and of a data frame its to_dict('records')"
            )
        try:
            yield json.dumps(dict(row), ensure_ascii=False, allow_nan=False) + "\n"
        except (TypeError, ValueError) as error:
            raise UserError(f"row {place} of the dataset cannot be written as JSON: {error}") from error
