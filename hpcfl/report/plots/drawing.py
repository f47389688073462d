"""Draw a curve in a panel: its style, its band, its entry in the legend."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from textwrap import fill
from typing import TYPE_CHECKING, NamedTuple
from zlib import crc32

import numpy as np

from hpcfl.errors import printable
from hpcfl.report.plots.figure import COLOURS

if TYPE_CHECKING:
    from matplotlib.axes import Axes

DASHES = ("-", "--", ":", "-.")
LABEL = 44  # letters of a line of the legend
MOST = 8  # curves of a panel whose lines and bands can be told apart
FEW = 6  # curves, and lines of their labels, for which there is room inside of the axes


class Curve(NamedTuple):
    """A run, or the mean of several that differ in the seed alone."""

    algorithm: str
    name: str
    """The label that distinguishes it in its panel."""
    progress_note: str
    """The number of seeds in the mean, and of completed rounds if none is finished; or nothing."""
    x: Sequence[float]
    y: Sequence[float]
    deviation: Sequence[float]
    """Sample standard deviations, or nothing of a single run."""
    unfinished_seeds: Sequence[tuple[Sequence[float], Sequence[float]]]
    """Seeds that are not as far yet, each on its own."""

    @property
    def label(self) -> str:
        """The line of the legend."""
        return fill(printable(self.name + self.progress_note), LABEL)


def has_room(curves: Sequence[Curve]) -> bool:
    """Whether the legend of these curves has room inside of the axes."""
    return len(curves) <= FEW and sum(c.label.count("\n") for c in curves) <= FEW // 2


def choose_looks(curves: Sequence[Curve]) -> dict[tuple[str, str], tuple[str, str]]:
    """By algorithm and name, colours and dashes.

    An algorithm has a colour, and the settings of a curve have a dash, the same for every
    algorithm; variants that would look alike, and those of a single algorithm, have colours of
    their own.  An algorithm has the colour that its name gives, the same in every plot where no
    other has claimed it; FedAvg's is the first.
    """
    count = len(COLOURS)
    names = sorted({curve[:2] for curve in curves}, key=lambda name: (name[0] != "fedavg", name))
    single = len({algorithm for algorithm, _ in names}) == 1
    settings = sorted({_settings(name) for _, name in names})
    taken: Counter[int] = Counter()  # algorithms, or variants, by colour
    own_colours: dict[str, list[int]] = {}
    looks: dict[tuple[str, str], tuple[str, str]] = {}
    for algorithm, name in names:
        first = 0 if single else settings.index(_settings(name))
        dash = DASHES[first % len(DASHES)]
        used = set(looks.values())
        mine = own_colours.setdefault(algorithm, [])
        free = [colour for colour in mine if (COLOURS[colour], dash) not in used]
        if not free:
            own = crc32(algorithm.encode()) - crc32(b"fedavg")
            free = [min(range(count), key=lambda c: (taken[c], (c - own) % count))]
            taken[free[0]] += 1
            mine.append(free[0])
        colour = COLOURS[free[0]]
        others = (DASHES[(first + k) % len(DASHES)] for k in range(len(DASHES)))
        looks[algorithm, name] = colour, next((d for d in others if (colour, d) not in used), dash)
    return looks


def _settings(name: str) -> str:
    """The part of a curve's name after its algorithm."""
    return name.partition(", ")[2]


def draw_curve(
    axes: Axes, curve: Curve, size: float, scale: float, look: tuple[str, str], *, few: bool
) -> None:
    """Draw the line, its band, and thin ones of seeds that lag; x is divided, y multiplied."""
    colour, dash = look
    x, y = np.array(curve.x) / size, scale * np.array(curve.y)
    if curve.deviation:
        band = scale * np.array(curve.deviation)
        alpha = 0.2 if few else 0.07
        axes.fill_between(x, y - band, y + band, color=colour, alpha=alpha, linewidth=0)
        if not few:  # overlapping bands are told apart by their edges
            for edge in (y - band, y + band):
                axes.plot(x, edge, color=colour, linestyle=dash, linewidth=0.5, alpha=0.5)
    for seed_x, seed_y in curve.unfinished_seeds:
        axes.plot(
            np.array(seed_x) / size,
            scale * np.array(seed_y),
            color=colour,
            linestyle=dash,
            linewidth=0.6,
        )
    axes.plot(
        x,
        y,
        color=colour,
        linestyle=dash,
        linewidth=1.6 if few else 1.2,
        marker="o" if few and len(x) <= 30 else None,
        markersize=3.5,
        label=curve.label,
    )


def add_legend(axes: Axes, curves: Sequence[Curve], *, few: bool) -> None:
    """The legend, in the order in which the curves end, the highest first.

    A few curves have it inside of the axes, where it covers the least, many beside them.
    """
    ends = {curve.label: curve.y[-1] for curve in curves}
    lines = [line for line in axes.lines if line.get_label() in ends]
    lines.sort(key=lambda line: -ends[str(line.get_label())])
    if few:
        legend = axes.legend(handles=lines, loc="best", framealpha=0.8, edgecolor="none")
    else:
        legend = axes.legend(
            handles=lines, frameon=False, loc="upper left", bbox_to_anchor=(1, 1), fontsize="small"
        )
    for text in legend.get_texts():
        text.set_parse_math(False)  # a dollar sign in a name begins no formula
