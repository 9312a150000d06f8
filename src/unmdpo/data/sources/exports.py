"""Exports of labelling tools, which become two responses side by side and a label, or one of each annotator."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from unmdpo.data.bad import BadRows
from unmdpo.data.comparison import Comparison
from unmdpo.data.rows import Row
from unmdpo.data.sources.base import Reader, Source, shape
from unmdpo.data.sources.pair_texts import PROMPTS
from unmdpo.data.sources.sides import SIDES

ANSWERS = ".responses"  # ends the names of Argilla's columns with what was answered
SELECTED = {"left": "a", "right": "b"}  # what Label Studio's pairwise tag writes
ABOUT = {"strength": SIDES.strength, "uses": SIDES.uses}


def _side_by_side(unified: Callable[[Row], Row]) -> Reader:
    def read(source: Source, rows: Iterable[Row], bad: BadRows) -> Iterator[Comparison]:
        return SIDES.read(source, bad.parse(rows, unified), bad)

    return read


def _asked(row: Row, texts: Mapping[str, Any], labels: list[Any]) -> Row:
    """The texts of a task, with its prompt under the usual name and the labels that it got."""
    prompt = next((name for name in (*PROMPTS, "text") if name in texts), None)
    if prompt is None:
        raise row.error(f"the task has no prompt: there should be one of {', '.join(PROMPTS)}")
    rest = {name: value for name, value in texts.items() if name != prompt}
    return row.with_values(rest | {"prompt": texts[prompt], "label": labels})


def _label_studio(row: Row) -> Row:
    """Of every annotation that was not cancelled, what it selected or chose."""
    if not isinstance(row.value("data"), Mapping):
        raise row.error("'data' should be an object")
    results = [
        result.get("value", {})
        for annotation in row.items("annotations")
        if isinstance(annotation, Mapping) and not annotation.get("was_cancelled")
        for result in annotation.get("result", [])
        if isinstance(result, Mapping)
    ]
    labels = [label for value in results for name in ("selected", "choices") for label in _several(value.get(name))]
    labels = [SELECTED.get(label, label) if isinstance(label, str) else label for label in labels]
    return _asked(row, row.value("data"), labels)


def _argilla(row: Row) -> Row:
    """Records as objects with `fields` and `responses`, or flat, where the status of each response is beside it."""
    if "fields" in row.values:
        asked, given = row.value("fields"), row.value("responses")
        if not isinstance(asked, Mapping) or not isinstance(given, Mapping):
            raise row.error("'fields' and 'responses' should be objects")
        answers = _several(next(iter(given.values()), None))
        return _asked(row, asked, [one.get("value") if isinstance(one, Mapping) else one for one in answers])
    if row.text("status") == "pending":
        raise row.no_comparison("the record is not completed")
    column = next(name for name in row.values if name.endswith(ANSWERS))
    labels, status = _several(row.value(column)), _several(row.values.get(f"{column}.status"))
    if len(status) == len(labels):
        labels = [label for label, said in zip(labels, status, strict=True) if said == "submitted"]
    return _asked(row, row.values, labels)


def _several(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [] if value is None else [value]


LABEL_STUDIO = Source((shape("data", "annotations"),), _side_by_side(_label_studio), **ABOUT)  # type: ignore[arg-type]
ARGILLA = Source(
    (shape("fields", "responses"), shape("id", "status")),
    _side_by_side(_argilla),
    accepts=lambda row: "fields" in row.values or any(name.endswith(ANSWERS) for name in row.values),
    **ABOUT,  # type: ignore[arg-type]
)
