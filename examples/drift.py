"""Draw every client's local steps, and the server's path, on quadratics in the plane.

    python examples/drift.py jobs/quadratics/scaffold.yaml data.dim=2
    python examples/drift.py jobs/papers/slides_figure1.yaml --only fedavg,mimemom data.dim=2

Each run of a sweep has a panel.  A subclass of the job's algorithm records the local models, in the
hooks that see them, and a callback the global ones: hpcfl itself knows nothing of this.
"""

import argparse
import sys
from collections.abc import Mapping
from math import ceil
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
import torch
from matplotlib.figure import Figure

import hpcfl
from hpcfl.algorithms import ALGORITHMS
from hpcfl.errors import HpcflError, JobError
from hpcfl.job.load import load
from hpcfl.job.schema import LoadedJob
from hpcfl.runs.job_file.packaged import find_job
from hpcfl.runs.job_file.yaml_file import read
from hpcfl.tools.sweep.grid import read_sweep

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
POINTS: list[list[np.ndarray]] = []  # of the clients of the present round, in their order


class Recorded:
    """What is added to an algorithm: y is kept before each local step and after the last one."""

    def begin(self, message: Any, state: Any, client: Any) -> Any:
        """Begin the list of a client's points."""
        POINTS.append([])
        return super().begin(message, state, client)

    def points(self, y: torch.Tensor, local: Any, client: Any) -> Any:
        """Keep y before a step."""
        self._keep(y)
        return super().points(y, local, client)

    def finish(self, y: torch.Tensor, local: Any, message: Any, state: Any, client: Any) -> Any:
        """Keep y after the last step."""
        self._keep(y)
        return super().finish(y, local, message, state, client)

    def _keep(self, y: torch.Tensor) -> None:
        if not y.is_meta:  # of the dry round, which has shapes alone
            POINTS[-1].append(y.detach().double().numpy().copy())


# A class for each algorithm, which a job names by its path: drift.Recorded_fedavg.
for _name, _kind in ALGORITHMS.items():
    globals()[f"Recorded_{_name}"] = type(
        f"Recorded_{_name}", (Recorded, _kind), {"__module__": __name__}
    )


class Panel(NamedTuple):
    """One run on quadratics 1/2 sum(h_i w^2) - b_i . w in the plane."""

    title: str
    server: np.ndarray
    """[T + 1, 2]: the global model before the first round, and after each."""
    rounds: list[dict[int, np.ndarray]]
    """For each round: client -> [K + 1, 2], the local models from the first to the last."""
    curvature: np.ndarray
    """[N, 2]: h_i."""
    linear: np.ndarray
    """[N, 2]: b_i."""

    @property
    def optimum(self) -> np.ndarray:
        """[2]: the minimum of the mean loss."""
        return self.linear.mean(0) / self.curvature.mean(0)


class Recorder(hpcfl.Callback):
    """Collects the points of every round."""

    def __init__(self) -> None:
        self.server: list[np.ndarray] = []
        self.rounds: list[list[np.ndarray]] = []

    def start(self, run: Any) -> None:
        """Forget the points of the trials before the first round."""
        POINTS.clear()

    def round(self, record: Mapping[str, Any], model: Any) -> None:
        """Keep the global model, and the local ones of the round."""
        self.server.append(model.vector().double().numpy())
        if record["round"]:
            self.rounds.append([np.stack(points) for points in POINTS])
        POINTS.clear()


def play(title: str, loaded: LoadedJob) -> Panel:
    """Run a job in a folder that is removed afterwards, and record it.

    Raises:
        JobError: its data are other than quadratics in the plane.
    """
    job, tree = loaded.job, loaded.tree
    if tree["data"]["kind"] != "quadratics" or job.data.dim != 2:
        raise JobError(f"{title}: expected data.kind quadratics with data.dim=2")
    if job.data.partition is not None:
        raise JobError(f"{title}: data.partition: expected none, a quadratic for each client")
    algorithm = {**tree["algorithm"], "name": f"drift.Recorded_{tree['algorithm']['name']}"}
    changes = {
        "algorithm": algorithm, "executor": "sequential", "block_size": None, "device": "cpu",
        "evaluate": {**tree["evaluate"], "every": 1},
    }  # fmt: skip
    recorder = Recorder()
    with TemporaryDirectory() as folder:
        hpcfl.run({**tree, **changes}, out=Path(folder, "run"), callbacks=[recorder])
    functions = job.data.load(job.seed).train.inputs.double().numpy()
    rounds = [
        dict(zip(job.cohort.draw(t, len(functions), job.seed).tolist(), clients, strict=True))
        for t, clients in enumerate(recorder.rounds)
    ]
    return Panel(title, np.stack(recorder.server), rounds, functions[:, 0], functions[:, 1])


def draw(panels: list[Panel], path: Path) -> None:
    """Draw a panel for each run, all to the same scale.

    Each has contours of the mean loss and its minimum, the minimum of each client's loss, the local
    models of every client and round, a point a local step, and the global models, a point a round.
    """
    across = min(3, len(panels))
    figure = Figure(figsize=(3.6 * across, 4.2 * ceil(len(panels) / across)), layout="constrained")
    places = figure.subplots(ceil(len(panels) / across), across, squeeze=False).flat
    every = np.concatenate(
        [
            points
            for panel in panels
            for points in (
                panel.server,
                panel.linear / panel.curvature,
                *(own for clients in panel.rounds for own in clients.values()),
            )
        ]
    )
    low, high = every.min(0), every.max(0)
    margin = 0.08 * (high - low).max()
    for axes, panel in zip(places, panels, strict=False):
        _contours(axes, panel, low - margin, high + margin)
        for clients in panel.rounds:
            for client, points in clients.items():
                axes.plot(*points.T, "-o", color=_colour(client), markersize=2.2, linewidth=0.9)
        for client, place in enumerate(panel.linear / panel.curvature):
            axes.plot(*place, "x", color=_colour(client), markersize=8, mew=2)
        axes.plot(*panel.server.T, "-s", color="black", markersize=3.5, label="server, each round")
        axes.plot(
            *panel.optimum, "*", color="gold", markeredgecolor="black", markersize=12,
            linestyle="none", label="minimum of the mean loss",
        )  # fmt: skip
        axes.set_title(panel.title, parse_math=False)
        axes.set_xlabel("first coordinate of the model")
        axes.set_ylabel("second coordinate")
    for axes in list(places)[len(panels) :]:
        axes.remove()
    figure.suptitle(f"{len(panels[0].linear)} clients, each with a quadratic in the plane")
    figure.legend(*figure.axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=2)
    figure.savefig(path, dpi=150)


def _contours(axes: Any, panel: Panel, low: np.ndarray, high: np.ndarray) -> None:
    """Rings of the mean loss, evenly spaced: it grows with the square of the distance."""
    x, y = (np.linspace(low[d], high[d], 200) for d in range(2))
    curvature, optimum = panel.curvature.mean(0), panel.optimum
    loss = curvature[0] * (x[None, :] - optimum[0]) ** 2
    loss = loss + curvature[1] * (y[:, None] - optimum[1]) ** 2
    levels = loss.max() * (np.arange(1, 9) / 8) ** 2
    axes.contour(x, y, loss, levels=levels, colors="0.85", linewidths=0.7)
    axes.set_aspect("equal")


def _colour(client: int) -> str:
    return COLOURS[client % len(COLOURS)]


def main() -> int:
    """Read the command line, run, draw, and print where each run ends."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("job", type=Path, help="JOB.yaml or SWEEP.yaml")
    parser.add_argument("overrides", nargs="*", help="settings of every run")
    parser.add_argument("--only", help="the runs of a sweep with these labels: fedavg,mimemom")
    parser.add_argument("--plot", type=Path, default=Path("drift.png"), help="(drift.png)")
    options = parser.parse_intermixed_args()
    try:
        if "grid" in read(find_job(options.job)).tree:
            sweep = read_sweep(options.job, options.overrides)
            if options.only:
                sweep = sweep.only(options.only.split(","))
            jobs = {point.name: point.loaded for point in sweep.points}
        else:
            loaded = load(options.job, options.overrides)
            jobs = {loaded.names["algorithm"]: loaded}
        panels = [play(title, loaded) for title, loaded in jobs.items()]
    except HpcflError as e:
        print(f"{type(e).__name__}: {e}", file=sys.stderr)
        return e.exit_code
    draw(panels, options.plot)
    print(f"{'run':30} server to minimum, farthest local model in the last round")
    for panel in panels:
        moved = [np.linalg.norm(points[-1] - points[0]) for points in panel.rounds[-1].values()]
        end = np.linalg.norm(panel.server[-1] - panel.optimum)
        print(f"{panel.title:30} {end:.4g} {max(moved, default=0):.4g}")
    return 0


if __name__ == "__main__":
    # The job names the classes of the module drift, not of the program.
    import drift

    sys.exit(drift.main())
