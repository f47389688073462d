"""Draw the local trajectories of a job, or of the runs of a sweep, on quadratics in the plane."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from hpcfl.errors import JobError
from hpcfl.io.table import render_tables
from hpcfl.job.packaged import find_job
from hpcfl.job.schema import LoadedJob, load
from hpcfl.job.yaml_file import read
from hpcfl.report.formats import drawn
from hpcfl.report.plots.figure import FigureSize, check_plot
from hpcfl.report.plots.trajectories import Panel, plot_trajectories
from hpcfl.report.table import Table
from hpcfl.runner.trajectories import run_quadratics
from hpcfl.sweep.grid import read_sweep

MOST = 12  # panels that are still legible on a page


def draw_drift(
    file: Path,
    overrides: Sequence[str],
    only: Sequence[str] | None,
    plot: Path,
    size: FigureSize | None = None,
) -> str:
    """Do each run, draw a panel for each, and describe where it ends; no run directory is made.

    Args:
        file: a job or a sweep, whose data are quadratics in two dimensions.
        overrides: ``key.path=value`` settings of every run.
        only: labels of the sweep's grid.
        plot: the file to write.
        size: of the plot; None: as large as its panels need.

    Returns:
        A table: each run's rounds, how far its global model is from the minimum of the mean loss at
        the end, and how far the last local models are from the model that the clients received.

    Raises:
        JobError: the file is wrong, its data are others, or the plot cannot be written.
        DivergedError: a model was not finite.
    """
    check_plot(plot)
    panels = []
    for title, loaded in _jobs(file, overrides, only).items():
        found = run_quadratics(loaded)
        panels.append(Panel(title, found.trajectories, found.curvature, found.linear))
    plot_trajectories(panels, plot, size)
    titles = ["run", "rounds", "server to\nminimum", "farthest\nlocal model"]
    rows = [_row(panel) for panel in panels]
    captions = [
        "distances after the last round: of the global model from the minimum of the mean loss; of "
        "the clients' last local models from the model they received"
    ]
    return "\n".join([render_tables(drawn(Table(titles, rows))), *captions])


def _row(panel: Panel) -> list[str]:
    server, rounds = panel.trajectories.server, panel.trajectories.rounds
    moved = [
        np.linalg.norm(trajectory.points[-1] - trajectory.points[0]) for trajectory in rounds[-1]
    ]
    return [
        panel.title,
        f"{len(rounds)}",
        f"{np.linalg.norm(server[-1] - panel.optimum):.4g}",
        f"{max(moved):.4g}" if moved else "-",
    ]


def _jobs(file: Path, overrides: Sequence[str], only: Sequence[str] | None) -> dict[str, LoadedJob]:
    """The jobs by the titles of their panels."""
    if "grid" not in read(find_job(file)).tree:
        if only is not None:
            raise JobError(f"--only chooses runs of a sweep, but {file} is a job; leave it out")
        loaded = load(file, overrides)
        return {loaded.tree["algorithm"]["name"]: loaded}
    sweep = read_sweep(file, overrides)
    if only is not None:
        sweep = sweep.only(only)
    if len(sweep.points) > MOST:
        raise JobError(
            f"{file}: {len(sweep.points)} runs, expected {MOST} at most, as each has a panel; "
            "choose some by --only"
        )
    return {point.name: point.loaded for point in sweep.points}
