"""Pictures: the log against rounds, and who holds which classes.  matplotlib is loaded on use."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from hpcfl.compare import labels
from hpcfl.errors import JobError
from hpcfl.report import RunRecord

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's colours, told apart by colour-blind readers too, on white; yellow left out.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
DASHES = ("-", "--", ":", "-.")


def plot(runs: Sequence[RunRecord], path: Path, y: str | None = None) -> None:
    """Draw a number of the log against rounds, one curve a run.

    Losses are drawn on a log scale where all are positive, other numbers but accuracies where
    they also span a factor of ten.

    Args:
        runs: all with the number.
        path: the PNG file to write.
        y: its key in log.jsonl; when absent, test accuracy, or test loss where nothing is
            classified.

    Raises:
        JobError: a run has no such number yet, or the file cannot be written.
    """
    key = y or _score(runs)
    curves = [np.array(run.curve(key)).reshape(-1, 2).T for run in runs]
    for run, (rounds, _) in zip(runs, curves, strict=True):
        if not rounds.size:
            found = sorted({name for entry in run.log for name in entry} - {"round"})
            raise JobError(
                f"{run.path}: no round in log.jsonl has {key!r}, so nothing to plot; found "
                f"{', '.join(found) or 'no round yet'}"
            )
    percent = key.endswith("accuracy")
    figure, axes = _figure(7.0, 4.2)
    names = labels([run.path for run in runs])
    for index, (name, (rounds, values)) in enumerate(zip(names, curves, strict=True)):
        axes.plot(
            rounds,
            100 * values if percent else values,
            color=COLOURS[index % len(COLOURS)],
            linestyle=DASHES[index // len(COLOURS) % len(DASHES)],
            linewidth=1.6,
            marker="o" if len(rounds) <= 30 else None,
            markersize=3.5,
            label=name,
        )
    least, most = min(v.min() for _, v in curves), max(v.max() for _, v in curves)
    if least > 0 and not percent and (key.endswith("loss") or most >= 10 * least):
        axes.set_yscale("log")
    axes.set_xlabel("round")
    axes.set_ylabel(key.replace("_", " ") + (", %" if percent else ""))
    axes.grid(visible=True, which="both", color="0.9", linewidth=0.7)
    axes.set_xlim(0, max(run.rounds for run in runs))
    if len(runs) <= 6:
        axes.legend(loc="best", framealpha=0.8, edgecolor="none")
    else:
        axes.legend(frameon=False, loc="upper left", bbox_to_anchor=(1.0, 1.0), fontsize="small")
    _save(figure, path)


def _score(runs: Sequence[RunRecord]) -> str:
    """The key of what the runs are judged by.

    Raises:
        JobError: a run has no evaluation yet, or only some have an accuracy.
    """
    for run in runs:
        if not run.scores["test_loss"]:
            raise JobError(f"{run.path}: no evaluated round in log.jsonl yet, so nothing to plot")
    without = [run for run in runs if not run.scores["test_accuracy"]]
    if without and len(without) < len(runs):
        raise JobError(
            f"{without[0].path}: has no test accuracy, as other runs of this plot have; "
            "plot regression and classification apart"
        )
    return "test_loss" if without else "test_accuracy"


def plot_partition(counts: NDArray[np.int64], path: Path) -> None:
    """Draw how many examples each client holds and, of a classification, of which classes.

    A class is a row and a client a column, coloured by the class's share of the client: this
    stays readable with a hundred classes or thousands of clients, where stacked bars do not.

    Args:
        counts: examples by client and class [N, classes], or by client alone [N].
        path: the PNG file to write.

    Raises:
        JobError: the file cannot be written.
    """
    from matplotlib.colors import PowerNorm

    if counts.ndim == 1:
        sizes = np.sort(counts)[::-1]
        figure, axes = _figure(7.0, 3.0)
        axes.set_xlabel("clients, the largest first")
    else:
        sizes = counts.sum(axis=1)
        figure, axes = _figure(7.0, 2.2 + min(4.0, 0.9 + 0.18 * counts.shape[1]))
        axes.remove()
        axes, below = figure.subplots(2, 1, sharex=True, height_ratios=(1, 2))
        shares = counts / np.maximum(sizes, 1)[:, None]
        # The square root keeps a share of a few percent apart from none.
        image = below.imshow(
            shares.T, aspect="auto", origin="lower", cmap="Blues", norm=PowerNorm(0.5, 0, 1)
        )
        below.set_xlabel("client")
        below.set_ylabel("class")
        below.yaxis.get_major_locator().set_params(integer=True)
        figure.colorbar(image, ax=[axes, below], label="share of the client's examples")
    axes.stairs(sizes, np.arange(len(sizes) + 1) - 0.5, fill=True, color=COLOURS[0])
    axes.set_ylim(0, None)
    axes.set_xlim(-0.5, len(sizes) - 0.5)
    axes.set_ylabel("examples")
    axes.set_title(
        f"{len(sizes)} clients, {sizes.sum()} examples: {sizes.min()} to {sizes.max()} a client",
        fontsize="medium",
    )
    _save(figure, path)


def _figure(width: float, height: float) -> tuple[Figure, Axes]:
    """A figure that needs no display and no global state (Figure's own canvas is Agg's)."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), dpi=150, layout="constrained")
    axes = figure.add_subplot()
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def _save(figure: Figure, path: Path) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, format="png")
    except OSError as error:
        raise JobError(f"{path}: the plot cannot be written: {error.strerror}") from error
