"""When runs reach a target, and how much sooner than FedAvg: FedHBM's tables 2 and 9."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Self

from hpcfl.beside import Beside, Column, spread
from hpcfl.compare import SEED
from hpcfl.errors import JobError
from hpcfl.published import Published, centralised, find, set_up
from hpcfl.records import RunRecord

_BASELINE = "fedavg"


@dataclass(frozen=True)
class Target:
    """A test accuracy to be reached."""

    number: float
    """A percentage of the centralised accuracy, or the accuracy itself, a fraction."""
    absolute: bool = False

    def __post_init__(self) -> None:
        most = 1 if self.absolute else 100
        if not 0 < self.number <= most:
            option = "--target-accuracy" if self.absolute else "--target"
            raise JobError(f"{option}: found {self.number:g}, expected above 0, at most {most}")

    @classmethod
    def asked(cls, percents: Sequence[float], accuracies: Sequence[float]) -> list[Self]:
        """What the command line asks for.

        Raises:
            JobError: one is no percentage, or no share.
        """
        found = [cls(percent) for percent in percents]
        return found + [cls(accuracy, absolute=True) for accuracy in accuracies]

    @property
    def title(self) -> str:
        """What to write over a column."""
        return f"{self.number:g}" + ("" if self.absolute else " %")

    @property
    def metrics(self) -> tuple[str, ...]:
        """What papers call the rounds to it and the speed-up; none of an accuracy of one's own."""
        return () if self.absolute else (f"rounds_to_{self.number:g}", f"speedup_{self.number:g}")

    def level(self, run: RunRecord) -> float:
        """The test accuracy that the run must reach, a fraction.

        Raises:
            JobError: it is relative, and no paper prints a centralised accuracy for the run.
        """
        if self.absolute:
            return self.number
        return self.number / 100 * _reference(run)[1] / 100


class Arrivals(NamedTuple):
    """When runs reached a target."""

    rounds: Sequence[int | None]
    """The first evaluated round of each run that reached it; None: not yet."""
    speedups: Sequence[float | None]
    """FedAvg's rounds over each run's; None where one of the two has not arrived."""


def arrivals(runs: Sequence[RunRecord], target: Target) -> Arrivals:
    """When runs reached the target, and how much sooner than FedAvg.

    The speed-up is the rounds of the FedAvg run of the same set-up and seed, the first to arrive
    of several, over the run's.

    Raises:
        JobError: as `Target.level`.
    """
    rounds = [_first(run, target.level(run)) for run in runs]
    return Arrivals(rounds, [_speedup(runs, rounds, index) for index in range(len(runs))])


def beside_target(runs: Sequence[RunRecord], target: Target) -> Beside:
    """The arrivals as columns, with what papers print of them.

    Raises:
        JobError: as `Target.level`.
    """
    rounds, speedups = arrivals(runs, target)
    number = f"{target.number:g}"
    columns = [_column(f"rounds\nto {target.title}", f"target_round_{number}", rounds, "{:.0f}")]
    captions = [f"rounds to {target.title}: the first evaluated round at {_meaning(runs, target)}"]
    if any(run.algorithm == _BASELINE for run in runs):
        columns.append(_column("speed-up\nx", f"speedup_{number}", speedups, "{:.2f}"))
    known = [find(run.settings, *target.metrics[:1]) for run in runs]
    if any(known):
        key = f"published_target_round_{number}"
        columns.append(_published([rows[0] if rows else None for rows in known], key))
        places = dict.fromkeys(f"{row.paper}, table {row.table}" for rows in known for row in rows)
        captions.append(f"published rounds: {'; '.join(places)}")
    return Beside(tuple(columns), tuple(captions))


def _reference(run: RunRecord) -> tuple[Published, float]:
    row = centralised(run.settings)
    if row is None or row.value is None:
        own = set_up(run.settings)
        raise JobError(
            f"--target: {run.path}: no paper prints a centralised accuracy of {own['model']} on "
            f"{own['data']}; give the accuracy to be reached as --target-accuracy"
        )
    return row, row.value


def _meaning(runs: Sequence[RunRecord], target: Target) -> str:
    if target.absolute:
        return f"a test accuracy of {target.title}"
    references = dict.fromkeys(
        f"{value:.2f} % ({row.set_up['data']} with {row.set_up['model']}: {row.paper}, "
        f"table {row.table})"
        for row, value in map(_reference, runs)
    )
    return f"{target.title} of the centralised {', '.join(references)}"


def _first(run: RunRecord, level: float) -> int | None:
    """The first evaluated round that reached the level, or None."""
    return next((t for t, value in run.scores["test_accuracy"] if value >= level), None)


def _speedup(runs: Sequence[RunRecord], rounds: Sequence[int | None], index: int) -> float | None:
    """FedAvg's rounds over those of one run; None where one of the two never arrived."""
    run, own = runs[index], rounds[index]
    baseline = {**set_up(run.settings), "algorithm": _BASELINE}
    arrived = [
        count
        for other, count in zip(runs, rounds, strict=True)
        if count is not None
        and other.settings.get(SEED) == run.settings.get(SEED)
        and set_up(other.settings) == baseline
    ]
    return min(arrived) / own if arrived and own else None


def _column(title: str, key: str, values: Sequence[float | None], show: str) -> Column:
    return Column(title, [spread([value], show) for value in values], {key: values}, values, show)


def _published(rows: Sequence[Published | None], key: str) -> Column:
    """The rounds that a paper prints."""
    cells = [
        "-" if row is None else "never" if row.value is None else f"{row.value:.0f}" for row in rows
    ]
    values = [row.value if row else None for row in rows]
    return Column("published\nrounds", cells, {key: values})
