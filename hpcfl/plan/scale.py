"""The time of a round on many ranks, drawn from a file of jobs and pieces: nothing is loaded.

The file says, for each job: how many clients there are and how unequal (sizes drawn from a
lognormal by the seed, scaled to the number of examples), the batch and the epochs, the numbers of
an upload, a client's state, the cohorts to draw for, and pieces as in `hpcfl.plan.pieces`.
"""

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated

import numpy as np
from annotated_types import Interval
from numpy.typing import NDArray
from pydantic import Field

from hpcfl.job import section
from hpcfl.jobfile import read
from hpcfl.plan.pieces import Pieces
from hpcfl.plan.time import Foretold, Work, foretell
from hpcfl.plots.figure import COLOURS, new_figure, save
from hpcfl.sampling import Uniform
from hpcfl.seeds import stream
from hpcfl.types import Count, Natural, Section

FIRST, LAST = 8, 1024  # ranks, doubled from one to the other


@dataclass(frozen=True, kw_only=True)
class Drawn(Section):
    """A job, as far as its time is concerned."""

    clients: Count
    examples: Count
    """Of all clients together."""
    spread: Annotated[float, Interval(ge=0, le=10)]
    """Standard deviation of the logarithm of a client's examples."""
    batch: Count
    epochs: Count
    parameters: Count
    state_vectors: Natural
    """Vectors that a client keeps, in float32."""
    cohorts: Annotated[tuple[Count, ...], Field(min_length=1)]
    rounds: Count
    evaluations: Natural
    tests: Natural
    pieces: Pieces

    def sizes(self) -> NDArray[np.int64]:
        """[N], every client's examples, at least one."""
        drawn = np.exp(self.spread * stream(0, "sizes", self.clients).standard_normal(self.clients))
        whole: NDArray[np.int64] = np.rint(self.examples * drawn / drawn.sum()).astype(np.int64)
        return np.maximum(1, whole)

    def work(self, cohort: int) -> Work:
        """What it asks with cohorts of so many."""
        return Work(
            steps=self.epochs * -(-self.sizes() // self.batch),
            draw=partial(Uniform(size=cohort).draw, population=self.clients, seed=0),
            parameters=self.parameters,
            state=4 * self.state_vectors * self.parameters,
            tests=self.tests,
            rounds=self.rounds,
            evaluations=self.evaluations,
        )


def show_scale(path: Path, most: int | None, plot: Path | None) -> str:
    """A table of rounds on 8, 16, ... ranks, for every job of the file; drawn too if asked for.

    Args:
        path: the file of jobs.
        most: ranks; ``LAST`` when None.
        plot: a file for the plot.

    Raises:
        JobError: the file is no such one, or the plot cannot be written.
    """
    jobs, most = _read(path), most or LAST
    ranks = [FIRST << k for k in range(most.bit_length()) if FIRST << k <= most] or [most]
    lines = [
        f"{'job':12} {'cohort':>7} {'ranks':>6} {'a round':>9} {'training':>9} {'mean':>8} "
        f"{'all-reduce':>10} {'busiest':>8} {'speed-up':>9} {'hours':>8}"
    ]
    curves: dict[str, list[tuple[int, float]]] = {}
    for name, job in jobs.items():
        for cohort in job.cohorts:
            asked = job.work(cohort)
            alone = foretell(asked, 1, job.pieces)
            for size in ranks:
                if size > job.clients:
                    continue
                found = foretell(asked, size, job.pieces)
                lines.append(_line(name, cohort, size, found, alone))
                curves.setdefault(f"{name}, {cohort} a round", []).append((size, found.round))
    lines += ["", *(f"{name}: {job.pieces.origin}" for name, job in jobs.items())]
    if plot:
        _draw(curves, plot)
    return "\n".join(lines)


def _line(name: str, cohort: int, ranks: int, found: Foretold, alone: Foretold) -> str:
    return (
        f"{name:12} {cohort:7d} {ranks:6d} {found.round:7.3f} s {found.train:7.3f} s "
        f"{1e3 * found.convert:5.1f} ms {1e3 * found.exchange:7.1f} ms {found.busiest:7.2f}x "
        f"{alone.round / found.round:8.1f}x {found.hours:8.2f}"
    )


def _read(path: Path) -> dict[str, Drawn]:
    """The jobs of a file."""
    file = read(path)
    return {name: section(Drawn, file, name) for name in file.tree}


def _draw(curves: dict[str, list[tuple[int, float]]], path: Path) -> None:
    """Seconds of a round against ranks, both as powers."""
    figure, (axes,) = new_figure(7.0, 4.2)
    for k, (name, points) in enumerate(curves.items()):
        colour, dash = COLOURS[k % len(COLOURS)], ("-", "--")[k // len(COLOURS) % 2]
        x, y = zip(*points, strict=True)
        axes.loglog(x, y, dash, marker="o", color=colour, label=name)
    axes.set_xlabel("ranks, a GPU each")
    axes.set_ylabel("seconds a round")
    axes.set_xscale("log", base=2)
    axes.legend(frameon=False, fontsize="small", loc="upper left", bbox_to_anchor=(1.0, 1.0))
    save(figure, [path])
