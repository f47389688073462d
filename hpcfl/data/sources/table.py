"""Read a table of the user's own, CSV or parquet: an example a row, with columns by name."""

import math
import re
from array import array
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from hpcfl.data.base import DataConfig, Dataset
from hpcfl.data.labels import (
    LabelType,
    are_classes,
    loss_of_labels,
    missing_classes,
    type_note,
)
from hpcfl.data.partition import rows_of_clients, rows_of_owners
from hpcfl.data.sources.arrays import cast, stored
from hpcfl.data.tables import (
    CsvRow,
    ParquetColumns,
    is_parquet,
    package_errors,
    parquet_columns,
    read_header,
    read_parquet,
    read_table,
)
from hpcfl.errors import DataError
from hpcfl.io.packages import refuse_shadow
from hpcfl.types import Examples, IntArray, PathText

_INTEGER = re.compile(r"[-+]?(0|[1-9]\d{,307})", re.ASCII)  # a float holds it, if not exactly
_DIGITS = re.compile(r"[-+]?\d+", re.ASCII)  # also 007, the name of a class or client
_MISSING = {"", "?", "-", ".", "na", "n/a", "#n/a", "nan", "<na>", "none", "null"}
"""Words in the place of a number."""
_SPELLINGS = str.maketrans(
    {"\u2212": "-", "D": "e", "d": "e", **dict.fromkeys(",'\u2019\xa0\u202f %<>=~")}
)
"""What changes numbers as other programs and people write them, 10,240 and 1.0D+01 and <6, so that
``float`` reads them."""
_WRITE = "write it as float() of Python reads it, such as 12.5 or -1e-3, without , % < or a unit"
_TRUTH = {"true": 1.0, "false": 0.0}
_BITS = {**_TRUTH, "1": 1.0, "0": 0.0}
_KINDS: Mapping[type, str] = {str: "text", int: "integers", float: "numbers", bool: "booleans"}
_UNNAMED = re.compile(r"(Unnamed: \d+)?")  # as pandas calls a column without a title
_EXACT = 2**53  # from here on float64, in which the cells are read, has not all integers
_LISTED = 10  # values in a note
_PARTS = ("train", "test")
_NO_TEST = (
    "data: there are no test examples (data.split, data.holdout), so nothing is scored on them"
)


@dataclass(frozen=True, kw_only=True)
class Table(DataConfig):
    """An example a row; columns are the inputs, the label, and perhaps the client and the part.

    Text or integers in the column of labels are classes, in sorted order (cross-entropy); numbers
    of which one is no integer are targets (mean of r^2 / 2).  Several columns of labels are targets
    if they hold numbers of which one is no integer, and bits if they hold true and false alone.
    """

    path: PathText
    """A parquet file, or a CSV file with a header, separated by commas, semicolons or tabs."""
    label: str | tuple[str, ...]
    """The column of labels, or a list of several."""
    label_type: LabelType | None = None
    """What labels are: classes, numbers or bits (0 and 1, or true and false); if absent text and
    integers in one column are classes."""
    inputs: tuple[str, ...] | dict[str, tuple[str, ...]] | None = None
    """The columns of inputs [n, columns], numbers; if absent all that no other key names. {NAME:
    [columns], ...} are several inputs; one whose columns hold integers alone is int64."""
    client: str | None = None
    """The column that says who owns an example, text or integers; if absent nobody does."""
    split: str | None = None
    """The column that says train or test; if absent all rows are for training."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.label or len({*self._titles}) < len(self._titles):
            raise ValueError(f"label is {self.label!r}; name a column, or several different ones")
        if self.inputs is None:
            return
        groups = self._groups()
        if not groups or not all(groups.values()):
            raise ValueError("inputs is empty; name at least one column, or leave inputs out")
        for name, times in Counter((*chain(*groups.values()), *self._titles, self.split)).items():
            if times > 1:
                raise ValueError(
                    f"column {name!r} is named {times} times by inputs, label and split, which are "
                    "columns of their own; name it once"
                )

    def load(self, seed: int) -> Dataset:
        """Read and check the columns; inputs are kept as they are and never rescaled.

        Raises:
            JobError: pyarrow is not installed.
            DataError: the file is damaged, lacks a column, or a value is missing or of another
                kind.
        """
        table = self._read()
        train, test = self._parts(table)
        labels, classes, notes = self._labels(table)
        notes = (*table.notes, *notes)
        if classes is not None and labels.ndim == 1:
            notes += missing_classes(labels[train], classes)
        natural = natural_tests = None
        if self.client is not None:
            owner, names = _numbered(table.columns[self.client])
            # Who has no training example is no client; such tests are nobody's.
            present, number = np.unique(owner[train], return_inverse=True)
            natural = rows_of_owners(number)
            if test is not None:
                natural_tests = rows_of_clients(present, owner[test])
            if isinstance(names[0], str):
                shown = _listed("client", [names[k] for k in present])
                notes += (f"data.client: in sorted order, {shown}",)
                notes += _blanks("data.client", names)
        if test is None and self.holdout is None:
            notes += (_NO_TEST,)
        inputs, _, named = stored("data.inputs", table.inputs, {})
        targets = torch.from_numpy(labels)
        return Dataset(
            train=Examples(inputs[train], targets[train]),
            test=None if test is None else Examples(inputs[test], targets[test]),
            natural=natural,
            natural_tests=natural_tests,
            classes=classes,
            loss=loss_of_labels(labels),
            transform=named or cast,
            named=named,
            columns=table.titles,
            notes=notes,
        )

    @property
    def _titles(self) -> tuple[str, ...]:
        """The columns of labels."""
        return (self.label,) if isinstance(self.label, str) else self.label

    def _groups(self) -> dict[str, tuple[str, ...]]:
        """The columns of each input by its name, or of one whose name is empty."""
        return dict(self.inputs) if isinstance(self.inputs, Mapping) else {"": self.inputs or ()}

    def _read(self) -> "_Rows":
        path = Path(self.path)
        others = list(dict.fromkeys(filter(None, (*self._titles, self.client, self.split))))
        parquet = is_parquet(path)
        found = _parquet_columns(path) if parquet else ParquetColumns(read_header(path), set())
        inputs = self._inputs(path, found, others)
        rows = (_from_parquet if parquet else _from_csv)(path, inputs, others)
        if not len(rows.columns[self._titles[0]]):
            raise DataError(f"{path}: has no row below its header")
        notes: tuple[str, ...] = ()
        if self.inputs is None and (index := sorted(found.pandas_index.difference(others))):
            left = f"data.inputs: without {', '.join(index)}, in which pandas stored an index"
            notes = (f"{left}; to train on it, name all inputs in data.inputs",)
        return rows._replace(titles=inputs.get("", ()), notes=notes)

    def _inputs(
        self, path: Path, found: ParquetColumns, others: list[str]
    ) -> dict[str, tuple[str, ...]]:
        """The columns of each input, after all columns that the job names were found."""
        groups, times = self._groups(), Counter(found.names)
        for name in (*chain(*groups.values()), *others):
            if times[name] != 1:
                fault = "two columns are called" if times[name] else "no column"
                raise DataError(
                    f"{path}: {fault} {name!r}; found {', '.join(map(_quoted, found.names)):.300}"
                )
        if self.inputs is not None:
            return groups
        inputs = [
            name for name in found.names if name not in others and name not in found.pandas_index
        ]
        if not inputs:
            raise DataError(f"{path}: has no column of inputs beside {', '.join(others)}")
        for name in inputs:
            if _UNNAMED.fullmatch(name):
                raise DataError(
                    f"{path}: column {found.names.index(name) + 1} has no name, as the index of "
                    "pandas; name the inputs in data.inputs, or write the file with index=False"
                )
            if times[name] > 1:
                raise DataError(f"{path}: two columns are called {name!r}; rename one")
        return {"": tuple(inputs)}

    def _parts(self, table: "_Rows") -> tuple[Any, Any]:
        """The rows for training and for tests: a slice of all and None without ``split``."""
        if self.split is None:
            return slice(None), None
        parts = table.columns[self.split]
        for row, part in enumerate(parts):
            if part not in _PARTS:
                raise DataError(
                    f"{table.where(row)}: column {self.split!r} is {part!r:.40}, expected train or "
                    "test; for validation say data.validation"
                )
        is_train = np.array([part == "train" for part in parts])
        if not is_train.any():
            raise DataError(f"{self.path}: column {self.split!r} says train in no row")
        return np.flatnonzero(is_train), None if is_train.all() else np.flatnonzero(~is_train)

    def _labels(self, table: "_Rows") -> tuple[NDArray[Any], int | None, tuple[str, ...]]:
        """Classes [n] and how many, or targets or bits [n, t] and None; and lines for the user."""
        if self.label_type == "bits" or not isinstance(self.label, str):
            return self._columns(table)
        values = self._numbers_or_names(table, self.label)
        if not are_classes(self.label_type, floats=isinstance(values[0], float)):
            targets = np.array(values, dtype=np.float64)
            notes = type_note("data.label", targets, None, self.label_type)
            return targets[:, None], None, notes
        labels, names = _numbered(values)
        notes = type_note("data.label", labels, len(names), self.label_type)
        if names == [*range(len(names))]:
            return labels, len(names), notes
        note = f"data.label: in sorted order, {_listed('class', names)}"
        if self.label_type is None and isinstance(names[0], int) and len(names) > _LISTED:
            note += "; for a regression say data.label_type: numbers"
        return labels, len(names), (note, *notes, *_blanks("data.label", names))

    def _columns(self, table: "_Rows") -> tuple[NDArray[Any], int | None, tuple[str, ...]]:
        """Labels [n, t] of t columns, see ``_labels``."""
        columns = [table.columns[name] for name in self._titles]
        truths = all(
            isinstance(v, bool) or str(v).strip().lower() in _TRUTH for v in chain(*columns)
        )
        if self.label_type == "bits" or (self.label_type is None and truths):
            return np.column_stack([_bits(table, name) for name in self._titles]), None, ()
        columns = [self._numbers_or_names(table, name) for name in self._titles]
        kinds = {type(column[0]) for column in columns}
        if self.label_type == "classes" and len(kinds) == 1:
            labels, names = _numbered([*chain(*columns)])
            note = f"data.label: in sorted order, {_listed('class', names)}"
            return labels.reshape(len(columns), -1).T.copy(), len(names), (note,)
        if self.label_type == "classes" or str in kinds or not (float in kinds or self.label_type):
            held = ", ".join(sorted(_KINDS[kind] for kind in kinds))
            raise DataError(
                f"{self.path}: the columns {', '.join(self._titles)} hold {held}; expected "
                "numbers of which one is no integer, or data.label_type: numbers, bits (0 and 1) "
                "or classes (of one kind)"
            )
        return np.array(columns, dtype=np.float64).T.copy(), None, ()

    def _numbers_or_names(self, table: "_Rows", name: str) -> list[Any]:
        """A column of labels, after texts that may be meant as numbers were refused.

        Raises:
            DataError: most labels are numbers, or the job says that all are, and one is not; in the
                place of a number is a word for a missing one.
        """
        values = table.columns[name]
        if not isinstance(values[0], str) or self.label_type == "classes":
            return values
        distinct = {*values}
        others = {text for text in distinct if not _is_number(text)}
        if self.label_type != "numbers":
            if not others:  # names of digits: 007 is not 7
                return values
            missing = {text for text in others if text.strip().lower() in _MISSING}
            alike = {text for text in distinct - missing if _is_number(_respelled(text))}
            if distinct == others:  # without a plain number <50 and >=50 are names of ranges
                alike = {text for text in alike if text.strip()[0] not in "<>=~"}
            given = sum(text not in missing for text in values)
            if 2 * sum(text in alike for text in values) <= given:
                return values
        if others:
            row = next(row for row, text in enumerate(values) if text in others)
            if values[row].strip().lower() in _MISSING:
                raise _missing(table.where(row), name, values[row])
            known = "data.label_type is numbers" if self.label_type else "most labels are numbers"
            raise DataError(
                f"{table.where(row)}: column {name!r} is {values[row]!r:.40}, but {known}; "
                f"{_WRITE}; if the labels are names of classes, say data.label_type: classes"
            )
        numbers = [*map(float, values)]
        _require_finite(numbers, name, table.where)
        return numbers


class _Rows(NamedTuple):
    """The columns of a table that a job reads."""

    inputs: dict[str, NDArray[Any]]
    """The columns [n, columns] of each input, finite numbers."""
    columns: dict[str, list[Any]]
    """The values of other columns: all text, all integers, or all finite floats."""
    where: Callable[[int], str]
    """Row -> its place in the file, for messages."""
    titles: tuple[str, ...] = ()
    """The names of the columns of a single input."""
    notes: tuple[str, ...] = ()
    """Lines for the user."""


def _bits(table: _Rows, name: str) -> NDArray[np.bool_]:
    """A column of 0 and 1, or of true and false.

    Raises:
        DataError: it holds something else.
    """
    values = [
        _BITS.get(v.strip().lower(), v) if isinstance(v, str) else v for v in table.columns[name]
    ]
    for row, value in enumerate(values):
        if value not in (0, 1):
            raise DataError(
                f"{table.where(row)}: column {name!r} is {value!r:.40}, expected 0 or 1, or true "
                "or false"
            )
    return np.array(values, dtype=bool)


def _from_csv(path: Path, groups: Mapping[str, Sequence[str]], others: Sequence[str]) -> _Rows:
    """Read a CSV file; inputs become float64, or int64 where several have names."""
    inputs = [*chain(*groups.values())]
    numbers, width = array("d"), len(inputs)
    whole = {*range(width)} if "" not in groups else set()  # columns of integers, so far
    texts: list[list[str]] = [[] for _ in others]
    for row in read_table(path, [*inputs, *others]):
        numbers.extend(_numbers(row, inputs))
        whole = {k for k in whole if _INTEGER.fullmatch(row.values[k].strip())}
        for column, text in zip(texts, row.values[width:], strict=True):
            column.append(text)

    def where(row: int) -> str:
        return next(islice(read_table(path, ()), row, None)).where

    found, begin = {}, 0
    for name, group in groups.items():
        end = begin + len(group)
        found[name] = np.frombuffer(numbers).reshape(-1, width)[:, begin:end]
        if whole.issuperset(range(begin, end)):
            if abs(found[name]).max(initial=0) >= _EXACT:
                raise DataError(
                    f"{path}: data.inputs.{name} has integers of 2^53 or more; number them anew"
                )
            found[name] = found[name].astype(np.int64)
        begin = end
    return _Rows(
        inputs=found,
        columns={
            name: _typed(column, name, where) for name, column in zip(others, texts, strict=True)
        },
        where=where,
    )


def _numbers(row: CsvRow, inputs: Sequence[str]) -> list[float]:
    """The inputs of a row.

    Raises:
        DataError: one is missing, or no finite number.
    """
    cells = row.values[: len(inputs)]
    try:
        numbers = [float(cell) for cell in cells]
    except ValueError:
        numbers = [math.nan]
    if not math.isfinite(sum(numbers)) or "_" in "".join(cells):
        return [_number(row.where, name, cell) for name, cell in zip(inputs, cells, strict=True)]
    return numbers


def _number(where: str, name: str, cell: str) -> float:
    """The finite number that a cell of the inputs holds; True is 1, False 0."""
    if cell.strip().lower() in _MISSING:
        raise _missing(where, name, cell)
    if (truth := cell.strip().lower()) in _TRUTH:
        return _TRUTH[truth]
    try:
        number = float("x" if "_" in cell else cell)
    except ValueError as error:
        raise _text(where, name, cell) from error
    if not math.isfinite(number):
        raise DataError(f"{where}: column {name!r} is {cell!r:.40}, expected a finite number")
    return number


def _typed(texts: list[str], name: str, where: Callable[[int], str]) -> list[Any]:
    """Integers or floats where all texts are such numbers, else the texts.

    Raises:
        DataError: a text is empty, or says among numbers that one is missing.
    """
    values = {*texts}
    given = {text for text in values if text.strip().lower() not in _MISSING}
    number: type | None = None
    if all(_INTEGER.fullmatch(text.strip()) for text in given):
        number = int
    elif all(map(_is_number, given)) and not all(_DIGITS.fullmatch(text.strip()) for text in given):
        number = float
    missing = {text for text in values if not text.strip()} if number is None else values - given
    if missing:
        row = next(row for row, text in enumerate(texts) if text in missing)
        raise _missing(where(row), name, texts[row])
    if number is None:
        return texts
    converted = [number(text) for text in texts]
    if number is float:
        _require_finite(converted, name, where)
    return converted


def _is_number(text: str) -> bool:
    """Whether a text is a number as Python writes it, between blanks."""
    try:
        float(text)
    except ValueError:
        return False
    return "_" not in text


def _respelled(text: str) -> str:
    """A text as Python would write it, if it is a number."""
    return text.translate(_SPELLINGS)


def _from_parquet(path: Path, groups: Mapping[str, Sequence[str]], others: Sequence[str]) -> _Rows:
    """Read a parquet file; each input is of the smallest type that holds its columns."""

    def where(row: int) -> str:
        return f"{path}: row {row}"

    with _readable(path):
        table = read_parquet([path], list(dict.fromkeys((*chain(*groups.values()), *others))))
        for name in table.column_names:
            empty = table.column(name).is_null(nan_is_null=True).to_numpy()
            if empty.any():
                raise _missing(where(int(np.argmax(empty))), name, "null")
        inputs = {
            key: np.column_stack([_parquet_numbers(table.column(k), k, where) for k in group])
            for key, group in groups.items()
        }
        for key, numbers in inputs.items():
            if key and numbers.dtype == bool:  # true counts as 1, as among other numbers
                inputs[key] = numbers.astype(np.float32)
        columns = {name: _parquet_values(table.column(name), name, where) for name in others}
    return _Rows(inputs, columns, where)


def _parquet_numbers(column: Any, name: str, where: Callable[[int], str]) -> NDArray[Any]:
    """A column of inputs, without nulls."""
    values = np.asarray(column.to_numpy())
    if len(values) and isinstance(values[0], str):
        raise _text(where(0), name, values[0])
    if values.dtype.kind not in "biuf":
        raise DataError(
            f"{where(0)}: column {name!r} holds {column.type!s:.60}, expected numbers; leave it "
            "out of data.inputs"
        )
    if values.dtype.kind == "f":
        _require_finite(values, name, where)
    return values


def _parquet_values(column: Any, name: str, where: Callable[[int], str]) -> list[Any]:
    """A column of labels, clients or parts, without nulls."""
    values: list[Any] = column.to_pylist()
    if values and not isinstance(values[0], str | int | float):
        raise DataError(
            f"{where(0)}: column {name!r} holds {column.type!s:.60}, expected text or numbers"
        )
    if values and isinstance(values[0], float):
        _require_finite(values, name, where)
    return _typed(values, name, where) if values and isinstance(values[0], str) else values


def _parquet_columns(path: Path) -> ParquetColumns:
    """The names of a parquet file's columns."""
    refuse_shadow("pyarrow")
    with _readable(path):
        return parquet_columns(path)


def _readable(path: Path) -> AbstractContextManager[None]:
    return package_errors(
        f"{path}: not a readable parquet file",
        f"data.path: {path}: parquet files are read by the package pyarrow",
        "pip install pyarrow, or write a CSV file",
    )


def _missing(where: str, name: str, text: str) -> DataError:
    return DataError(
        f"{where}: column {name!r} is missing ({text!r}); fill it in, or leave out such rows or "
        "this column"
    )


def _text(where: str, name: str, text: str) -> DataError:
    cure = (
        "leave a column of text out of data.inputs, or write it as numbers, such as by "
        f"pandas.get_dummies(table, columns=[{name!r}])"
    )
    if _is_number(text):
        cure = f"store numbers instead of text: table[{name!r}].astype(float)"
    elif _is_number(_respelled(text)):
        cure = _WRITE
    return DataError(f"{where}: column {name!r} is {text!r:.40}, expected a number; {cure}")


def _require_finite(numbers: Any, name: str, where: Callable[[int], str]) -> None:
    finite = np.isfinite(numbers)
    if not finite.all():
        row = int(np.argmin(finite))
        raise DataError(
            f"{where(row)}: column {name!r} is {numbers[row]}, expected a finite number"
        )


def _numbered(values: list[Any]) -> tuple[IntArray, list[Any]]:
    """The number of each value, [n], and the values in sorted order."""
    names = sorted({*values})
    numbers = {name: number for number, name in enumerate(names)}
    return np.fromiter((numbers[value] for value in values), np.int64, len(values)), names


def _quoted(name: Any) -> str:
    """A name for a message, in quotes where blanks at its ends would not be seen."""
    return repr(name) if isinstance(name, str) and name != name.strip() else f"{name}"


def _blanks(key: str, names: Sequence[Any]) -> tuple[str, ...]:
    """A line for the user where names differ in blanks at their ends alone; pandas keeps these."""
    known = {*names}
    pairs = [
        f"{name!r} and {name.strip()!r}"
        for name in names
        if isinstance(name, str) and name != name.strip() and name.strip() in known
    ]
    if not pairs:
        return ()
    more = f" (and {len(pairs) - 1} more)" if len(pairs) > 1 else ""
    return (f"{key}: {pairs[0]} differ in blanks alone{more}, and count as two; remove the blanks",)


def _listed(noun: str, names: list[Any]) -> str:
    """Names with their numbers: "setosa is class 0, versicolor 1, ... (50 classes)"."""
    shown = [f"{_quoted(name):.40} {number}" for number, name in enumerate(names[:_LISTED])]
    shown[0] = f"{_quoted(names[0]):.40} is {noun} 0"
    more = f", ... ({len(names)} in all)" if len(names) > _LISTED else ""
    return ", ".join(shown) + more
