"""Plot a curve as lines of text, in Braille characters or in stars."""

import math
from collections.abc import Sequence

Curve = Sequence[tuple[int, float]]  # (round, value)

_DOTS = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))  # of a cell: column, row from above
_BLANK = 0x2800
_LABEL = 9  # columns of the numbers to the left of the axis
NARROWEST = 20
"""Columns that a plot needs."""


def text_plot(curve: Curve, rounds: int, width: int, height: int, *, braille: bool) -> list[str]:
    """Draw a curve in ``height`` lines of ``width`` columns; the last line is the axis of rounds.

    Rounds that fall on one column of dots are drawn as their mean.

    Args:
        curve: values by round, in their order; those that are not finite are left out.
        rounds: the last round of the axis.
        width: columns, at least NARROWEST.
        height: lines, at least 3.
        braille: draw 4 x 2 dots in each character; else one star.
    """
    known = [(round, value) for round, value in curve if math.isfinite(value)]
    if not known:
        return ["nothing to draw yet"]
    across, up = (2, 4) if braille else (1, 1)
    columns, lines = width - _LABEL - 1, height - 1
    low, high = min(value for _, value in known), max(value for _, value in known)
    span = high - low or 1.0
    by_x: dict[int, list[float]] = {}
    for round, value in known:
        x = round * (columns * across - 1) // max(rounds, 1)
        by_x.setdefault(min(x, columns * across - 1), []).append(value)
    cells = [[0] * columns for _ in range(lines)]
    before: tuple[int, int] | None = None
    for x, values in sorted(by_x.items()):
        mean = math.fsum(values) / len(values)
        point = x, round_half((high - mean) / span * (lines * up - 1))
        for column, line in _path(before, point):
            cells[line // up][column // across] |= _DOTS[column % across][line % up]
        before = point
    signs = [[(chr(_BLANK + cell) if braille else "*") if cell else " " for cell in row]
             for row in cells]  # fmt: skip
    labels = {0: f"{high:.4g}", lines - 1: f"{low:.4g}"}
    drawn = [f"{labels.get(k, ''):>{_LABEL}} " + "".join(row) for k, row in enumerate(signs)]
    last = str(rounds)
    return [*drawn, " " * (_LABEL + 1) + "0" + last.rjust(columns - 1)]


def round_half(value: float) -> int:
    """The nearest integer, halves upwards.

    Python's ``round`` takes halves to the even integer, by which a slope would get uneven steps.
    """
    return math.floor(value + 0.5)


def _path(before: tuple[int, int] | None, now: tuple[int, int]) -> list[tuple[int, int]]:
    """The dots of a line between two points, without the first point, which is drawn already."""
    if before is None:
        return [now]
    (x0, y0), (x1, y1) = before, now
    steps = max(abs(x1 - x0), abs(y1 - y0))
    return [
        (x0 + round_half((x1 - x0) * k / steps), y0 + round_half((y1 - y0) * k / steps))
        for k in range(1, steps + 1)
    ]
