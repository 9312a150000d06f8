"""Rows from the Hugging Face Hub, or from a local mirror of the same layout."""

from collections.abc import Iterator

from unmdpo.data.comparison import Origin
from unmdpo.data.rows import Row
from unmdpo.errors import UserError


def hub_rows(
    path: str, *, split: str | None, revision: str | None, config: str | None, data_dir: str | None
) -> Iterator[Row]:
    """The rows of one split of a Hub dataset at a revision, or of all its splits."""
    import datasets  # noqa: PLC0415 - slow to import, and only Hub data needs it

    where = f"{path}@{revision[:12]}" if revision else path
    try:
        dataset = datasets.load_dataset(path, name=config, data_dir=data_dir, revision=revision, split=split)
    except Exception as error:  # the library raises many kinds, all of them about the dataset or the network
        raise UserError(
            f"{where}: the Hub dataset could not be loaded: {error}\n"
            "Check the name, revision and network (a gated dataset needs `hf auth login`), "
            "or download its files and give their folder instead."
        ) from error
    parts = {split: dataset} if split is not None else dict(dataset)
    for name, part in parts.items():
        for number, values in enumerate(part, 1):
            yield Row(values, Origin(f"{where} [{name}]", number))
