"""Read tables: CSV files with a header, row by row, and parquet files."""

import csv
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from hpcfl.errors import DataError, JobError
from hpcfl.io.files import read_error
from hpcfl.io.regular import check_regular, open_text


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
    with _rows(path) as rows:
        header = next(rows, (0, []))[1]
        if absent := [name for name in columns if name not in header]:
            raise DataError(
                f"{path}: no column {absent[0]!r}; its header is {','.join(header)!r}, "
                f"expected {','.join(columns)}"
            )
        positions = [header.index(name) for name in columns]
        for line, cells in rows:
            where = f"{path}:{line}"
            if len(cells) != len(header):
                raise DataError(f"{where}: {len(cells)} values, the header has {len(header)}")
            yield CsvRow(where, tuple(cells[position] for position in positions))


def read_header(path: Path) -> list[str]:
    """The titles of all columns of a CSV file.

    Raises:
        DataError: the file is missing or not CSV.
    """
    with _rows(path) as rows:
        return next(rows, (0, []))[1]


@contextmanager
def _rows(path: Path) -> Iterator[Iterator[tuple[int, list[str]]]]:
    """The number and the values of each line that is not empty, the header first.

    Values are separated by what the first line has most of: commas, semicolons or tabs.
    """
    try:
        with open_text(path, "utf-8-sig", newline="") as file:
            first = file.readline()
            delimiter = max(",;\t", key=first.count)
            reader = csv.reader(chain([first], file), delimiter=delimiter, strict=True)
            yield ((reader.line_num, cells) for cells in reader if cells)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        message = f"{path}: not a readable csv file: {error}"
        raise read_error(error, message, DataError) from error


def parquet_columns(path: Path) -> list[str]:
    """The names of all columns of a parquet file.

    Raises:
        ImportError: pyarrow is not installed.
        OSError, ValueError: the file cannot be read, or is of another kind.
    """
    check_regular(path)
    names: list[str] = import_module("pyarrow.parquet").read_schema(path).names
    return names


def read_parquet(paths: Sequence[Path], columns: Sequence[str] | None = None) -> Any:
    """A table of pyarrow's from parquet files, with plain values for categorical ones.

    Not by Dataset.from_parquet of ``datasets``, which writes a copy into the user's cache.

    Args:
        paths: of the files, whose columns are the same.
        columns: those to read; None: all.

    Raises:
        ImportError: pyarrow is not installed.
        OSError, ValueError: a file cannot be read, or is of another kind.
    """
    for path in paths:
        check_regular(path)
    table = import_module("pyarrow.parquet").read_table(paths, columns=columns)
    is_dictionary = import_module("pyarrow.types").is_dictionary
    for number, field in enumerate(table.schema):
        if is_dictionary(field.type):
            values = table.column(number).cast(field.type.value_type)
            table = table.set_column(number, field.name, values)
    return table


@contextmanager
def package_errors(unreadable: str, needed: str, cure: str) -> Iterator[None]:
    """Convert errors of pyarrow, or of a package above it, inside the block to one line.

    Args:
        unreadable: what is said before the reason where a file cannot be read.
        needed: what is said of an absent package.
        cure: how to get it.

    Raises:
        DataError: what the block reads is missing, damaged, or of another kind.
        DiskError: the disk fails.
        JobError: a package is not installed.
    """
    try:
        yield
    except ImportError as error:
        raise JobError(f"{needed}: {error}; {cure}") from error
    except (OSError, ValueError, TypeError, LookupError, NotImplementedError) as error:
        why = str(error).partition("\n")[0] or type(error).__name__
        raise read_error(error, f"{unreadable}: {why}", DataError) from error


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
