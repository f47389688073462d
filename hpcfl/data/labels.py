"""Tell classes, numbers and bits apart, check labels, count classes, and find missing ones."""

from collections.abc import Callable, Mapping
from itertools import islice
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from hpcfl.errors import DataError, JobError
from hpcfl.types import LossName

LabelType = Literal["classes", "numbers", "bits"]
"""Labels are classes (cross-entropy), numbers: targets of a regression (mean of r^2 / 2), or bits:
several labels that each apply or not (binary cross-entropy)."""
_LISTED = 5  # classes in a note


def are_classes(label_type: LabelType | None, *, floats: bool) -> bool:
    """Whether labels are classes, in every data set of a user's own.

    Args:
        label_type: what the job says of them, if it does: else floats are numbers, others classes.
        floats: whether they were read as floats.
    """
    return not floats if label_type is None else label_type == "classes"


def typed_labels(where: str, labels: NDArray[Any], label_type: LabelType | None) -> NDArray[Any]:
    """Labels [n, ...] as integers where they are classes, as floats where they are numbers.

    Bits are booleans [n, t]; what the job does not call otherwise is bits if it is such already.

    Args:
        where: the file, and the labels' name in it.
        labels: as they were read, numbers or booleans.
        label_type: what the job says of them, if it does.

    Raises:
        DataError: an example has no label, one of the classes a fraction, or bits are no bits.
    """
    if 0 in labels.shape[1:]:
        raise DataError(f"{where} has the shape {labels.shape}: no label an example, expected one")
    floats, booleans = labels.dtype.kind == "f", labels.dtype.kind == "b"
    if label_type == "bits" or (label_type is None and booleans and labels.ndim > 1):
        return _as_bits(where, labels)
    if booleans:
        labels = labels.astype(np.int64)
    if are_classes(label_type, floats=floats) != floats:
        return labels
    if floats:
        return _whole(where, labels, "; for a regression say data.label_type: numbers")
    return labels.astype(np.float64)


def _as_bits(where: str, labels: NDArray[Any]) -> NDArray[np.bool_]:
    """Bits [n, t] of numbers or booleans [n, t]; of [n] each example has one.

    Raises:
        DataError: they have another shape, or one is neither 0 nor 1.
    """
    if labels.ndim > 2:
        raise DataError(
            f"{where} has the shape {labels.shape}, expected bits [n, t]; reshape it to "
            f"({len(labels)}, -1)"
        )
    found: NDArray[np.bool_] = labels.astype(bool)
    wrong = found != labels
    if wrong.any():
        row = int(np.argwhere(wrong)[0][0])
        raise DataError(f"{where} of row {row} holds {labels[wrong][0]}, expected bits, 0 or 1")
    return found.reshape(len(labels), -1)


def loss_of_labels(labels: NDArray[Any]) -> LossName:
    """The loss of labels [n, ...] as ``typed_labels`` returns them."""
    if labels.dtype.kind == "b":
        return "bits"
    if labels.dtype.kind == "f":
        return "squared"
    return "cross_entropy" if labels.ndim == 1 else "tokens"


def counted(labels: NDArray[Any], padding: int | None) -> NDArray[Any]:
    """The labels that are no padding: all [n, ...], or those that remain [m]."""
    return labels if padding is None else labels[labels != padding]


def padding_notes(
    key: str, padding: int | None, parts: Mapping[str, NDArray[Any]], classes: int | None
) -> tuple[str, ...]:
    """A line on padding that occurs nowhere; none where it does.

    Args:
        key: of the job, with the value.
        padding: None: there is none, and nothing to say.
        parts: the labels of each part by name, in messages.
        classes: how many there are.

    Raises:
        JobError: the labels have no padding; or it occurs nowhere, and is neither a class nor
            negative, so that it is mistyped.
    """
    if padding is None:
        return ()
    name, labels = next(iter(parts.items()))
    if labels.dtype.kind not in "iu" or labels.ndim < 2:
        raise JobError(
            f"{key}: padding is of several classes an example, and {name} is {labels.dtype} of "
            f"shape {labels.shape}; remove data.padding, and examples that shall not count"
        )
    if any((part == padding).any() for part in parts.values()):
        return ()
    found = f"{key}: no label of {' and '.join(parts)} is {padding}"
    if padding >= (classes or 0):
        raise JobError(
            f"{found}, and it is no class (0 to {(classes or 1) - 1}); expected the label of "
            "padding: one that occurs, a class, or a negative number such as -100"
        )
    return (f"{found}, so every label counts",)


def type_note(
    where: str, labels: NDArray[Any], classes: int | None, label_type: LabelType | None
) -> tuple[str, ...]:
    """A line on labels that may be meant as another type; none where the job says the type.

    Args:
        where: the file or key, and the labels' name in it.
        labels: of all examples.
        classes: how many there are; None: the labels are numbers.
        label_type: what the job says of them, if it does.
    """
    if label_type is not None or labels.dtype.kind == "b":
        return ()
    if classes is None and np.all(labels == np.rint(labels)):
        return (
            f"{where}: all labels are whole numbers, but floats, so they are the targets of a "
            f"regression; if they are classes, say data.label_type: classes{_or_bits(labels)}",
        )
    if labels.ndim > 1 and classes == 2:
        return (
            f"{where}: {labels[0].size} classes of two an example; if they are bits, which the "
            f"model answers by {labels[0].size} numbers, say data.label_type: bits, else "
            "data.label_type: classes",
        )
    if classes is not None and 2 * classes > labels.size:
        return (
            f"warning: {where}: {classes} classes for {labels.size} labels; if these are numbers "
            "to predict (a regression), say data.label_type: numbers, else data.label_type: "
            "classes",
        )
    return ()


def _or_bits(labels: NDArray[Any]) -> str:
    """What to say of labels of an example that are all 0 or 1."""
    return ", or bits" if labels.ndim > 1 and np.isin(labels, (0, 1)).all() else ""


def require_integers(where: str, labels: NDArray[Any], count: int) -> None:
    """Check that there is one integer label for each of ``count`` examples, at least one.

    Args:
        where: the file, and the labels' name in it.
        labels: as they were read.
        count: number of inputs.

    Raises:
        DataError: there is not.
    """
    if labels.shape != (count,) or labels.dtype.kind not in "iu" or not count:
        raise DataError(
            f"{where}: labels are {labels.dtype} of shape {labels.shape}, expected {count} integers"
        )


def as_integers(where: str, values: NDArray[Any]) -> NDArray[Any]:
    """One integer a row: the values themselves, or int64 where they are floats without fractions.

    Args:
        where: the file, and the values' name in it.
        values: as they were read.

    Raises:
        DataError: they are not; it names the first row with a fraction.
    """
    if values.ndim != 1 or values.dtype.kind not in "iuf":
        raise DataError(
            f"{where} is {values.dtype} of shape {values.shape}, expected one integer a row"
        )
    return _whole(where, values) if values.dtype.kind == "f" else values


def _whole(where: str, values: NDArray[Any], cure: str = "") -> NDArray[np.int64]:
    """Floats [n, ...] without fractions as integers; see ``as_integers``."""
    whole = (np.abs(values) < 2**53) & (values == np.rint(values))
    if not whole.all():
        row, wrong = int(np.argwhere(~whole)[0][0]), values[~whole][0]
        raise DataError(f"{where} of row {row} is {wrong}, expected an integer{cure}")
    return values.astype(np.int64)


def count_of(
    where: str,
    labels: NDArray[Any],
    tests: NDArray[Any] | None,
    subtract: Callable[[int], str],
    padding: int | None = None,
) -> int:
    """The number of classes 0, 1, ...: the largest label + 1.

    Labels [n] that count from 1 would silently add a class without examples; of a vocabulary any
    token may be absent.

    Args:
        where: the file, and the labels' name in it.
        labels: integers [n, ...] to train on.
        tests: those to test on, if there are any.
        subtract: a number -> advice how to subtract it from all labels.
        padding: the label that is none.

    Raises:
        DataError: none of the labels [n] is 0.
    """
    if labels.ndim > 1 or not labels.size:  # none is refused where they are compared with inputs
        return max(int(counted(labels, padding).max(initial=0)) + 1, 1)
    lowest, highest = int(labels.min()), int(labels.max())
    tested = lowest if tests is None or not tests.size else int(tests.min())
    if min(lowest, tested) > 0:
        raise DataError(
            f"{where} runs from {lowest} to {highest}, so no example is of class 0, the first one; "
            f"let classes count from 0 ({subtract(lowest)}), or say "
            f"data.classes: {highest + 1} if class 0 is meant to have no example"
        )
    return max(highest + 1, 1)


def missing_classes(labels: NDArray[Any], classes: int) -> tuple[str, ...]:
    """A line about the classes without a training example [n]; empty if there are none."""
    present = {*np.unique(labels).tolist()}
    missing = classes - len(present)
    if not missing:
        return ()
    names = ", ".join(
        str(label) for label in islice((k for k in range(classes) if k not in present), _LISTED)
    )
    more = ", ..." if missing > _LISTED else ""
    return (f"data: {missing} of {classes} classes have no training example: {names}{more}",)


def require_classes(where: str, labels: NDArray[Any], classes: int, first: int = 0) -> None:
    """Refuse labels [n] that are not among ``first``, ..., ``first + classes - 1``.

    Raises:
        DataError: the first such row, in ``where``.
    """
    wrong = (labels < first) | (labels >= first + classes)
    if wrong.any():
        row = int(np.argmax(wrong))
        raise DataError(
            f"{where}: the label of row {row} is {labels[row]}, expected {first} to "
            f"{first + classes - 1}"
        )
