"""Concrete: compressive strength of 1030 mixtures, a linear regression (Yeh, 1998; UCI 165)."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar
from warnings import catch_warnings, filterwarnings

import numpy as np
import torch
from annotated_types import Ge
from numpy.typing import NDArray

from hpcfl.data.base import DataConfig, Dataset
from hpcfl.data.download import PublishedFile, Track, check_count, provide
from hpcfl.data.prepared_file import prepare_command
from hpcfl.data.sources.arrays import cast
from hpcfl.errors import DataError
from hpcfl.io.files import read_error
from hpcfl.io.regular import open_text
from hpcfl.types import Examples, PathText

_COLUMNS = 9  # eight features, then the target
_ROWS = 1030
_MEANS = (281.17, 73.90, 54.19, 181.57, 6.204, 972.92, 773.58, 45.66, 35.82)
"""The means of the columns, as UCI publishes them, with different numbers of digits."""
TABLE = PublishedFile(
    name="Concrete_Data.csv",
    url="https://archive.ics.uci.edu/static/public/165/data.csv",
    sha256="8d4b15b6fc68cd932d745cbd663d5ceae66dd54422e99c1e4865f2936ab7e2af",
)


@dataclass(frozen=True, kw_only=True)
class Concrete(DataConfig):
    """Eight features [n, 8] and one target [n, 1], each of mean 0 and variance 1 over all rows."""

    names_clients: ClassVar[bool | None] = False

    root: PathText = "data"
    """The folder that holds Concrete_Data.csv: a header, then 9 numbers a row."""
    test_every: Annotated[int, Ge(2)] | None = None
    """Keep every k-th row for testing.

    When absent every row is for training and for testing: the test loss is then the objective.
    """

    def prepare(self, track: Track) -> Path:
        """Fetch the table as UCI serves it, unless there is one; check its rows and columns."""
        path = Path(self.root) / TABLE.name
        if not path.exists():  # an existing file may be UCI's xls, saved as csv
            provide(path.parent, [TABLE], track)
        table = _table(path)
        check_count(path, "rows", len(table), _ROWS)
        means = table.mean(axis=0)
        wrong = ~np.isclose(means, _MEANS, rtol=1e-3)
        if wrong.any():
            column = int(np.argmax(wrong))
            raise DataError(
                f"{path}: the mean of column {column + 1} is {means[column]:.4g}, the published is "
                f"{_MEANS[column]:.4g}; it is damaged or another table: remove it, and say it again"
            )
        return path

    def load(self, seed: int) -> Dataset:
        """Read and standardise the table."""
        path = Path(self.root) / TABLE.name
        table = _table(path)
        spread = table.std(axis=0)
        if not spread.all():
            raise DataError(f"{path}: column {int(np.argmin(spread)) + 1} never changes")
        rows = torch.from_numpy((table - table.mean(axis=0)) / spread)
        test = train = torch.ones(len(rows), dtype=torch.bool)
        if self.test_every is not None:
            test = torch.zeros_like(train)
            test[self.test_every - 1 :: self.test_every] = True
            train = ~test
        return Dataset(
            train=Examples(rows[train, :-1], rows[train, -1:]),
            test=Examples(rows[test, :-1], rows[test, -1:]),
            natural=None,
            classes=None,
            loss="squared",
            transform=cast,
        )


def _table(path: Path) -> NDArray[np.float64]:
    """The numbers [rows, 9] below the header.

    Raises:
        DataError: the file is missing or something else.
        DiskError: the disk fails.
    """
    if not path.exists():
        raise DataError(
            f"{path}: not found; put it there, set data.root to where it is, or say "
            f"{prepare_command('concrete', path.parent)}"
        )
    try:
        # numpy warns of a file without rows, which the error below reports.
        with open_text(path, "utf-8-sig") as file, catch_warnings():
            filterwarnings("ignore", "loadtxt: input contained no data", UserWarning)
            table = np.loadtxt(file, delimiter=",", skiprows=1, ndmin=2)
    except (OSError, ValueError) as error:
        message = f"{path}: not a readable table: {error}"
        raise read_error(error, message, DataError) from error
    if table.shape[1] != _COLUMNS or len(table) < 2 or not np.isfinite(table).all():
        raise DataError(
            f"{path}: {len(table)} rows of {table.shape[1]} columns, expected at least 2 rows "
            f"of {_COLUMNS} finite numbers"
        )
    return table
