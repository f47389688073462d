"""Hugging Face data sets on disk: a folder of ``save_to_disk``, or parquet files."""

import re
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hpcfl.data.base import DataConfig, Dataset
from hpcfl.data.encoded_images import DAMAGED, grey_or_colour, reason, require_pillow
from hpcfl.data.finite import row_not_finite
from hpcfl.data.labels import (
    LabelType,
    as_integers,
    count_of,
    loss_of_labels,
    missing_classes,
    padding_notes,
    type_note,
    typed_labels,
)
from hpcfl.data.lists import Lists
from hpcfl.data.partition import ExampleRows, rows_of_owners
from hpcfl.data.sources.arrays import cast, stored, stored_labels
from hpcfl.data.tables import package_errors, read_parquet
from hpcfl.errors import DataError, JobError
from hpcfl.io.packages import refuse_shadow
from hpcfl.io.regular import check_regular
from hpcfl.types import Count, Examples, IntArray, PathText

_ROWS = 1000  # decoded at a time
_TEXTS = ("string", "large_string")  # types of columns
_LISTS = ("List", "LargeList")
_INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32")
_MASK = "attention_mask"  # an input that says where a list has an integer, if no column does
_NUMBERED = re.compile(r"(?P<stem>.*?)(?P<index>\d+)-of-(?P<count>\d+)([-.].*)?")


@dataclass(frozen=True, kw_only=True)
class Huggingface(DataConfig):
    """Columns of inputs, labels and perhaps clients; images become [C, H, W] in [0, 1].

    Numbers are read as int64 or float32 and never rescaled.  Nothing is fetched from the hub.
    """

    path: PathText
    """A folder of save_to_disk, a folder of SPLIT.parquet or SPLIT-*.parquet, or one .parquet."""
    inputs: str | tuple[str, ...] = "image"
    """The column of inputs: images of one size, or numbers, as many in each row. [COLUMN, ...] are
    inputs that the model takes by these names, integers as int64."""
    labels: str = "label"
    """The column of labels: class labels, integers from 0, numbers, or lists of as many in each
    row: of classes such as tokens, of targets, or of booleans."""
    label_type: LabelType | None = None
    """What labels are: classes, numbers or bits; if absent classes, 4.0 for 4 among them, and of
    lists floats are numbers and booleans bits."""
    padding: int | None = None
    """The number in lists of classes that is padding, a class or not, such as -100: it is left out
    of losses and scores; if absent every label counts."""
    length: Count | Literal["longest"] | None = None
    """Integers of each list, in columns of lists of unequal length: shorter ones are filled up, in
    inputs by 0 and in labels by ``padding``, longer ones cut off. Longest: none is cut off."""
    client: str | None = None
    """The column that says who owns an example; if absent nobody does."""
    train: str = "train"
    """The split to train on; a folder or file without splits is one."""
    test: str | None = None
    """The split to test on; if absent the split called test, where there is one."""
    classes: Count | None = None
    """Number of classes, where neither the column nor the largest label gives it."""

    def load(self, seed: int) -> Dataset:
        """Decode both splits into memory: images as bytes.

        Raises:
            JobError: the package ``datasets`` is not installed, or ``classes`` given of numbers.
            DataError: the files are damaged or of another kind.
        """
        train, test, filled = self._filled(*train_and_test(Path(self.path), self.train, self.test))
        declared = self.classes or _declared(train, self.labels)
        labels = {split.where: self._labels(split) for split in (train, test) if split is not None}
        y = labels[train.where]
        loss, classes = loss_of_labels(y), None
        if loss in ("cross_entropy", "tokens"):
            classes = declared or self._count(labels)
        elif self.classes is not None:
            key = "data.label_type is" if self.label_type else "the labels are"
            what = "numbers" if loss == "squared" else "bits"
            raise JobError(f"data.classes: {key} {what}, which are no classes")
        x, x_test = self._inputs(train), {} if test is None else self._inputs(test)
        for name, tested in x_test.items():
            if tested.shape[1:] != x[name].shape[1:]:
                raise DataError(
                    f"{self.path}: {name or self.inputs!r} is of shape {x[name].shape[1:]} for "
                    f"training, of {tested.shape[1:]} for testing"
                )
        inputs, test_inputs, named = stored(self.path, x, x_test)
        examples = self._examples(train, inputs, labels, classes)
        tests = None
        if test is not None and test_inputs is not None:
            tests = self._examples(test, test_inputs, labels, classes)
        image = isinstance(self.inputs, str) and train.is_image(self.inputs)
        said = "classes" if declared else self.label_type
        padding = f"data.padding: {self.padding}"
        return Dataset(
            train=examples,
            test=tests,
            natural=None if self.client is None else _owned(train, self.client),
            classes=classes,
            loss=loss,
            padding=self.padding,
            transform=named or (to_unit if image else cast),
            named=named,
            notes=(
                *filled,
                *_copied(x, self.labels, y, self.padding),
                *type_note("data.labels", y, classes, said),
                *(missing_classes(y, classes) if classes is not None and y.ndim == 1 else ()),
                *padding_notes(padding, self.padding, labels, classes),
            ),
        )

    @property
    def _columns(self) -> tuple[str, ...]:
        """The columns of inputs."""
        return (self.inputs,) if isinstance(self.inputs, str) else self.inputs

    def _filled(
        self, train: "TableSplit", test: "TableSplit | None"
    ) -> tuple["TableSplit", "TableSplit | None", tuple[str, ...]]:
        """Both splits, with arrays for their lists of integers, and lines on what was filled up.

        Raises:
            DataError: lists are of unequal length, and the job does not say what becomes of them.
            JobError: it says so, and there are none.
        """
        splits = [split for split in (train, test) if split is not None]
        arrays: list[dict[str, NDArray[Any]]] = [{} for _ in splits]
        notes: tuple[str, ...] = ()
        for name in dict.fromkeys((*self._columns, self.labels)):
            lists = [found for split in splits if (found := split.lists(name)) is not None]
            if len(lists) < len(splits):
                continue
            lengths = np.concatenate([one.lengths for one in lists])
            length, fill = self._length(f"{train.where}: {name!r}", name, lengths), 0
            if name == self.labels:
                fill = self.padding or 0
            notes += _length_notes(name, lengths, length, fill)
            for split, own, one in zip(splits, arrays, lists, strict=True):
                own[name] = one.array(length, fill)
                if name == self._columns[0] and _MASK not in split.table.column_names:
                    own[_MASK] = one.goes_on(length).astype(np.int8)
        if self.length is not None and not any(arrays):
            raise JobError(
                "data.length: neither data.inputs nor data.labels has lists of integers; "
                "remove length"
            )
        made = [split._replace(arrays=own) for split, own in zip(splits, arrays, strict=True)]
        return made[0], made[1] if len(made) > 1 else None, notes

    def _length(self, where: str, name: str, lengths: IntArray) -> int:
        """The length of all lists of a column in their array.

        Raises:
            DataError: the job does not say it, or not with which label they are filled up.
        """
        least, most = int(lengths.min()), int(lengths.max())
        if not least:
            raise DataError(
                f"{where} of row {int(lengths.argmin())} is an empty list; remove such rows: "
                f"data.filter(lambda row: len(row[{name!r}]) > 0)"
            )
        if self.length is None and least < most:
            raise DataError(
                f"{where} holds lists of {least} to {most} integers; data.length, a number or "
                "longest, fills them up at their ends, inputs by 0 and labels by data.padding"
            )
        length = self.length if isinstance(self.length, int) else most
        if least < length and name == self.inputs:
            raise DataError(
                f"{where} is filled up to {length} integers, which are an input by name; say "
                f"data.inputs: [{name}], and the model gets {name}=... as int64"
            )
        if least < length and name == self.labels and self.padding is None:
            raise DataError(
                f"{where} is filled up to {length} integers; say data.padding, the label by which "
                "it is, and which does not count, such as -100"
            )
        return length

    def _inputs(self, split: "TableSplit") -> dict[str, NDArray[Any]]:
        """The inputs [n, ...] by name; one without a name is images uint8 [n, H, W, C] or numbers.

        Raises:
            DataError: one is neither, or not finite.
        """
        found = {}
        for name in self._columns:
            x, alone = split.column(name), name == self.inputs
            if x.dtype.kind not in ("iuf" if alone else "biuf") or (
                split.is_image(name) and not alone
            ):
                raise DataError(
                    f"{split.where}: column {name!r} holds {x.dtype} of shape {x.shape}; expected "
                    f"{'images or ' * alone}numbers, of one size in all rows"
                )
            _require_finite(split, name, x)
            found["" if alone else name] = x
        return found

    def _labels(self, split: "TableSplit") -> NDArray[Any]:
        """The labels [n, ...] in the type that says what they are, see ``typed_labels``.

        Raises:
            DataError: they are none.
        """
        name, label_type = self.labels, self.label_type
        labels, where = split.column(name), f"{split.where}: {name!r}"
        if label_type is None and labels.ndim == 1:
            label_type = "classes"
        if labels.dtype.kind == "U":
            expected = "a number"
            if label_type == "classes":
                expected = (
                    f"integers from 0: data.class_encode_column({name!r}) numbers the classes"
                )
            text = labels.flat[0]
            raise DataError(f"{where} of row 0 is the text {str(text)!r:.40}, expected {expected}")
        if labels.dtype.kind not in "biuf":
            raise DataError(
                f"{where} is {labels.dtype} of shape {labels.shape}, expected integers, floats or "
                "booleans, as many in each row"
            )
        _require_finite(split, name, labels)
        return typed_labels(where, labels, label_type)

    def _count(self, labels: Mapping[str, NDArray[Any]]) -> int:
        """The number of classes that the largest label implies."""
        name, (train, *tests) = self.labels, labels.values()

        def subtract(lowest: int) -> str:
            return f"of each split: data.map(lambda row: {{{name!r}: row[{name!r}] - {lowest}}})"

        where = f"{next(iter(labels))}: {name!r}"
        return count_of(where, train, next(iter(tests), None), subtract, self.padding)

    def _examples(
        self,
        split: "TableSplit",
        inputs: Tensor,
        labels: Mapping[str, NDArray[Any]],
        classes: int | None,
    ) -> Examples:
        """Checked labels as stored, and their inputs.

        Args:
            split: of the data set.
            inputs: of its examples.
            labels: of all splits, by their places; those to train on come first.
            classes: how many there are; None: the labels are none.
        """
        y, like = labels[split.where], next(iter(labels.values()))
        if y.shape[1:] != like.shape[1:] or y.dtype.kind != like.dtype.kind:
            raise DataError(
                f"{split.where}: {self.labels!r} is {y.dtype} of shape {y.shape}, for training "
                f"{like.dtype} of shape {like.shape}"
            )
        if classes is not None:
            self._require_classes(split, y, classes)
        return Examples(inputs, stored_labels(y, self.padding))

    def _require_classes(self, split: "TableSplit", labels: NDArray[Any], classes: int) -> None:
        """Refuse labels that are neither classes nor padding."""
        wrong = (labels < 0) | (labels >= classes)
        if self.padding is not None:
            wrong &= labels != self.padding
        if not wrong.any():
            return
        row, label, cure = int(np.argwhere(wrong)[0][0]), labels[wrong][0], ""
        if label < 0 and labels.ndim > 1 and self.padding is None:
            cure = f"; if {label} is padding, say data.padding: {label}"
        elif label == -1:  # as the hub marks labels that are kept secret
            cure = (
                "; if -1 hides the labels, name another split, or remove such rows: "
                f"data.filter(lambda row: row[{self.labels!r}] >= 0)"
            )
        raise DataError(
            f"{split.where}: {self.labels!r} of row {row} is {label}, expected 0 to "
            f"{classes - 1}{cure}"
        )


def _length_notes(name: str, lengths: IntArray, length: int, fill: int) -> tuple[str, ...]:
    """Lines on lists of integers that are filled up to a length, or cut off there."""
    short, long = np.count_nonzero(lengths < length), np.count_nonzero(lengths > length)
    of = f"of {len(lengths)} lists of {name!r} are"
    return (
        *((f"data: {short} {of} filled up to {length} integers by {fill}",) if short else ()),
        *((f"data: {long} {of} cut off after {length} integers",) if long else ()),
    )


def _copied(
    inputs: Mapping[str, NDArray[Any]], column: str, labels: NDArray[Any], padding: int | None
) -> tuple[str, ...]:
    """A line on labels that are all the input of their place, as models want that move them."""
    counted = True if padding is None else labels != padding
    alike = (
        x.shape == labels.shape and not (counted & (x != labels)).any() for x in inputs.values()
    )
    if labels.ndim < 2 or not any(alike):
        return ()
    end = -100 if padding is None else padding
    return (
        f"warning: data.labels: each label is the input of its own place; to predict the next one "
        f"say data.padding: {end}, after data.map(lambda row: {{{column!r}: row[{column!r}][1:] + "
        f"[{end}]}})",
    )


class TableSplit(NamedTuple):
    """A part of a data set."""

    where: str
    """Its file or folder, and its name."""
    table: Any
    """A ``datasets.Dataset``."""
    arrays: Mapping[str, NDArray[Any]] = {}
    """Columns that are made, in the place of the table's or besides them."""

    def column(self, name: str) -> NDArray[Any]:
        """A column as an array: numbers and texts [n, ...], or images uint8 [n, H, W, C].

        Raises:
            DataError: there is none, it is empty in a row, or it cannot be decoded, or its rows
                differ in shape.
            DiskError: the disk fails.
        """
        if name in self.arrays:
            return self.arrays[name]
        self._require(name)
        with _package_errors(f"{self.where}: column {name!r}"):
            if self.is_image(name):
                return self._images(name)
            # Others, such as sounds, would be decoded from wherever their paths lead.
            if not _is_plain(self.table.features[name]):
                kind = type(self.table.features[name]).__name__
                raise DataError(
                    f"{self.where}: column {name!r} holds {kind}; expected images, numbers or text"
                )
            batches = self.table.select_columns(name).with_format("numpy").iter(_ROWS)
            return np.concatenate([np.asarray(batch[name]) for batch in batches])

    def owners(self, name: str) -> NDArray[Any]:
        """Who owns each row: a column of texts or integers [n].

        Raises:
            DataError: it is no such column, or see ``column``.
        """
        owners = self.column(name)
        if owners.ndim == 1 and owners.dtype.kind == "U":
            return owners
        return as_integers(f"{self.where}: {name!r}", owners)

    def texts(self, name: str) -> list[str]:
        """A column of texts, which an array would make all as long as the longest.

        Raises:
            DataError: it is no such column, or see ``column``.
        """
        self._require(name)
        if getattr(self.table.features[name], "dtype", "") not in _TEXTS:
            raise DataError(
                f"{self.where}: column {name!r} holds {self.table.features[name]}, expected text"
            )
        with _package_errors(f"{self.where}: column {name!r}"):
            batches = self.table.select_columns(name).iter(_ROWS)
            return [text for batch in batches for text in batch[name]]

    def lists(self, name: str) -> Lists | None:
        """A column of lists of integers; None: it is another one, or there is none.

        Raises:
            DataError: an integer is missing, or see ``column``.
        """
        feature = self.table.features.get(name)
        value = getattr(feature, "feature", None)
        if type(feature).__name__ not in _LISTS or getattr(value, "dtype", "") not in _INTEGERS:
            return None
        self._require(name)
        with _package_errors(f"{self.where}: column {name!r}"):
            batches = self.table.select_columns(name).with_format("arrow").iter(_ROWS)
            parts = [batch.column(name).combine_chunks() for batch in batches]
            lengths = np.concatenate([part.value_lengths().to_numpy() for part in parts])
            flat = [part.flatten() for part in parts]
        if any(part.null_count for part in flat):
            raise DataError(f"{self.where}: column {name!r} has an empty (null) integer in a list")
        values = np.concatenate([part.to_numpy() for part in flat])
        return Lists(values, lengths.astype(np.int64))

    def _require(self, name: str) -> None:
        """Refuse a column that is not there, or is empty in a row."""
        if name not in self.table.column_names:
            found = ", ".join(self.table.column_names)
            raise DataError(f"{self.where}: no column {name!r}; found {found}")
        if not len(self.table):
            raise DataError(f"{self.where}: has no row")
        with _package_errors(f"{self.where}: column {name!r}"):
            empty = self.table.data.column(name).is_null().to_numpy()
        if empty.any():
            raise DataError(
                f"{self.where}: {name!r} of row {int(np.argmax(empty))} is empty (null); "
                f"remove such rows: data.filter(lambda row: row[{name!r}] is not None)"
            )

    def _images(self, name: str) -> NDArray[Any]:
        """Decode a column of images; grey ones have three channels if others are in colour."""
        require_pillow()
        feature, images = self.table.features[name], []
        if feature.mode not in (None, "L", "RGB"):
            raise DataError(
                f"{self.where}: column {name!r} is of mode {feature.mode}, expected L, RGB or none"
            )
        # Not by ``datasets``, which also opens paths and URLs, and keeps inks and transparency.
        table = self.table.select_columns(name).cast_column(name, type(feature)(decode=False))
        for row, image in enumerate(image for batch in table.iter(_ROWS) for image in batch[name]):
            if image["bytes"] is None:
                raise DataError(
                    f"{self.where}: {name!r} of row {row} is the path {image['path']!r}, expected "
                    "the image itself; Dataset.save_to_disk writes images into its files"
                )
            try:
                images.append(grey_or_colour(image["bytes"], feature.mode))
            except DAMAGED as error:
                raise DataError(
                    f"{self.where}: the image {name!r} of row {row} cannot be read: {reason(error)}"
                ) from error
        sizes = [str(size) for size in dict.fromkeys(image.shape[:2] for image in images)]
        if len(sizes) > 1:
            raise DataError(
                f"{self.where}: column {name!r} holds images of sizes {' and '.join(sizes[:2])}; "
                "expected images of one size"
            )
        channels = max(image.shape[2] for image in images)
        shape = (*images[0].shape[:2], channels)
        return np.stack([np.broadcast_to(image, shape) for image in images])

    def is_image(self, name: str) -> bool:
        """Whether the column holds encoded images."""
        return type(self.table.features.get(name)).__name__ == "Image"


def _is_plain(feature: Any) -> bool:
    """Whether a column holds numbers or texts, or lists of them."""
    if (below := getattr(feature, "feature", None)) is not None:
        return _is_plain(below)
    name = type(feature).__name__
    return name in ("Value", "ClassLabel") or name.startswith("Array")


def train_and_test(
    path: Path, train: str, test: str | None
) -> tuple[TableSplit, TableSplit | None]:
    """The split to train on, and the one to test on, if there is one.

    Args:
        path: of the data set.
        train: the name of the first; a data set without splits is one called train.
        test: the name of the second; None: the one called test, where there is one.

    Raises:
        JobError: the package ``datasets`` is not installed.
        DataError: there is no such split, or the files are damaged or of another kind.
    """
    found = _splits(path, {train, test or "test"})
    for name in (train, test):
        if name is not None and name not in found:
            names = ", ".join(found) or f"none, expected such as {name}.parquet"
            raise DataError(f"{path}: has no split {name!r}; found {names}")
    return found[train], found.get(test or "test")


def _splits(path: Path, wanted: set[str]) -> Mapping[str, TableSplit]:
    """The splits found at ``path``; a file or folder without splits is called train."""
    for package in ("datasets", "pyarrow"):
        refuse_shadow(package)
    with _package_errors(str(path)):
        datasets = import_module("datasets")  # takes seconds, so only where it is used
        if path.is_dir() and not list(path.glob("**/*.parquet")):
            own = {file.resolve() for file in _saved(path)}
            loaded = datasets.load_from_disk(str(path))
            tables = loaded if isinstance(loaded, dict) else {"train": loaded}
            for file in [
                file["filename"] for table in tables.values() for file in table.cache_files
            ]:
                if Path(file).resolve() not in own:
                    raise DataError(f"{path}: its state.json names {file}, no file of this folder")
        else:
            files = _tables(path, wanted) if path.is_dir() else {"train": [path]}
            tables = {
                name: datasets.Dataset(datasets.table.InMemoryTable(read_parquet(parts)))
                for name, parts in files.items()
                if parts
            }
    return {name: TableSplit(f"{path}: {name}", table) for name, table in tables.items()}


def _tables(folder: Path, wanted: set[str]) -> dict[str, list[Path]]:
    """The parquet files of each of these splits, SPLIT.parquet or SPLIT-*.parquet, at any depth.

    Raises:
        DataError: those of a split are of several data sets, or one is missing.
    """
    every, found = sorted(folder.rglob("*.parquet")), {}
    for name in wanted:
        fitting = re.compile(rf"{re.escape(name)}(?P<rest>[-.].*)?\.parquet").fullmatch
        rests = {path: match["rest"] or "" for path in every if (match := fitting(path.name))}
        # Another split's name may begin alike: train-noisy-00000 beside train-00000.
        own = [path for path, rest in rests.items() if not re.match(r"-[^\W\d]", rest)]
        found[name] = own or list(rests)
        _require_one_set(folder, name, found[name])
    return found


def _require_one_set(folder: Path, split: str, files: Sequence[Path]) -> None:
    """Refuse files that are not the parts of one split, or not all of them.

    The parts of one differ in a number alone, and in what follows it: train-00001-of-00002-0f2c.
    """
    numbered = [_NUMBERED.fullmatch(path.stem) for path in files]
    sets = {
        (part["stem"], int(part["count"])) if part else (re.sub(r"\d+", "0", path.stem), 0)
        for path, part in zip(files, numbered, strict=True)
    }
    indices = sorted(int(part["index"]) for part in numbered if part)
    twice = len({path.name for path in files}) < len(files) or len({*indices}) < len(indices)
    if twice or len(sets) > 1:
        places = sorted({str(path.parent.relative_to(folder)) for path in files})
        names = sorted({path.name for path in files})
        raise DataError(
            f"{folder}: the files of {split} are of several data sets or splits: "
            f"{' and '.join(names[:3])}, in {' and '.join(places)}; name the folder of one in "
            "data.path, or one in data.train and data.test"
        )
    count = next((count for _, count in sets), 0)
    first = 1 if indices[:1] == [1] and count in indices else 0  # some number from 1
    if count and indices != [*range(first, first + count)]:
        raise DataError(
            f"{folder}: {split} has the parquet files of numbers {', '.join(map(str, indices))}, "
            f"expected {first} to {first + count - 1}; copy all of them"
        )


def _saved(folder: Path) -> list[Path]:
    """The files of a folder of save_to_disk, without those that ``datasets`` puts there to cache.

    Raises:
        DataError: the folder cannot be listed, or holds what is no file.
        DiskError: the disk fails.
    """
    with _package_errors(str(folder)):
        found = sorted(path for path in folder.rglob("*") if not path.is_dir())
        for path in found:
            check_regular(path)
        return [path for path in found if not path.name.startswith((".", "cache-"))]


def _package_errors(where: str) -> AbstractContextManager[None]:
    return package_errors(
        f"{where}: not readable", "a Hugging Face data set", "pip install 'hpcfl[huggingface]'"
    )


def _declared(train: TableSplit, name: str) -> int | None:
    """The number of classes that the column declares, if it does."""
    feature = train.table.features.get(name)
    while (below := getattr(feature, "feature", None)) is not None:  # of a list
        feature = below
    declared: int | None = getattr(feature, "num_classes", None)
    return declared


def _require_finite(split: TableSplit, name: str, values: NDArray[Any]) -> None:
    if (row := row_not_finite(values)) is not None:
        raise DataError(f"{split.where}: {name!r} is not finite in row {row}")


def _owned(train: TableSplit, name: str) -> list[ExampleRows]:
    """The rows of each client, in the order of the column's values."""
    return rows_of_owners(np.unique(train.owners(name), return_inverse=True)[1])


def to_unit(inputs: Tensor, dtype: torch.dtype, draws: Tensor | None) -> Tensor:
    """Images uint8 [B, H, W, C] to [B, C, H, W] in [0, 1]."""
    return inputs.to(dtype).permute(0, 3, 1, 2) / 255
