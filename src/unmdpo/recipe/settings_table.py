"""Every setting of a recipe, with its default and what it means, from the schema."""

import json
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from unmdpo.recipe.recipe import Recipe

INTRODUCTION = """# Every setting

Every setting of a recipe, with its default. Most recipes need few of them: see [Recipes](recipes.md).
`unmdpo recipes settings --markdown` prints this page; `unmdpo recipes settings WORD` searches it. Objectives and
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
    return [*_of(schema, schema["$defs"], "")]


def _of(node: Mapping[str, Any], known: Mapping[str, Any], start: str) -> Iterator[Setting]:
    needed = set(node.get("required", ()))
    for name, field in node.get("properties", {}).items():
        key, inner = f"{start}{name}", _inner(field, known)
        default = "" if name in needed or inner is not None else _shown(field.get("default"))
        yield Setting(key, default, _meaning(field))
        if inner is not None and f".{name}." not in f".{start}":  # numbers against others hold no others
            yield from _of(inner[0], known, f"{key}{inner[1]}.")
        for kind in _kinds(field) if not key.endswith(".judge") or key == JUDGE else ():
            yield from _of(kind, known, f"{key}.")


def _kinds(field: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Settings inside the field itself, such as those of every kind of judge."""
    if "properties" in field:
        yield field
    for option in field.get("anyOf", ()):
        yield from _kinds(option)


def _inner(field: Mapping[str, Any], known: Mapping[str, Any]) -> tuple[Mapping[str, Any], str] | None:
    """The settings inside, and `.NAME` if there are several of them by name."""
    for option in (field, *field.get("anyOf", ()), *field.get("allOf", ())):
        if "$ref" in option:
            found = known[option["$ref"].rpartition("/")[2]]
            if "properties" in found:
                return found, ""
        for named in option.get("patternProperties", {}).values():
            if "$ref" in named:
                return known[named["$ref"].rpartition("/")[2]], ".NAME"
    return None


def _meaning(field: Mapping[str, Any]) -> str:
    choices = field.get("enum") or next((one["enum"] for one in field.get("anyOf", ()) if "enum" in one), None)
    said = str(field.get("description", ""))
    return f"{said}; one of {', '.join(map(str, choices))}" if choices else said


def _shown(default: Any) -> str:
    return "–" if default in (None, {}, [], "") else json.dumps(default, ensure_ascii=False)


def as_markdown() -> str:
    """The page of the documentation."""
    lines = [INTRODUCTION, "| setting | default | meaning |", "|---|---|---|"]
    for one in settings():
        default = f"`{one.default}`" if one.default not in ("", "–") else one.default
        meaning = one.meaning.replace("|", r"\|")
        lines.append(f"| `{one.key}` | {default} | {meaning} |")
    return "\n".join([*lines, ""])
