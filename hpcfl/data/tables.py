"""Read a csv file with a header, row by row, and check it against what its publisher says."""

import csv
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from hpcfl.errors import DataError
from hpcfl.io.files import read_error


class Row(NamedTuple):
    """One line of a table."""

    where: str
    """File and line, for messages."""
    values: tuple[str, ...]
    """The values of the columns that were named."""


def read_table(path: Path, columns: Sequence[str]) -> Iterator[Row]:
    """The rows of a csv file, one at a time.

    Raises:
        DataError: the file is missing or no csv, or lacks a column; a row lacks a value.
    """
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.reader(file, strict=True)
            header = next(reader, [])
            if absent := [name for name in columns if name not in header]:
                raise DataError(
                    f"{path}: no column {absent[0]!r}; its header is {','.join(header)!r}, "
                    f"expected {','.join(columns)}"
                )
            places = [header.index(name) for name in columns]
            for cells in reader:
                if not cells:
                    continue
                where = f"{path}:{reader.line_num}"
                if len(cells) != len(header):
                    raise DataError(f"{where}: {len(cells)} values, the header has {len(header)}")
                yield Row(where, tuple(cells[place] for place in places))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        message = f"{path}: not a readable csv file: {error}"
        raise read_error(error, message, DataError) from error


def class_of(row: Row, text: str, classes: int) -> int:
    """The class whose number is in the row.

    Raises:
        DataError: it is not one of 0 to ``classes - 1``.
    """
    if not text.isdecimal() or len(text) > len(str(classes)) or int(text) >= classes:
        raise DataError(f"{row.where}: class is {text!r:.60}, expected 0 to {classes - 1}")
    return int(text)
