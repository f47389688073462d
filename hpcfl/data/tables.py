"""Read tables: CSV files with a header, row by row, and parquet files."""

import csv
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from itertools import chain
from pathlib import Path
from shlex import quote
from typing import Any, NamedTuple

from hpcfl.errors import DataError, JobError
from hpcfl.io.files import read_error
from hpcfl.io.regular import check_regular, open_binary, open_text

_PARQUET = (".parquet", ".pq")
_OTHERS = {
    b"\xff\xfe": ("it is text in UTF-16", "iconv -f UTF-16 -t UTF-8"),
    b"\xfe\xff": ("it is text in UTF-16", "iconv -f UTF-16 -t UTF-8"),
    b"\x1f\x8b": ("it is compressed by gzip", "gunzip -c"),
    b"BZh": ("it is compressed by bzip2", "bunzip2 -c"),
    b"\xfd7zXZ": ("it is compressed by xz", "xz -dc"),
    b"\x28\xb5\x2f\xfd": ("it is compressed by zstd", "zstd -dc"),
    b"PK\x03\x04": ("it is an .xlsx or .zip file", ""),
    b"\xd0\xcf\x11\xe0": ("it is an .xls file", ""),
}
"""How other files begin that are given for a CSV file; what they are; the command that prints them
as CSV, if there is one."""
_ENCODING = "iconv -f WINDOWS-1252 -t UTF-8"


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
        places = {name: place for place, name in reversed([*enumerate(header)])}
        if absent := [name for name in columns if name not in places]:
            raise DataError(
                f"{path}: no column {absent[0]!r}; its header is {','.join(header)!r}, "
                f"expected {','.join(columns)}"
            )
        positions = [places[name] for name in columns]
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
        start = _start(path)
        for begin, (kind, command) in _OTHERS.items():
            if start.startswith(begin):
                raise DataError(f"{path}: not a readable csv file: {kind}; {_cure(path, command)}")
        with open_text(path, "utf-8-sig", newline="") as file:
            first = file.readline()
            titles = re.sub(r'"[^"]*"', "", first)
            delimiter = max(",;\t", key=titles.count)
            reader = csv.reader(chain([first], file), delimiter=delimiter, strict=True)
            yield ((reader.line_num, cells) for cells in reader if cells)
    except OSError as error:
        message = f"{path}: cannot be read: {error.strerror or error}"
        raise read_error(error, message, DataError) from error
    except (UnicodeDecodeError, csv.Error) as error:
        cure = f"; {_cure(path, _ENCODING)}" if isinstance(error, UnicodeDecodeError) else ""
        message = f"{path}: not a readable csv file: {error}{cure}"
        raise read_error(error, message, DataError) from error


def _start(path: Path) -> bytes:
    """The first bytes of a file."""
    with open_binary(path) as file:
        return file.read(8)


def _cure(path: Path, command: str) -> str:
    """How to make CSV in UTF-8 of a file: from a spreadsheet, or by a command that prints it."""
    by_command = f", or `{command} {quote(str(path))} > NEW.csv`" if command else ""
    return f"save it as CSV UTF-8 from a spreadsheet{by_command}"


def is_parquet(path: Path) -> bool:
    """Whether a file is parquet: by its first bytes or, so that a damaged one is, by its name."""
    if path.suffix.lower() in _PARQUET:
        return True
    try:
        return _start(path).startswith(b"PAR1")
    except OSError:  # the code that reads it says why
        return False


class ParquetColumns(NamedTuple):
    """The names of the columns of a parquet file."""

    names: list[str]
    pandas_index: set[str]
    """Those in which pandas stored an index, which numbers or names the rows."""


def parquet_columns(path: Path) -> ParquetColumns:
    """The columns of a parquet file.

    Raises:
        ImportError: pyarrow is not installed.
        OSError, ValueError: the file cannot be read, or is of another kind.
    """
    check_regular(path)
    schema = import_module("pyarrow.parquet").read_schema(path)
    stored = (schema.pandas_metadata or {}).get("index_columns", ())
    # An index that counts from 0 is no column, but a dictionary of its range.
    index = {name for name in schema.names if name in stored or name.startswith("__index_level_")}
    return ParquetColumns(schema.names, index)


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
    # Without partitioning: a folder of the path that is called NAME=VALUE would replace the column
    # NAME by its VALUE.
    table = import_module("pyarrow.parquet").read_table(paths, columns=columns, partitioning=None)
    is_dictionary = import_module("pyarrow.types").is_dictionary
    fields = [
        field.with_type(field.type.value_type) if is_dictionary(field.type) else field
        for field in table.schema
    ]
    return table.cast(import_module("pyarrow").schema(fields, metadata=table.schema.metadata))


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
