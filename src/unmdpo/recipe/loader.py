"""Loads recipes by name or path: finds them, applies overrides, checks them, and explains mistakes."""

import json
import os
import re
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from unmdpo.core.errors import UserError, did_you_mean
from unmdpo.core.files import expand_home, read_small
from unmdpo.core.settings import said
from unmdpo.recipe.document import Document
from unmdpo.recipe.recipe import Recipe, as_yaml

Key = tuple[str | int, ...]
MAX_MISTAKES = 12  # what fits on a screen
BUDGETS, INSTEAD = ("training", "pilots"), {"updates": "epochs", "epochs": "updates"}  # one replaces the other
PLACES = {"path", "function", "endpoint", "train"}  # where a model, data or a judge comes from: one of them
OF_PLACE = {"revision"}  # what only holds for one place
PACKAGED = resources.files("unmdpo.recipe") / "packaged"


def packaged() -> dict[str, str]:
    """Name → text of every recipe in the package. Those whose names start with an underscore are only meant to be
    extended."""
    files = (file for file in PACKAGED.iterdir() if file.name.endswith(".yaml"))
    ordered = sorted(files, key=lambda file: file.name)
    return {file.name.removesuffix(".yaml"): file.read_text("utf-8") for file in ordered}


def parse_recipe(described: Mapping[str, Any], overrides: Sequence[str] = ()) -> Recipe:
    """A recipe from a dictionary, which may extend others, as a file may."""
    document = Document(as_yaml(dict(described)), "recipe")
    document.places.clear()  # nobody wrote its lines
    return _loaded(document, overrides)


def load_recipe(name: str, overrides: Sequence[str] = ()) -> Recipe:
    """Loads a packaged recipe or a YAML file and applies `key.sub=value` overrides."""
    return _loaded(_find(name), overrides)


def _loaded(document: Document, overrides: Sequence[str]) -> Recipe:
    data = _merged_data(document)
    places_first = sorted(overrides, key=lambda text: text.partition("=")[0].rpartition(".")[2] not in PLACES)
    overridden = {key: text for text in places_first for key in [_override(data, text)]}
    try:
        return Recipe.model_validate(data)
    except ValidationError as error:
        raise UserError(_explain(error, document, overridden)) from None


def _merged_data(document: Document, above: tuple[str, ...] = ()) -> dict[str, Any]:
    """The document merged over the recipes it extends; of those, later ones override earlier ones."""
    data = {} if document.data is None else document.data
    if not isinstance(data, dict):
        raise UserError(f"{document.name}:1:1: a recipe should be a mapping of keys to values")
    base = data.pop("extends", None)
    if base is None:
        return data
    where = f"{document.name}:{document.places.get(('extends',), '1:1')}"
    names = base if isinstance(base, list) else [base]
    if not names or not all(isinstance(name, str) for name in names):
        raise UserError(f"{where}: extends: should be a packaged name or a YAML file, or a list of them")
    if document.name in above:
        raise UserError(f"{where}: extends: this recipe extends itself, through {', '.join(above)}")
    merged: dict[str, Any] = {}
    for name in names:
        if name.endswith((".yaml", ".yml")):
            name = str(Path(document.name).parent / name)  # relative to the file that names it
        merged = merge(merged, _merged_data(_find(name), (*above, document.name)))
    return merge(merged, data)


def merge(base: dict[str, Any], changes: dict[str, Any], section: str = "") -> dict[str, Any]:
    """Merges mappings key by key and replaces everything else; null removes a key."""
    merged = {key: value for key, value in base.items() if key not in _superseded(section, base, changes)}
    for key, value in changes.items():
        if value is None:
            merged.pop(key, None)
        elif isinstance(value, dict) and isinstance(merged.get(key), dict):
            merged[key] = merge(merged[key], value, key)
        else:
            merged[key] = value
    return merged


def _superseded(section: str, base: Mapping[str, Any], changes: Mapping[str, Any]) -> set[str]:
    """What changes without a word about it: of two budgets or two places, the old one and what only holds there."""
    given = {key for key, value in changes.items() if value is not None}
    old = {INSTEAD[key] for key in INSTEAD.keys() & given} if section in BUDGETS else set[str]()
    if any(changes[key] != base.get(key) for key in PLACES & given):
        old |= {*PLACES, *OF_PLACE}
    return old - changes.keys()


def _find(name: str) -> Document:
    path = expand_home(name)
    if path.suffix in {".yaml", ".yml"} or os.sep in name:
        try:
            return Document(read_small(path), name)
        except ValueError as error:
            raise UserError(str(error)) from error
        except OSError as error:
            raise UserError(f"{name}: cannot be read: {error.strerror}") from error
    recipes = packaged()
    if name not in recipes:
        raise UserError(f"there is no recipe '{name}'; {did_you_mean(name, recipes)}")
    return Document(recipes[name], f"{name}.yaml")


def _override(data: dict[str, Any], text: str) -> Key:
    """Sets `key.sub=value` in `data`; the value is parsed as YAML."""
    path, equals, value = text.partition("=")
    keys = tuple(path.split("."))
    if not equals or not all(keys):
        raise UserError(f"override '{text}' should look like key.sub=value")
    for key in keys[:-1]:
        if data.get(key) is None:
            data[key] = {}
        data = data[key]
        if not isinstance(data, dict):
            raise UserError(f"override '{text}': '{key}' is a value and has no keys below it")
    found = Document(value, f"override '{text}'").data
    if keys[:-1] == ("policies",) and keys[-1] not in data:  # in front: the last policy is the question
        data |= {keys[-1]: None} | {name: data.pop(name) for name in [*data]}
    for old in _superseded(keys[-2] if len(keys) > 1 else "", data, {keys[-1]: found}):
        data.pop(old, None)
    data[keys[-1]] = found
    return keys


def _explain(error: ValidationError, document: Document, overridden: dict[Key, str]) -> str:
    """One line per mistake, in the file's order: where it is, which key, what is wrong."""
    lines = list[tuple[list[int], str]]()
    for detail in error.errors():
        context = detail.get("ctx", {})
        key: Key = tuple(context.get("path", detail["loc"]))
        message = said(detail)
        dotted = ".".join(str(part) for part in key) or "recipe"
        if detail["type"] == "literal_error" and isinstance(detail["input"], str):
            message = f"unknown name '{detail['input']}'; {did_you_mean(detail['input'], _choices(context))}"
        place = _place(key, document, overridden, own=detail["type"] == "unknown_key")
        order = [int(number) for number in re.findall(r":(\d+)", place.removeprefix(document.name))]
        colon = "" if message.startswith(("should", "is ")) else ":"
        lines.append((order, f"{place}: {dotted}{colon} {message}"))
    shown = [text for _, text in sorted(lines, key=lambda line: line[0])]
    if len(shown) > MAX_MISTAKES:
        shown[MAX_MISTAKES:] = [f"… and {len(shown) - MAX_MISTAKES} more mistakes"]
    return "\n".join(shown)


def _choices(context: dict[str, Any]) -> list[str]:
    return re.findall(r"'([^']*)'", context.get("expected", ""))


def _place(key: Key, document: Document, overridden: dict[Key, str], own: bool) -> str:
    """The override that set the key or (for an unknown key) created it, else its line in the file."""
    for changed, text in overridden.items():
        if key[: len(changed)] == changed or (own and changed[: len(key)] == key):
            return f"override '{text}'"
    for length in range(len(key), 0, -1):
        if key[:length] in document.places:
            return f"{document.name}:{document.places[key[:length]]}"
    return document.name


def schema() -> str:
    """The recipe's JSON schema, for editors. Since a recipe may extend another, no key is required, and null removes a
    name."""
    described = Recipe.model_json_schema()
    described["properties"]["extends"] = {
        "anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}, "minItems": 1}],
        "description": "packaged recipes, or YAML files relative to this one, to build on; the last one wins",
    }
    for part in (described, *described["$defs"].values()):
        part.pop("required", None)
        for field in part["properties"].values():
            named = field.get("patternProperties", {})
            named |= {name: {"anyOf": [value, {"type": "null"}]} for name, value in named.items()}
    return json.dumps(described, indent=2) + "\n"
