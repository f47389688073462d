"""Read CSV files with a header, row by row, and check their columns and values."""

import csv
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from hpcfl.errors import DataError
from hpcfl.io.files import read_error
from hpcfl.io.regular import open_text


class CsvRow(NamedTuple):
    """The wanted values of one line of a CSV file."""

    where: str
    """File and line, for messages."""
    values: tuple[str, ...]
    """The values of the columns that ``read_table`` was called with, in their order."""


def read_table(path: Path, columns: Sequence[str]) -> Iterator[CsvRow]:
    """Read the rows of a CSV file, one at a time.

    Args:
        path: the file.
        columns: titles of the wanted columns.

    Raises:
        DataError: the file is missing or not CSV, or lacks a column; a row has too many or too few
            values.
    """
    try:
        with open_text(path, "utf-8-sig", newline="") as file:
            reader = csv.reader(file, strict=True)
            header = next(reader, [])
            if absent := [name for name in columns if name not in header]:
                raise DataError(
                    f"{path}: no column {absent[0]!r}; its header is {','.join(header)!r}, "
                    f"expected {','.join(columns)}"
                )
            positions = [header.index(name) for name in columns]
            for cells in reader:
                if not cells:
                    continue
                where = f"{path}:{reader.line_num}"
                if len(cells) != len(header):
                    raise DataError(f"{where}: {len(cells)} values, the header has {len(header)}")
                yield CsvRow(where, tuple(cells[position] for position in positions))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        message = f"{path}: not a readable csv file: {error}"
        raise read_error(error, message, DataError) from error


def class_of(row: CsvRow, text: str, classes: int) -> int:
    """The class number that a value of the row holds.

    Args:
        row: for the message.
        text: the value.
        classes: the number of classes.

    Raises:
        DataError: it is not an integer from 0 to ``classes - 1``.
    """
    if not text.isdecimal() or len(text) > len(str(classes)) or int(text) >= classes:
        raise DataError(f"{row.where}: class is {text!r:.60}, expected 0 to {classes - 1}")
    return int(text)
