"""Find when runs reach a target, and their speed-up over FedAvg (FedHBM, tables 2 and 9)."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import NamedTuple, Self

from hpcfl.errors import JobError
from hpcfl.runs.job_file.settings import (
    Settings,
    affects_results,
    changed,
    section,
    spanning_schedule,
)
from hpcfl.runs.record import RunRecord
from hpcfl.tools.report.columns import Column, number, of_runs
from hpcfl.tools.report.comparison import ComparisonColumns
from hpcfl.tools.report.groups import labels, score_mark
from hpcfl.tools.report.published import Published, centralised, find, set_up

BASELINE = "fedavg"
"""The algorithm that speed-ups are over."""
_RATES = frozenset(
    f"local.{key}"
    for key in ("lr", "lr_decay", "schedule", "weight_decay", "clip", "momentum", "nesterov")
)
"""Settings of the local SGD, which papers tune for each method."""
# None of these decides when a run reaches a target: a longer run passes through the same models.
_IGNORED = frozenset({"task", "data.root", "rounds", "executor", "block_size", "reduction"})


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
            percent = self.absolute and 1 < self.number <= 100
            hint = f"; {self.number:g} % is {self.number / 100:g}" if percent else ""
            raise JobError(
                f"{option}: found {self.number:g}, expected above 0, at most {most}{hint}"
            )

    @classmethod
    def from_options(cls, percents: Sequence[float], accuracies: Sequence[float]) -> list[Self]:
        """The targets of the command line.

        Raises:
            JobError: one is no percentage, or no share.
        """
        found = [cls(percent) for percent in percents]
        return found + [cls(accuracy, absolute=True) for accuracy in accuracies]

    @property
    def title(self) -> str:
        """The title of its column."""
        return f"{self.number:g}" + ("" if self.absolute else " %")

    @property
    def metrics(self) -> tuple[str, ...]:
        """The metrics of published numbers for it; none for an accuracy that the user chose."""
        return () if self.absolute else (f"rounds_to_{self.number:g}", f"speedup_{self.number:g}")

    def level(self, run: RunRecord) -> float:
        """The test accuracy that the run must reach, a fraction.

        Raises:
            JobError: it is relative, and no paper prints a centralised accuracy for the run.
        """
        if self.absolute:
            return self.number
        return self.number / 100 * _reference(run)[1] / 100


class Baseline(NamedTuple):
    """The FedAvg run that a run's speed-up is over."""

    run: int
    """Its index among those of the report."""
    label: str
    """The run's name and, in brackets, each rate in which it differs."""
    other_rates: bool


class TargetRounds(NamedTuple):
    """When runs reached a target."""

    rounds: Sequence[int | None]
    """The first evaluated round of each run that reached it; None: not yet."""
    speedups: Sequence[float | None]
    """FedAvg's rounds over each run's; None where one of the two has not reached the target."""
    baselines: Sequence[Baseline | None]
    """Of each run; None where no FedAvg run can be compared with it."""
    captions: Sequence[str]
    """Lines about the baselines."""


def target_rounds(runs: Sequence[RunRecord], target: Target) -> TargetRounds:
    """When runs reached the target, and how much sooner than FedAvg.

    The baseline of a run is the FedAvg run of the same seed and settings, rates included where
    there is one.  Else it is the one that differs in rates alone, if no other does.

    Raises:
        JobError: as `Target.level`.
    """
    rounds = [_first(run, target.level(run)) for run in runs]
    baselines = _baselines(runs, rounds)
    speedups = [
        _over(rounds[baseline.run], own) if baseline else None
        for baseline, own in zip(baselines, rounds, strict=True)
    ]
    captions = [
        f"speed-up: rounds of the {BASELINE} run of the same seed and settings (but the "
        "algorithm's own) over the run's; mean of the seeds in which both reached it"
    ]
    others = [
        f"{name} over {baseline.label}"
        for name, baseline, found in zip(_names(runs), baselines, speedups, strict=True)
        if found is not None and baseline is not None and baseline.other_rates
    ]
    if others:
        captions.append(f"speed-up over other rates: {'; '.join(others)}")
    return TargetRounds(rounds, speedups, baselines, captions)


def with_target(runs: Sequence[RunRecord], target: Target) -> ComparisonColumns:
    """The rounds to the target as columns, with published numbers.

    Raises:
        JobError: as `Target.level`.
    """
    rounds, speedups, baselines, captions_of = target_rounds(runs, target)
    name = f"{target.number:g}"
    key = f"target_round_{name}"
    columns = [
        Column(
            f"rounds\nto {target.title}",
            key,
            of_runs(runs, rounds),
            number("{:.0f}"),
            "known",
            score_mark,
        )
    ]
    captions = [f"rounds to {target.title}: the first evaluated round at {_meaning(runs, target)}"]
    if any(run.simulated for run in runs):
        when = [run.simulated.get(t) for run, t in zip(runs, rounds, strict=True) if t is not None]
        hours = iter(None if seconds is None else seconds / 3600 for seconds in when)
        found = of_runs(runs, [None if t is None else next(hours) for t in rounds])
        key = f"target_simulated_h_{name}"
        columns.append(Column("simu-\nlated h", key, found, number("{:.4g}"), "known"))
    if any(run.algorithm == BASELINE for run in runs):
        key = f"speedup_{name}"
        names = [baseline.label if baseline else None for baseline in baselines]
        columns += [
            Column("speed-up\nx", key, of_runs(runs, speedups), number("{:.2f}"), "known"),
            Column(None, f"{key}_baseline", of_runs(runs, names), over_seeds="texts"),
        ]
    known = [find(run.settings, *target.metrics[:1]) for run in runs]
    if any(known):
        firsts = [rows[0] if rows else None for rows in known]
        printed = [None if row is None else _printed(row) for row in firsts]
        values = [row.value if row else None for row in firsts]
        key = f"published_target_round_{name}"
        columns += [
            Column("published\nrounds", None, of_runs(runs, printed), over_seeds="same"),
            Column(None, key, of_runs(runs, values), over_seeds="same"),
        ]
        places = dict.fromkeys(f"{row.paper}, table {row.table}" for rows in known for row in rows)
        captions.append(f"published rounds: {'; '.join(places)}")
    if any(run.algorithm == BASELINE for run in runs):
        captions += captions_of
    return ComparisonColumns(tuple(columns), tuple(captions))


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
    """The first evaluated round whose test accuracy reached the level, or None."""
    scores = run.scores[run.score_key("accuracy")]
    return next((t for t, value in scores if value >= level), None)


def _over(baseline: int | None, own: int | None) -> float | None:
    """The speed-up; None where one never reached the target, or was there before round 1."""
    return baseline / own if baseline and own else None


def _baselines(runs: Sequence[RunRecord], rounds: Sequence[int | None]) -> list[Baseline | None]:
    """The FedAvg run that each run is compared with, if any; ``rounds`` to reach the target."""
    names, kinds = _names(runs), [_kind(run) for run in runs]
    rates = [_rates(run) for run in runs]
    references = [index for index, run in enumerate(runs) if run.algorithm == BASELINE]

    def rank(index: int) -> tuple[float, int]:
        found = rounds[index]
        return (inf if found is None else found), -runs[index].done

    found: list[Baseline | None] = []
    for index, kind in enumerate(kinds):
        alike = [other for other in references if kinds[other] == kind]
        alike = [other for other in alike if rates[other] == rates[index]] or alike
        jobs = {f"{rates[other]} {section(runs[other].settings, 'algorithm')}" for other in alike}
        if len(jobs) != 1:
            found.append(None)
            continue
        chosen = min(alike, key=rank)  # of several runs of the job
        differences = changed(rates[chosen], rates[index])
        text = ", ".join(f"{key} {theirs} instead of {ours}" for key, theirs, ours in differences)
        found.append(Baseline(chosen, names[chosen] + (f" ({text})" if text else ""), bool(text)))
    return found


def _names(runs: Sequence[RunRecord]) -> list[str]:
    return labels([run.path for run in runs])


def _kind(run: RunRecord) -> list[tuple[str, str]]:
    """The seed and the settings that a run and its baseline share."""
    return sorted(
        (key, repr(value))
        for key, value in run.settings.items()
        if (affects_results(key) or key == "evaluate.every")
        and not (key in _RATES | _IGNORED or key.startswith("algorithm."))
    )


def _rates(run: RunRecord) -> Settings:
    """The rates of a run; where they look ahead, its rounds are one."""
    ahead = spanning_schedule(run.settings) is not None
    keys = [*sorted(_RATES), *["rounds"] * ahead]
    return {key: run.settings[key] for key in keys if key in run.settings}


def _printed(row: Published) -> str:
    """The rounds that a paper prints."""
    return "never" if row.value is None else f"{row.value:.0f}"
