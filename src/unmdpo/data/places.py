"""Where data lies: files, folders of them, or a data set on the Hub."""

from collections.abc import Iterable
from pathlib import Path

from unmdpo.core.places import Place


class DataPlace(Place):
    """Of a folder, only the files with rows count."""

    hub = "dataset"

    def files_read(self, folder: Path) -> Iterable[Path]:
        from unmdpo.data.readers.files import data_files  # noqa: PLC0415 - recipes are checked without pyarrow

        return data_files(folder, None)
