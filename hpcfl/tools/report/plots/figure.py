"""Make figures without a display, and write them to files."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from hpcfl.io.packages import require
from hpcfl.runs.outputs import check_output, write_output
from hpcfl.runs.sweep_log import PLOT_MARK

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's colours, which colour-blind readers can distinguish; without yellow, on white.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#000000", "#56B4E9")
FORMATS = (".png", ".pdf", ".svg")


def new_figure(width: float, height: float, down: int = 1) -> tuple[Figure, list[Axes]]:
    """A figure that needs no display and no global state, and its panels from top to bottom.

    Args:
        width: in inches, as ``height`` is; ``save`` cuts the margins and adds what is outside.
        height: of all panels.
        down: the number of panels.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), dpi=150, layout="constrained")
    panels = list(figure.subplots(down, squeeze=False).flat)
    for axes in panels:
        axes.spines[["top", "right"]].set_visible(False)
    return figure, panels


def save(figure: Figure, paths: Sequence[Path]) -> None:
    """Write the figure to files that ``check_plot`` accepts; missing folders are made.

    Raises:
        DiskError: the disk is full or fails.
        JobError: one cannot be written.
    """
    from matplotlib import rc_context

    for path in paths:
        form, content = path.suffix.lower().removeprefix("."), io.BytesIO()
        with rc_context({"pdf.fonttype": 42}):  # journals refuse the default, Type 3
            figure.savefig(
                content,
                format=form,
                bbox_inches="tight",
                metadata=PLOT_MARK if form == "png" else None,
            )
        write_output(path, content.getvalue(), FORMATS, make_folder=True)


def check_plot(path: Path) -> None:
    """Refuse a file for a plot before the work that leads to it is done.

    Raises:
        JobError: it cannot be written, or is of another kind; or matplotlib is not installed.
    """
    require("matplotlib", "a plot", "plot")
    check_output(path, FORMATS, make_folder=True)
