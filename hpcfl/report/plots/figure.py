"""Make figures without a display, and write them to files."""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Self

from hpcfl.errors import JobError
from hpcfl.io.packages import refuse_shadow
from hpcfl.runs.outputs import check_output, write_output
from hpcfl.runs.sweep_log import PLOT_MARK

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's colours, which colour-blind readers can distinguish; without yellow, on white.  By
# their order (choose_looks) neither SCAFFOLD nor FedHBM has a blue, as FedAvg has.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#000000", "#56B4E9")
FORMATS = (".png", ".pdf", ".svg")
LEAST, LARGEST = 1.0, 40.0  # inches, of a side of a picture


class FigureSize(NamedTuple):
    """The size of a picture, in inches."""

    width: float
    height: float

    @classmethod
    def parse(cls, text: str | None) -> Self | None:
        """The size of an option --size: "WIDTHxHEIGHT"; None where it is not given.

        Raises:
            JobError: there are no two numbers, or a side is too short or too long for a picture.
        """
        if text is None:
            return None
        sides = re.fullmatch(r"(\d+\.?\d*)x(\d+\.?\d*)", text.strip())
        found = cls(*map(float, sides.groups())) if sides else None
        if found is None or not all(LEAST <= side <= LARGEST for side in found):
            raise JobError(
                f"--size: found {text!r}, expected WIDTHxHEIGHT in inches, of {LEAST:g} to "
                f"{LARGEST:g} each, such as 6x4 or 3.3x2.5"
            )
        return found


def check_text(option: str, text: str) -> None:
    """Check that matplotlib can write a text; what is between dollar signs is mathematics.

    Raises:
        JobError: the mathematics is none that matplotlib knows.
    """
    refuse_shadow("matplotlib")
    from matplotlib.cbook import is_math_text
    from matplotlib.mathtext import MathTextParser

    if is_math_text(text):
        try:
            MathTextParser("path").parse(text)
        except ValueError as e:
            reason = str(e).strip().splitlines()[-1]
            raise JobError(
                f"{option}: found {text!r}, whose mathematics between $ and $ matplotlib cannot "
                f"read: {reason}; write \\$ for a dollar sign"
            ) from None


def new_figure(
    width: float, height: float, down: int = 1, across: int = 1
) -> tuple[Figure, list[Axes]]:
    """A figure that needs no display and no global state (Figure's own canvas is Agg's)."""
    refuse_shadow("matplotlib")
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), dpi=150, layout="constrained")
    panels = list(figure.subplots(down, across, squeeze=False).flat)
    for axes in panels:
        axes.spines[["top", "right"]].set_visible(False)
    return figure, panels


def lay_out(figure: Figure) -> None:
    """Give everything in a figure its place, as saving it does.

    Raises:
        JobError: labels and legends leave no room for what is drawn.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "constrained_layout not applied")
        try:
            figure.draw_without_rendering()
            roomy = all(_has_its_label(axes, figure) for axes in figure.axes)
        except UserWarning:
            roomy = False
    if not roomy:
        width, height = figure.get_size_inches()
        raise JobError(
            f"--size: {width:g}x{height:g} inches leave no room beside the labels and legend; take "
            "a larger size, or draw fewer runs"
        )


def _has_its_label(axes: Axes, figure: Figure) -> bool:
    """Whether the label of the vertical axis is whole within the picture."""
    label, picture = axes.yaxis.label.get_window_extent(), figure.bbox
    return bool(label.y0 >= picture.y0 and label.y1 <= picture.y1)


def save(figure: Figure, paths: Sequence[Path]) -> None:
    """Write the figure to every file.

    Missing folders are made.

    Raises:
        DiskError: the disk is full or fails.
        JobError: one cannot be written, or is of another kind.
    """
    from matplotlib import rc_context

    for path in paths:
        check_plot(path)
        form, content = path.suffix.lower().removeprefix("."), io.BytesIO()
        with rc_context({"pdf.fonttype": 42}):  # journals refuse the default, Type 3
            figure.savefig(content, format=form, metadata=PLOT_MARK if form == "png" else None)
        write_output(path, content.getvalue(), FORMATS, make_folder=True)


def check_plot(path: Path) -> None:
    """Refuse a file for a plot before the work that leads to it is done.

    Raises:
        JobError: it cannot be written, or is of another kind.
    """
    check_output(path, FORMATS, make_folder=True)
