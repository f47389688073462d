"""Pictures: the log against rounds, and who holds which classes.  matplotlib is loaded on use."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hpcfl.compare import SEED, Settings, apart, labels, over_seeds
from hpcfl.errors import JobError
from hpcfl.kinds import suggestion
from hpcfl.records import RunRecord

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's colours, told apart by colour-blind readers too, on white; yellow left out.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
JUDGED = ("test_accuracy", "test_loss", "objective")  # what runs are judged by, the first they have
FORMATS = (".png", ".pdf", ".svg")
DASHES = ("-", "--", ":", "-.")


class Plot:
    """A number of the log against rounds, one curve a run.

    Runs that differ in the seed alone share a colour: thin lines, and their mean as a thick one.
    Losses are drawn on a log scale where all are positive, other numbers but accuracies where
    they also span a factor of ten.

    Args:
        runs: any; those without the number are left out.
        path: the .png, .pdf or .svg file to write.
        y: the number's key in log.jsonl; when absent, test accuracy, test loss where nothing is
            classified, or the objective where nothing is tested.

    Raises:
        JobError: no run has such a number yet, or the file is of another kind.
    """

    def __init__(self, runs: Sequence[RunRecord], path: Path, y: str | None = None) -> None:
        self._path = path
        _format(path)
        self._key = y or _score(runs)
        self._runs = [run for run in runs if run.curve(self._key)]
        self.without = [run for run in runs if run not in self._runs]
        """The runs that are left out."""
        if not self._runs:
            found = sorted({name for run in runs for entry in run.log for name in entry})
            raise JobError(
                f"{', '.join(str(run.path) for run in runs[:3])}{', ...' if runs[3:] else ''}: no "
                f"round in log.jsonl has {self._key!r}, so nothing to plot; found "
                f"{', '.join(found) or 'no round yet'}{suggestion(self._key, found)}"
            )

    def draw(self) -> None:
        """Write the file.

        Raises:
            JobError: it cannot be written.
        """
        key, percent = self._key, "accuracy" in self._key
        scale = 100 if percent else 1
        figure, axes = _figure(7.0, 4.2)
        curves = [dict(run.curve(key)) for run in self._runs]
        groups = _seeds([run.settings for run in self._runs])
        for index, (name, group) in enumerate(zip(self._names(groups), groups, strict=True)):
            look: dict[str, Any] = {
                "color": COLOURS[index % len(COLOURS)],
                "linestyle": DASHES[index // len(COLOURS) % len(DASHES)],
            }
            common = sorted(set.intersection(*(set(curves[member]) for member in group)))
            mean = [fmean(curves[member][t] for member in group) for t in common]
            if len(group) > 1:
                look["linewidth"] = 2.2
                for member in group:
                    rounds, own = zip(*curves[member].items(), strict=True)
                    axes.plot(rounds, scale * np.array(own), **look | {"linewidth": 0.6})
            axes.plot(
                common,
                scale * np.array(mean),
                **{"linewidth": 1.6} | look,
                marker="o" if len(common) <= 30 else None,
                markersize=3.5,
                label=name,
            )
        values = [value for curve in curves for value in curve.values()]
        least, most = min(values), max(values)
        wide = key.endswith(("loss", "objective")) or most >= 10 * least
        if least > 0 and not percent and wide:
            axes.set_yscale("log")
        axes.set_xlabel("round")
        axes.set_ylabel(key.replace("_", " ") + (", %" if percent else ""))
        axes.grid(visible=True, which="both", color="0.9", linewidth=0.7)
        axes.set_xlim(0, max(run.rounds for run in self._runs))
        if len(groups) <= 6:
            axes.legend(loc="best", framealpha=0.8, edgecolor="none")
        else:
            axes.legend(
                frameon=False, loc="upper left", bbox_to_anchor=(1.0, 1.0), fontsize="small"
            )
        _save(figure, self._path)

    def _names(self, groups: Sequence[Sequence[int]]) -> list[str]:
        """A name for each group of seeds, for the legend."""
        own = labels([run.path for run in self._runs])
        told = apart([run.settings for run in self._runs], but=[SEED])
        return [
            own[first]
            if not others
            else ", ".join(filter(None, (self._runs[first].algorithm, told[first])))
            + f" ({1 + len(others)} seeds)"
            for first, *others in groups
        ]


def _seeds(jobs: Sequence[Settings]) -> list[list[int]]:
    """Groups that differ in the seed alone; a job that is there twice has a group of its own."""
    groups = over_seeds(jobs)
    placed = {index for group in groups for index in group}
    return sorted([*groups, *([index] for index in range(len(jobs)) if index not in placed)])


def _score(runs: Sequence[RunRecord]) -> str:
    """The key of what the runs are judged by.

    Raises:
        JobError: no run has an evaluation yet, or only some of those that have, an accuracy.
    """
    judged = [run for run in runs if any(run.scores[key] for key in JUDGED)]
    if not judged:
        raise JobError(f"{runs[0].path}: no evaluated round in log.jsonl yet, so nothing to plot")
    without = [run for run in judged if not run.scores["test_accuracy"]]
    if without and len(without) < len(judged):
        raise JobError(
            f"{without[0].path}: has no test accuracy, as other runs of this plot have; "
            "plot regression and classification apart"
        )
    key = next((key for key in JUDGED if all(run.scores[key] for run in judged)), None)
    if key is None:
        raise JobError(
            "some of these runs have only a test loss, others only an objective; plot them apart"
        )
    return key


def plot_partition(counts: NDArray[np.int64], path: Path) -> None:
    """Draw how many examples each client holds and, of a classification, of which classes.

    A class is a row and a client a column, coloured by the class's share of the client: this
    stays readable with a hundred classes or thousands of clients, where stacked bars do not.

    Args:
        counts: examples by client and class [N, classes], or by client alone [N].
        path: the .png, .pdf or .svg file to write.

    Raises:
        JobError: the file cannot be written, or is of another kind.
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


def _format(path: Path) -> str:
    """The kind of picture that a file's name asks for."""
    if path.suffix.lower() not in FORMATS:
        raise JobError(f"{path}: a plot is written as {', '.join(FORMATS)}; choose one of them")
    return path.suffix.lower().removeprefix(".")


def _save(figure: Figure, path: Path) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, format=_format(path))
    except OSError as error:
        raise JobError(f"{path}: the plot cannot be written: {error.strerror}") from error
