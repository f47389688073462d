"""Convert the lists of a JSON file to compact arrays; wrong values raise ValueError."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcfl.data.finite import row_not_finite
from hpcfl.data.grayscale import SIDE, levels
from hpcfl.data.sources.shakespeare import WINDOW, classes_of


def images(x: list[Any]) -> NDArray[Any]:
    """Grey images uint8 [n, 28, 28] of rows of 784 values k / 255."""
    values = _table(x)
    if values.shape[1] != SIDE * SIDE:
        raise ValueError(f"x holds {values.shape[1]} numbers a row, expected {SIDE * SIDE}")
    try:
        return levels(values).reshape(-1, SIDE, SIDE)
    except ValueError as error:
        raise ValueError(f"x {error}; other numbers are data.examples: vectors") from error


def vectors(x: list[Any]) -> NDArray[Any]:
    """Numbers float32 [n, d]."""
    with np.errstate(over="ignore"):  # found below
        values = _table(x).astype(np.float32)
    if (row := row_not_finite(values)) is not None:
        raise ValueError(f"x holds a number in row {row} that is not finite in 32 bits")
    return values


def text(x: list[Any]) -> NDArray[Any]:
    """Texts of 80 characters as classes: uint8 [n, 80]."""
    return _characters("x", x, WINDOW)


def characters(y: list[Any]) -> NDArray[Any]:
    """One character each, as classes: uint8 [n]."""
    return _characters("y", y, 1)[:, 0]


def integers(y: list[Any]) -> NDArray[Any]:
    """Labels int64 [n]; published files also hold 4.0 for 4."""
    for row, label in enumerate(y):
        whole = type(label) is int or (type(label) is float and label.is_integer())
        if not whole or abs(label) > 2**31:
            raise ValueError(f"the label of row {row} is {_cut(label)}, expected an integer")
    return np.array(y, dtype=np.int64)


def _table(x: list[Any]) -> NDArray[Any]:
    """Rows of equally many numbers [n, d]."""
    for row, numbers in enumerate(x):
        if isinstance(numbers, list) and isinstance(x[0], list) and len(numbers) != len(x[0]):
            raise ValueError(f"row {row} of x holds {len(numbers)} numbers, row 0 {len(x[0])}")
    try:
        values = np.asarray(x)
    except (ValueError, OverflowError) as error:
        raise ValueError(f"x is no table of numbers: {error}") from error
    if values.ndim != 2 or values.dtype.kind not in "iuf":
        raise ValueError(
            f"x[0] is {_cut(x[0])}, expected a list of numbers; text of {WINDOW} characters is "
            "data.examples: text, and other text is not supported"
        )
    return values


def _characters(name: str, texts: list[Any], length: int) -> NDArray[Any]:
    for row, words in enumerate(texts):
        if not isinstance(words, str) or len(words) != length:
            raise ValueError(
                f"{name}[{row}] is {_cut(words)}, expected a text of {length} characters"
            )
    joined = "".join(texts).encode("utf-32-le", "surrogatepass")
    return classes_of(np.frombuffer(joined, dtype="<u4")).reshape(-1, length)


def _cut(value: Any) -> str:
    """A value, shortened for a message."""
    shown = repr(value)
    return shown if len(shown) <= 30 else f"{shown[:30]}..."
