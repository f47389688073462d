"""Find when runs reach a target, and their speed-up over FedAvg (FedHBM, tables 2 and 9)."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

from hpcfl.errors import JobError
from hpcfl.job_file.settings import SEED, Settings, affects_results, changed
from hpcfl.report.columns import Column, number, of_runs
from hpcfl.report.comparison import ComparisonColumns
from hpcfl.report.groups import ComparedRuns, labels, score_mark
from hpcfl.report.published import Published, centralised, find, set_up
from hpcfl.runs.record import RunRecord
from hpcfl.runs.run_score import ChosenOn

BASELINE = "fedavg"
"""The algorithm that speed-ups are over."""
_SGD = ("lr", "lr_decay", "schedule", "weight_decay", "clip", "momentum", "nesterov")
# Settings in which a baseline may differ from a run, if a caption says so: those of the local SGD,
# which papers tune for each method, and what changes when a run is evaluated or how its sums are
# rounded.  Data, model, cohorts and the work of a round must agree: else rounds are not of the same
# kind.
_TUNED = frozenset(f"local.{key}" for key in _SGD)
_STATED = _TUNED | {
    "rounds",
    "evaluate.every",
    "evaluate.last",
    "precision",
    "executor",
    "block_size",
    "reduction",
}
_ELSEWHERE = (SEED, "task", "data.root")  # the seed is matched by itself; the others decide nothing


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
    """The run's name and, in brackets, each setting in which it differs."""


class TargetRounds(NamedTuple):
    """When runs reached a target."""

    rounds: Sequence[int | None]
    """The first evaluated round of each run that reached it; None: not yet."""
    speedups: Sequence[float | None]
    """FedAvg's rounds over each run's; None where one of the two has not reached the target."""
    baselines: Sequence[Baseline | None]
    """Of each run; None where no FedAvg run can be compared with it."""
    captions: Sequence[str]
    """Lines about the baselines, where there is a choice or a difference."""


def target_rounds(runs: Sequence[RunRecord], target: Target) -> TargetRounds:
    """When runs reached the target, and how much sooner than FedAvg.

    The baseline of a run is the FedAvg run of the same seed that agrees in every setting but the
    algorithm's own.  Where no FedAvg job agrees, one that differs in stated settings alone (the
    rates, above all) is taken, and a caption says so; of several, the first that reaches it: by
    validation accuracies, where every run has them.
    All seeds of a job have the same FedAvg job as their baseline.

    Raises:
        JobError: as `Target.level`.
    """
    compared = ComparedRuns.of(runs)
    rounds = [_first(run, target.level(run), "test") for run in runs]
    reached = [_first(run, target.level(run), compared.on) for run in runs]
    baselines, captions = _baselines(compared, rounds, reached)
    speedups = [
        _over(rounds[baseline.run], own) if baseline else None
        for baseline, own in zip(baselines, rounds, strict=True)
    ]
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


def _first(run: RunRecord, level: float, on: ChosenOn) -> int | None:
    """The first evaluated round whose accuracy on these examples reached the level, or None."""
    scores = run.scores[run.score_key("accuracy", on)]
    return next((t for t, value in scores if value >= level), None)


def _over(baseline: int | None, own: int | None) -> float | None:
    """The speed-up; None where one never reached the target, or was there before round 1."""
    return baseline / own if baseline and own else None


_Job = Mapping[Any, int]  # runs (by index) of one job, by their seeds


def _baselines(
    compared: ComparedRuns, rounds: Sequence[int | None], reached: Sequence[int | None]
) -> tuple[list[Baseline | None], list[str]]:
    """The baseline of each run, and captions that say which were taken.

    Args:
        compared: the runs, and what baselines are chosen on.
        rounds: when each reached the target.
        reached: when its accuracy on the examples that baselines are chosen on was there.
    """
    runs = compared.runs
    names = labels([run.path for run in runs])
    identities = [_identity(run) for run in runs]
    jobs = _jobs(runs, rounds, identities)
    references = [job for job in jobs if runs[_any(job)].algorithm == BASELINE]
    found: list[Baseline | None] = [None] * len(runs)
    captions_of: dict[str, list[str]] = {}  # captions' ends, with the jobs that have them in common
    for job in jobs:
        chosen = _choose(runs, reached, job, references)
        successful = {seed for seed, index in job.items() if rounds[index] is not None}
        if chosen is None:
            if successful:
                captions_of.setdefault(_why_none(runs, job, references), []).append(
                    _name(names, job)
                )
            continue
        baseline, rivals = chosen
        differing = ", ".join(
            f"{key} {theirs} instead of {ours}"
            for key, theirs, ours in _differences(runs[_any(baseline)], runs[_any(job)])
        )
        for index, run in enumerate(runs):
            seed = run.settings.get(SEED)
            if seed in baseline and identities[index] == identities[_any(job)]:
                other = baseline[seed]
                label = names[other] + (f" ({differing})" if differing else "")
                found[index] = Baseline(other, label)
        both = any(rounds[baseline[seed]] is not None for seed in successful & baseline.keys())
        if both and (differing or rivals > 1):
            text = f"over {_name(names, baseline)}"
            if rivals > 1:
                where = compared.examples
                text += f", the first to reach it of {rivals} {BASELINE} jobs (chosen on {where})"
            text += f", which has {differing}" if differing else ""
            captions_of.setdefault(text, []).append(_name(names, job))
    captions = [
        f"speed-up: rounds of the {BASELINE} run of the same seed and settings (but the "
        "algorithm's own) over the run's; mean of the seeds in which both reached it"
    ]
    captions += [f"speed-up of {', '.join(jobs)}: {text}" for text, jobs in captions_of.items()]
    return found, captions


def _choose(
    runs: Sequence[RunRecord],
    rounds: Sequence[int | None],
    job: _Job,
    references: Sequence[_Job],
) -> tuple[_Job, int] | None:
    """The reference that a job is compared with, and how many were as near to it."""
    ranked: list[tuple[tuple[int, int], tuple[float, float], int, _Job]] = []
    for place, reference in enumerate(references):
        keys = {key for key, _, _ in _differences(runs[_any(reference)], runs[_any(job)])}
        if keys <= _STATED and reference.keys() & job.keys():
            distance = len(keys & _TUNED), len(keys - _TUNED)
            ranked.append((distance, _rank_of(rounds, job, reference), place, reference))
    if not ranked:
        return None
    distance, _, _, nearest = min(ranked, key=lambda entry: entry[:3])
    return nearest, sum(entry[0] == distance for entry in ranked)


def _rank_of(rounds: Sequence[int | None], job: _Job, reference: _Job) -> tuple[float, float]:
    """For how many seeds of a job the reference never gets there, and the mean of the others."""
    seeds = [seed for seed in job if seed in reference]
    known = [found for seed in seeds if (found := rounds[reference[seed]]) is not None]
    return len(job) - len(known), math.fsum(known) / len(known) if known else math.inf


def _why_none(runs: Sequence[RunRecord], job: _Job, references: Sequence[_Job]) -> str:
    """Why a job has no baseline: the settings in which the nearest FedAvg job differs."""
    apart = [
        [f"{key} {ours}" for key, _, ours in found if key not in _STATED]
        for found in (_differences(runs[_any(other)], runs[_any(job)]) for other in references)
    ]
    if not apart:
        return f"none, there is no {BASELINE} run"
    nearest = min(apart, key=len)
    return f"none, no {BASELINE} run has its {', '.join(nearest) if nearest else 'seeds'}"


def _differences(reference: RunRecord, run: RunRecord) -> Iterator[tuple[str, str, str]]:
    """The settings in which two runs differ, with the value of each; the algorithm's own aside."""
    for key, theirs, ours in changed(reference.settings, run.settings):
        compared = _compared(reference.settings, key) or _compared(run.settings, key)
        if compared and not key.startswith("algorithm."):
            yield key, theirs, ours


def _compared(job: Settings, key: str) -> bool:
    """Whether the setting can change when a run reaches a target."""
    if key == "rounds":  # a longer run passes through the same models, unless its rates look ahead
        return job.get("local.schedule") == "cosine"
    return key not in _ELSEWHERE and (affects_results(key) or key in _STATED)


def _jobs(
    runs: Sequence[RunRecord], rounds: Sequence[int | None], identities: Sequence[str]
) -> list[_Job]:
    """Runs of jobs that differ in the seed alone.

    Runs of one job and seed may still differ in their numbers of rounds, planned or made: the first
    to reach it stands for them, else the longest.
    """

    def rank(index: int) -> tuple[float, int]:
        found = rounds[index]
        return (math.inf if found is None else found), -runs[index].done

    jobs: dict[str, dict[Any, int]] = {}
    for index, run in enumerate(runs):
        job, seed = jobs.setdefault(identities[index], {}), run.settings.get(SEED)
        job[seed] = min(job.get(seed, index), index, key=rank)
    return list(jobs.values())


def _identity(run: RunRecord) -> str:
    job = run.settings
    return repr(sorted((key, repr(value)) for key, value in job.items() if _compared(job, key)))


def _any(job: _Job) -> int:
    """A run of a job."""
    return next(iter(job.values()))


def _name(names: Sequence[str], job: _Job) -> str:
    """The first run of a job, and how many seeds more it has."""
    more = len(job) - 1
    return names[_any(job)] + (f" (and {more} more seed{'s' * (more > 1)})" if more else "")


def _printed(row: Published) -> str:
    """The rounds that a paper prints."""
    return "never" if row.value is None else f"{row.value:.0f}"
