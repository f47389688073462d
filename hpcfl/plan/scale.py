"""Predict the time of a round on many ranks from a file of jobs and costs; nothing is loaded.

The file says, for each job: how many clients there are and how unequal (sizes drawn from a
lognormal by the seed, scaled to the number of examples), the batch and the epochs, the numbers of
an upload, a client's state, the cohorts to draw for, who trains whom, and costs as in
`hpcfl.plan.cost_model`.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from textwrap import fill
from typing import Annotated, Literal, NamedTuple

from annotated_types import Interval
from pydantic import Field

from hpcfl.cohort.sampling import Uniform
from hpcfl.data.sizes import lognormal_sizes
from hpcfl.io.progress import track
from hpcfl.job.schema import section
from hpcfl.job.yaml_file import read
from hpcfl.plan.cost_model import OLD_KEY, CostModel, say_renamed, with_new_key
from hpcfl.plan.speeds import GPU
from hpcfl.plan.time import Prediction, Work, predict
from hpcfl.report.plots.figure import COLOURS, check_plot, new_figure, save
from hpcfl.seeds import stream
from hpcfl.types import Count, IntArray, Natural, NonNegative, Section

Balance = Literal["owner", "steal"]

FIRST, LAST = 8, 1024  # ranks, doubled from one to the other
WIDTH = 100  # columns
DASHES: dict[Balance, str] = {"owner": "-", "steal": "--"}
MARKERS = "os^vDP*X<>ph"  # with the colours, looks for 84 pairs of job and cohort


@dataclass(frozen=True, kw_only=True)
class SyntheticJob(Section):
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
    balance: Annotated[tuple[Balance, ...], Field(min_length=1)] = ("owner",)
    """As in a job; one or both."""
    rounds: Count
    evaluations: Natural
    tests: Natural
    forward: NonNegative = 0.0
    """Floating-point operations of an example's outputs, for stated speeds."""
    costs: CostModel | None = None
    """When absent, by the stated speeds of a rank on a GPU."""

    def __post_init__(self) -> None:
        if self.clients > self.examples:
            raise ValueError(
                f"found {self.clients} clients and {self.examples} examples, expected an example "
                "for each client at least"
            )
        if max(self.cohorts) > self.clients:
            raise ValueError(
                f"cohorts: found {max(self.cohorts)}, but there are {self.clients} clients; use at "
                f"most {self.clients}"
            )

    @property
    def stated_costs(self) -> CostModel:
        """The costs, or those of the stated speeds."""
        if self.costs is not None:
            return self.costs
        return GPU.costs(forward=self.forward, batch=self.batch, parameters=self.parameters)

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
            means=1,
            state=4 * self.state_vectors * self.parameters,
            sent=4 * self.state_vectors * self.parameters,
            tests=self.tests,
            rounds=self.rounds,
            evaluations=self.evaluations,
        )


class CurveKey(NamedTuple):
    """A curve."""

    job: str
    cohort: int
    balance: Balance


def show_scale(path: Path, most: int | None, plot: Path | None) -> str:
    """A table of rounds on 8, 16, ... ranks, for every job of the file; drawn too if asked for.

    Args:
        path: the file of jobs.
        most: ranks; ``LAST`` when None.
        plot: a file for the plot.

    Raises:
        JobError: the file is no such one, or the plot cannot be written.
    """
    if plot:
        check_plot(plot)
    jobs, most = _read(path), most or LAST
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
    for one in track(asked, "plan --scale: curves", len(asked)):
        costs, wanted = jobs[one.job].stated_costs, jobs[one.job].work(one.cohort, one.balance)
        alone = predict(wanted, 1, costs)
        for size in (size for size in ranks if size <= jobs[one.job].clients):
            found = predict(wanted, size, costs)
            lines.append(_line(one, size, found, alone))
            curves.setdefault(one, []).append((size, found.round))
    lines += [
        "",
        *(fill(f"{name}: {job.stated_costs.origin}", WIDTH) for name, job in jobs.items()),
    ]
    if plot:
        _draw(curves, plot)
    return "\n".join(lines)


def _line(asked: CurveKey, ranks: int, found: Prediction, alone: Prediction) -> str:
    return (
        f"{asked.job:13} {asked.cohort:6d} {asked.balance:7} {ranks:5d} {found.round:7.3f} s "
        f"{found.train:7.3f} s {1e3 * found.convert:5.1f} ms {1e3 * found.exchange:7.1f} ms "
        f"{found.busiest:6.2f}x {alone.round / found.round:7.1f}x {found.hours:7.2f}"
    )


def _read(path: Path) -> dict[str, SyntheticJob]:
    """The jobs of a file."""
    file = read(path)
    old = {name for name, job in file.tree.items() if isinstance(job, dict) and OLD_KEY in job}
    for name in old:
        file.tree[name] = with_new_key(file.tree[name])
    if old:
        say_renamed(str(path))
    return {name: section(SyntheticJob, file, name) for name in file.tree}


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
