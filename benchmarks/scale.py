"""Predict the time of a round on many GPUs from a file of jobs, for docs/scale.md; nothing is run.

The file says, for each job: how many clients there are and how unequal (sizes drawn from a
lognormal, scaled to the number of examples), the batch and the epochs, the numbers of an upload, a
client's state, the cohorts to draw for and who trains whom.  The speeds are assumed, below.
"""

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal, NamedTuple

import yaml

from hpcfl.clients.sampling import Uniform
from hpcfl.data.sizes import lognormal_sizes
from hpcfl.io.progress import track
from hpcfl.seeds import stream
from hpcfl.tools.report.plots.figure import COLOURS, check_plot, new_figure, save
from hpcfl.types import IntArray
from round_time import CostModel, Prediction, Work, predict

Balance = Literal["owner", "steal"]

FIRST, LAST = 8, 1024  # ranks, doubled from one to the other
DASHES: dict[Balance, str] = {"owner": "-", "steal": "--"}
MARKERS = "os^vDP*X<>ph"  # with the colours, looks for 84 pairs of job and cohort

# What is assumed of a rank on a data-centre GPU while all of them work.
FLOPS = 4e12  # floating-point operations a second that training reaches
MEMORY = 1.5e12  # bytes/s that it reads and writes
LAUNCH_S = 1e-3  # of a step besides its arithmetic: starting its operations
VISIT_S = 1e-3  # of a client's visit beyond its steps, and of a round beyond its visits
LATENCY_S = 5e-6  # of a message between two ranks
BANDWIDTH = 1e10  # bytes/s that a rank sends in an all-reduce while it receives as many
STATES = 1e9  # bytes/s of client states, read or written
MEAN_BYTES = 45  # that the exact mean moves, for each number of an upload
STEP_VECTORS = 10  # of the model's size that a local step reads or writes
BACKWARD = 3  # a gradient's arithmetic over that of the outputs alone


@dataclass(frozen=True, kw_only=True)
class SyntheticJob:
    """A job, as far as its time is concerned."""

    clients: int
    examples: int
    """Of all clients together."""
    spread: float
    """Standard deviation of the logarithm of a client's examples."""
    batch: int
    epochs: int
    parameters: int
    state_vectors: int
    """Vectors that a client keeps, in float32."""
    cohorts: Sequence[int]
    balance: Sequence[Balance]
    """As in a job; one or both."""
    rounds: int
    evaluations: int
    tests: int
    forward: float
    """Floating-point operations of an example's outputs."""

    def costs(self) -> CostModel:
        """The costs, by the speeds above; a short last batch is taken to cost as much."""
        vectors = STEP_VECTORS * 4 * self.parameters / MEMORY
        return CostModel(
            step_s=LAUNCH_S + BACKWARD * self.forward * self.batch / FLOPS + vectors,
            visit_s=VISIT_S,
            round_s=VISIT_S,
            convert_s=MEAN_BYTES / MEMORY,
            restore_s=MEAN_BYTES / MEMORY,
            test_s=self.forward / FLOPS,
            latency_s=LATENCY_S,
            bandwidth=BANDWIDTH,
            read=STATES,
            write=STATES,
        )

    def sizes(self) -> IntArray:
        """[N], every client's examples, at least one."""
        generator = stream(0, "sizes", self.clients)
        return lognormal_sizes(self.examples, self.clients, self.spread, generator)

    def work(self, cohort: int, balance: Balance) -> Work:
        """The work of a round with a cohort of this size."""
        sizes = self.sizes()
        return Work(
            steps=self.epochs * -(-sizes // self.batch),
            draw=partial(Uniform(size=cohort).draw, population=self.clients, seed=0),
            examples=sizes,
            taken=self.epochs * sizes,
            balance=balance,
            parameters=self.parameters,
            state=4 * self.state_vectors * self.parameters,
            tests=self.tests,
            rounds=self.rounds,
            evaluations=self.evaluations,
        )


class CurveKey(NamedTuple):
    """A curve."""

    job: str
    cohort: int
    balance: Balance


def show_scale(path: Path, most: int, plot: Path | None) -> str:
    """A table of rounds on 8, 16, ... ranks, for every job of the file; drawn too if asked for.

    Args:
        path: the file of jobs.
        most: ranks.
        plot: a file for the plot.

    Raises:
        JobError: the plot cannot be written.
    """
    if plot:
        check_plot(plot)
    trees = yaml.safe_load(path.read_text())
    jobs = {name: SyntheticJob(**tree) for name, tree in trees.items()}
    ranks = [FIRST << k for k in range(most.bit_length()) if FIRST << k <= most] or [most]
    lines = [
        f"{'job':13} {'cohort':>6} {'balance':7} {'ranks':>5} {'a round':>9} {'training':>9} "
        f"{'mean':>8} {'all-reduce':>10} {'busiest':>7} {'speed-up':>8} {'hours':>7}"
    ]
    curves: dict[CurveKey, list[tuple[int, float]]] = {}
    asked = [
        CurveKey(name, cohort, balance)
        for name, job in jobs.items()
        for cohort in job.cohorts
        for balance in job.balance
    ]
    for one in track(asked, "scale: curves", len(asked)):
        costs, wanted = jobs[one.job].costs(), jobs[one.job].work(one.cohort, one.balance)
        alone = predict(wanted, 1, costs)
        for size in (size for size in ranks if size <= jobs[one.job].clients):
            found = predict(wanted, size, costs)
            lines.append(_line(one, size, found, alone))
            curves.setdefault(one, []).append((size, found.round))
    if plot:
        _draw(curves, plot)
    return "\n".join(lines)


def _line(asked: CurveKey, ranks: int, found: Prediction, alone: Prediction) -> str:
    return (
        f"{asked.job:13} {asked.cohort:6d} {asked.balance:7} {ranks:5d} {found.round:7.3f} s "
        f"{found.train:7.3f} s {1e3 * found.convert:5.1f} ms {1e3 * found.exchange:7.1f} ms "
        f"{found.busiest:6.2f}x {alone.round / found.round:7.1f}x {found.hours:7.2f}"
    )


def _draw(curves: dict[CurveKey, list[tuple[int, float]]], path: Path) -> None:
    """Seconds of a round against ranks, both as powers.

    Cohorts of a job differ in colour and, where colours run out, in the marker; balances in dashes.
    """
    figure, (axes,) = new_figure(7.0, max(4.2, 0.19 * len(curves)))
    looks = dict(zip(dict.fromkeys(one[:2] for one in curves), _looks(), strict=False))
    for one, points in curves.items():
        colour, marker = looks[one[:2]]
        x, y = zip(*points, strict=True)
        axes.loglog(
            x,
            y,
            DASHES[one.balance],
            marker=marker,
            markersize=4,
            color=colour,
            label=f"{one.job}, {one.cohort} a round{', steal' if one.balance == 'steal' else ''}",
        )
    axes.set_title("predicted, for clients of lognormal sizes", fontsize="medium")
    axes.set_xlabel("ranks, a GPU each")
    axes.set_ylabel("seconds a round")
    axes.set_xscale("log", base=2)
    axes.legend(
        frameon=False,
        fontsize="small",
        loc="upper left",
        bbox_to_anchor=(1.0, 1.0),
        handlelength=3.5,
    )
    save(figure, [path])


def _looks() -> Iterator[tuple[str, str]]:
    """Colours and markers, no pair twice."""
    return ((colour, marker) for marker in MARKERS for colour in COLOURS)


def command(words: Sequence[str] | None = None) -> int:
    """Run by itself."""
    made = argparse.ArgumentParser(description="Rounds on 8 to 1024 GPUs, predicted.")
    file = Path(__file__).with_suffix(".yaml")
    made.add_argument("file", type=Path, nargs="?", default=file, help="(default: scale.yaml)")
    made.add_argument("--ranks", type=int, default=LAST, help="at most (default 1024)")
    made.add_argument("--plot", type=Path, metavar="F", help=".png, .pdf or .svg to draw")
    options = made.parse_args(words)
    print(show_scale(options.file, options.ranks, options.plot))
    return 0


if __name__ == "__main__":
    sys.exit(command())
