"""When runs reach a target, and how much sooner than FedAvg: FedHBM's tables 2 and 9."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

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
    def asked(cls, percent: float | None, accuracy: float | None) -> Self | None:
        """What the command line asks for, at most one of the two.

        Raises:
            JobError: it is no percentage, or no share.
        """
        if percent is not None:
            return cls(percent)
        return None if accuracy is None else cls(accuracy, absolute=True)

    @property
    def title(self) -> str:
        """What to write over a column."""
        return f"{self.number:g}" + ("" if self.absolute else " %")

    def level(self, run: RunRecord) -> float:
        """The test accuracy that the run must reach, a fraction.

        Raises:
            JobError: it is relative, and no paper prints a centralised accuracy for the run.
        """
        if self.absolute:
            return self.number
        return self.number / 100 * _reference(run)[1] / 100


def beside_target(runs: Sequence[RunRecord], target: Target) -> Beside:
    """The first evaluated round of each run that reached the target, and the speed-up.

    The speed-up is the rounds of the FedAvg run of the same set-up and seed, the first to arrive
    of several, over the run's.

    Raises:
        JobError: as `Target.level`.
    """
    levels = [target.level(run) for run in runs]
    rounds = [_first(run, level) for run, level in zip(runs, levels, strict=True)]
    columns = [_column(f"rounds\nto {target.title}", "target_round", rounds, "{:.0f}")]
    captions = [f"rounds to {target.title}: the first evaluated round at {_meaning(runs, target)}"]
    if any(run.algorithm == _BASELINE for run in runs):
        speedups = [_speedup(runs, rounds, index) for index in range(len(runs))]
        columns.append(_column("speed-up\nx", "speedup", speedups, "{:.2f}"))
    metrics = () if target.absolute else (f"rounds_to_{target.number:g}",)
    known = [find(run.settings, *metrics) for run in runs]
    if any(known):
        columns.append(_published([rows[0] if rows else None for rows in known]))
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


def _published(rows: Sequence[Published | None]) -> Column:
    """The rounds that a paper prints."""
    cells = [
        "-" if row is None else "never" if row.value is None else f"{row.value:.0f}" for row in rows
    ]
    values = [row.value if row else None for row in rows]
    return Column("published\nrounds", cells, {"published_target_round": values})
