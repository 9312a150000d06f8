"""Every setting of a recipe, with its default and what it means, from the schema."""

import json
from collections.abc import Iterator, Mapping
from itertools import groupby
from typing import Any, NamedTuple

from unmdpo.recipe.recipe import Recipe

INTRODUCTION = """# Every setting

Every setting of a recipe, with its default. Most recipes need few of them: see [Recipes](recipes.md).
`unmdpo recipes settings WORD` searches them in a terminal. Objectives and
estimators have settings of their own: see [Objectives](../method/objectives.md) and [Scales](../method/scales.md).
Which of `path`, `train`, `function` and `endpoint` you set determines the kind of judge. All judges have
the settings of `evaluation.judge`.
"""
JUDGE = "evaluation.judge"  # where the settings of every kind of judge are listed


class Setting(NamedTuple):
    key: str  # data.validation.fraction, or policies.NAME.objective
    default: str  # empty if it must be given
    meaning: str


def settings() -> list[Setting]:
    """In the order in which recipes are written."""
    schema = Recipe.model_json_schema()
    extends = Setting("extends", "–", "recipes to build on, packaged ones or YAML files; the last one wins")
    return [extends, *_of(schema, schema["$defs"], "")]


def _of(node: Mapping[str, Any], known: Mapping[str, Any], start: str) -> Iterator[Setting]:
    needed = set(node.get("required", ()))
    for name, field in node.get("properties", {}).items():
        key, inner = f"{start}{name}", [*_inner(field, known)]
        default = "" if name in needed or inner else _shown(field.get("default"))
        yield Setting(key, default, _meaning(field))
        if f".{name}." in f".{start}" or (name in ("judge", "judges") and key != JUDGE):
            continue  # numbers against others hold no others, and all judges are alike
        listed = {one: None for kind, middle in inner for one in _of(kind, known, f"{key}{middle}.")}
        yield from listed


def _inner(field: Mapping[str, Any], known: Mapping[str, Any]) -> Iterator[tuple[Mapping[str, Any], str]]:
    """Each kind of settings that the field may hold, with `.NAME` if there are several of them by name."""
    for option in (field, *field.get("anyOf", ()), *field.get("allOf", ())):
        if "$ref" in option:
            option = known[option["$ref"].rpartition("/")[2]]
        if "properties" in option:
            yield option, ""
        elif option is not field:
            yield from _inner(option, known)
        for named in option.get("patternProperties", {}).values():
            yield from ((kind, f".NAME{more}") for kind, more in _inner(named, known))


def _meaning(field: Mapping[str, Any]) -> str:
    choices = field.get("enum") or next((one["enum"] for one in field.get("anyOf", ()) if "enum" in one), None)
    said = str(field.get("description", ""))
    return f"{said}; one of {', '.join(map(str, choices))}" if choices else said


def _shown(default: Any) -> str:
    return "–" if default in (None, {}, [], "") else json.dumps(default, ensure_ascii=False)


def as_markdown() -> str:
    """The page of the documentation, with a section for each key of a recipe that holds others."""
    lines = [INTRODUCTION]
    for section, group in groupby(settings(), lambda one: one.key.partition(".")[0]):
        members = [*group]
        title = f"`{section}`" if len(members) > 1 else "The run"
        if f"## {title}" not in lines:
            lines += ["", f"## {title}", "", "| setting | default | meaning |", "|---|---|---|"]
        for one in members:
            default = f"`{one.default}`" if one.default not in ("", "–") else one.default
            meaning = one.meaning.replace("|", r"\|")
            lines.append(f"| `{one.key}` | {default} | {meaning} |")
    return "\n".join([*lines, ""])
