"""Tell classes from numbers, check labels, count classes, and find those without examples."""

from collections.abc import Callable
from itertools import islice
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from hpcfl.errors import DataError

LabelType = Literal["classes", "numbers"]
"""Labels are classes (cross-entropy), or numbers: targets of a regression (mean of r^2 / 2)."""
_LISTED = 5  # classes in a note


def are_classes(label_type: LabelType | None, *, floats: bool) -> bool:
    """Whether labels are classes, in every data set of a user's own.

    Args:
        label_type: what the job says of them, if it does: else floats are numbers, others classes.
        floats: whether they were read as floats.
    """
    return not floats if label_type is None else label_type == "classes"


def typed_labels(where: str, labels: NDArray[Any], label_type: LabelType | None) -> NDArray[Any]:
    """Labels [n] as integers where they are classes, as floats where they are numbers.

    Args:
        where: the file, and the labels' name in it.
        labels: as they were read, numbers or booleans.
        label_type: what the job says of them, if it does.

    Raises:
        DataError: one of the classes has a fraction.
    """
    floats = labels.dtype.kind == "f"
    if are_classes(label_type, floats=floats) != floats:
        return labels
    if floats:
        return as_integers(where, labels, "; for a regression say data.label_type: numbers")
    return labels.astype(np.float64)


def type_note(
    where: str, labels: NDArray[Any], classes: int | None, label_type: LabelType | None
) -> tuple[str, ...]:
    """A line on labels [n] that may be meant as the other type; none where the job says the type.

    Args:
        where: the file or key, and the labels' name in it.
        labels: of all examples.
        classes: how many there are; None: the labels are numbers.
        label_type: what the job says of them, if it does.
    """
    if label_type is not None:
        return ()
    if classes is None and np.all(labels == np.rint(labels)):
        return (
            f"{where}: all labels are whole numbers, but floats, so they are the targets of a "
            "regression; if they are classes, say data.label_type: classes",
        )
    if classes is not None and 2 * classes > len(labels):
        return (
            f"warning: {where}: {classes} classes for {len(labels)} labels; if these are numbers "
            "to predict (a regression), say data.label_type: numbers, else data.label_type: "
            "classes",
        )
    return ()


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


def as_integers(where: str, values: NDArray[Any], cure: str = "") -> NDArray[Any]:
    """One integer a row: the values themselves, or int64 where they are floats without fractions.

    Args:
        where: the file, and the values' name in it.
        values: as they were read.
        cure: ends the message on a fraction.

    Raises:
        DataError: they are not; it names the first row with a fraction.
    """
    if values.ndim != 1 or values.dtype.kind not in "iuf":
        raise DataError(
            f"{where} is {values.dtype} of shape {values.shape}, expected one integer a row"
        )
    if values.dtype.kind != "f":
        return values
    whole = (np.abs(values) < 2**53) & (values == np.rint(values))
    if not whole.all():
        row = int(np.argmin(whole))
        raise DataError(f"{where} of row {row} is {values[row]}, expected an integer{cure}")
    return values.astype(np.int64)


def count_of(
    where: str, labels: NDArray[Any], tests: NDArray[Any] | None, subtract: Callable[[int], str]
) -> int:
    """The number of classes 0, 1, ...: the largest label + 1.

    Labels that count from 1 would silently add a class without examples.

    Args:
        where: the file, and the labels' name in it.
        labels: integers [n] to train on.
        tests: those to test on, if there are any.
        subtract: a number -> advice how to subtract it from all labels.

    Raises:
        DataError: none of the labels is 0.
    """
    if not labels.size:  # is refused where labels are compared with inputs
        return 1
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
