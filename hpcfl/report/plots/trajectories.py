"""Draw the trajectories of clients and server in the plane."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, sqrt
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hpcfl.engine.trajectories import Trajectories
from hpcfl.report.plots.figure import COLOURS, FigureSize, lay_out, new_figure, save

if TYPE_CHECKING:
    from matplotlib.axes import Axes

ACROSS = 3  # panels in a row, at most
_SIZE = 3.6  # inches, of a panel
_GRID = 200  # points of a side, between which contours are interpolated
_LEVELS = 8
_MARGIN = 0.08


class Panel(NamedTuple):
    """One run on quadratics 1/2 sum(h_i w^2) - b_i . w in the plane."""

    title: str
    trajectories: Trajectories
    curvature: NDArray[np.float64]
    """[N, 2]: h_i."""
    linear: NDArray[np.float64]
    """[N, 2]: b_i."""

    @property
    def optima(self) -> NDArray[np.float64]:
        """[N, 2]: the minimum of each client's loss."""
        found: NDArray[np.float64] = self.linear / self.curvature
        return found

    @property
    def optimum(self) -> NDArray[np.float64]:
        """[2]: the minimum of the mean loss."""
        found: NDArray[np.float64] = self.linear.mean(0) / self.curvature.mean(0)
        return found


def plot_trajectories(panels: Sequence[Panel], path: Path, size: FigureSize | None = None) -> None:
    """Draw a panel for each run, all to the same scale.

    Each has contours of the mean loss, its minimum, the minimum of each client's loss and the mean
    of these; the local models of every client and round, a point a local step; and the global
    models, a point a round.

    Args:
        panels: at least one.
        path: the .png, .pdf or .svg file to write.
        size: of the picture; None: as large as its panels need.

    Raises:
        JobError: the size has no room for the panels, the file cannot be written, or its name does
            not end in .png, .pdf or .svg.
    """
    across = min(ACROSS, ceil(sqrt(len(panels))))
    down = ceil(len(panels) / across)
    low, high = _limits(panels)
    width, height = high - low
    tall = _SIZE * min(max(height / width, 0.5), 1.5)
    entries = sum(not label.startswith("_") for label in _labels(panels[0])) + 3
    lines = ceil(entries / across)  # of the legend
    width, height = size or (_SIZE * across, (tall + 0.2) * down + 0.2 * lines + 0.2)
    figure, axes = new_figure(width, height, down, across)
    for place, panel in zip(axes, panels, strict=False):
        _draw(place, panel, low, high)
    for place in axes[len(panels) :]:
        place.remove()
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=across, frameon=False)
    lay_out(figure)
    save(figure, [path])


def _limits(panels: Sequence[Panel]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The corners of a rectangle around everything that is drawn."""
    points = [
        array
        for panel in panels
        for array in (
            panel.optima,
            panel.optimum[None],
            panel.trajectories.server,
            *(trajectory.points for clients in panel.trajectories.rounds for trajectory in clients),
        )
    ]
    together = np.concatenate(points)
    low, high = together.min(0), together.max(0)
    margin = _MARGIN * max((high - low).max(), 1e-6)
    return low - margin, high + margin


def _draw(axes: Axes, panel: Panel, low: NDArray[np.float64], high: NDArray[np.float64]) -> None:
    """Fill a panel, from the background to the front."""
    x, y = (np.linspace(low[d], high[d], _GRID) for d in range(2))
    curvature, optimum = panel.curvature.mean(0), panel.optimum
    loss = 0.5 * (
        curvature[0] * (x[None, :] - optimum[0]) ** 2
        + curvature[1] * (y[:, None] - optimum[1]) ** 2
    )
    # Evenly spaced rings: the loss grows with the square of the distance.
    levels = loss.max() * (np.arange(1, _LEVELS + 1) / _LEVELS) ** 2
    axes.contour(x, y, loss, levels=levels, colors="0.85", linewidths=0.7)
    for clients in panel.trajectories.rounds:
        for client, points in clients:
            axes.plot(*points.T, "-o", color=_colour(client), markersize=2.2, linewidth=0.9)
    for client, (place, label) in enumerate(zip(panel.optima, _labels(panel), strict=True)):
        axes.plot(*place, "-x", color=_colour(client), markersize=8, mew=2, label=label)
    server = panel.trajectories.server
    axes.plot(
        *server.T, "-s", color="black", markersize=3.5, linewidth=1.3, label="server, each round"
    )
    axes.plot(
        *panel.optima.mean(0),
        "D",
        color="0.5",
        markersize=6,
        linestyle="none",
        label="mean of the clients' minima",
    )
    axes.plot(
        *optimum,
        "*",
        color="gold",
        markeredgecolor="black",
        markersize=12,
        linestyle="none",
        label="minimum of the mean loss",
    )
    axes.set_xlim(low[0], high[0])
    axes.set_ylim(low[1], high[1])
    axes.set_aspect("equal")
    axes.set_title(panel.title, fontsize="medium")


def _labels(panel: Panel) -> list[str]:
    """Of the clients in the legend: each, or the first of many for all; "_" is left out."""
    count = len(panel.optima)
    if count > len(COLOURS) - 1:
        return ["clients: local steps, and their minima", *["_"] * (count - 1)]
    return [f"client {client}: local steps, and its minimum" for client in range(count)]


def _colour(client: int) -> str:
    """Of a client; black is the server's."""
    return COLOURS[:-1][client % (len(COLOURS) - 1)]
