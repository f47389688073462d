"""Keep the best of the settings of each method, a rate above all: ``hpcfl report --chosen``.

Runs of one method and one set-up (``hpcfl.report.set_ups``: data, model, cohort, weights,
precision) that differ in other settings are compared by their scores after the last round: on the
validation data where every run has it, else on the test set, which a caption says.  A setting with
an unfinished seed, or with fewer seeds than another that is finished, is not compared: the luck of
few seeds would decide.
"""

from collections.abc import Mapping, Sequence
from math import isnan
from typing import NamedTuple

from hpcfl.errors import JobError
from hpcfl.evaluation.score_names import score_named
from hpcfl.report.columns import mean_and_std
from hpcfl.report.grid import read_grid
from hpcfl.report.groups import EXAMPLES, ComparedRuns
from hpcfl.report.set_ups import method_names
from hpcfl.run_dir.record import RunRecord

_LEFT_OUT = (
    "jobs compared: those with a finite score of every seed, and with as many seeds as any other "
    "of these"
)


class ChosenRuns(NamedTuple):
    """The runs of the best setting of each method and set-up."""

    runs: Sequence[RunRecord]
    captions: Sequence[str] = ()
    """How settings were chosen, and on which examples."""
    choices: Sequence[str] = ()
    """What was chosen of each method and set-up, and of how much."""
    note: str = ""
    """The same in a few words, for the title of a plot."""
    settings: Mapping[tuple[str, str], Sequence[RunRecord]] = {}
    """The runs of each choice, by the names of its method and, of several, its set-up."""


class _Candidate(NamedTuple):
    """The runs of one setting, which differ in the seed alone."""

    settings: str
    runs: Sequence[RunRecord]
    score: float
    """The mean that it is chosen by; NaN where a run is unfinished or has no finite score."""


def choose_settings(runs: Sequence[RunRecord]) -> ChosenRuns:
    """The runs of the best setting of each method and set-up; none of those without a score.

    A method is a label on the axis of a sweep's grid that sets ``algorithm``; an algorithm else.

    Raises:
        JobError: no finished run has a score.
    """
    compared = ComparedRuns.of(runs)
    key, grid = _score(compared), read_grid(compared.runs)
    higher = score_named(key).better == "higher"
    titles = dict(zip(grid.columns, grid.titles(), strict=True))
    methods = method_names(compared.runs)
    found: dict[tuple[str, str], list[_Candidate]] = {}
    for (row, column), indices in grid.cells.items():
        several = titles[column].replace("\n", ", ") if len(grid.columns) > 1 else ""
        members = [compared.runs[index] for index in indices]
        candidate = _Candidate(row.settings, members, _mean(members, key))
        found.setdefault((methods[indices[0]], several), []).append(candidate)
    kept: list[RunRecord] = []
    choices, settings, some_left_out = [], dict[tuple[str, str], Sequence[RunRecord]](), False
    for place, candidates in found.items():
        what = ", ".join(filter(None, place))
        known = _comparable(candidates)
        some_left_out |= len(known) < len(candidates)
        of = f"{len(known)} of {len(candidates)}" if len(known) < len(candidates) else len(known)
        if not known:
            choices.append(f"{what}: none, no job has a finite score of every seed")
            continue
        best = max(known, key=lambda each: each.score if higher else -each.score)
        choices.append(f"{what}: {best.settings or 'as it is'} (of {of} job{'s' * (of != 1)})")
        chosen, settings[place] = {run.path for run in best.runs}, best.runs
        kept += [run for run in runs if run.path in chosen]
    captions = [
        f"settings: those with the {'highest' if higher else 'lowest'} {key.replace('_', ' ')} "
        "after the last round, a mean over seeds",
        *([_LEFT_OUT] if some_left_out else []),
        *(compared.caption("settings") if compared.on == "test" else []),
    ]
    note = f"settings chosen on {EXAMPLES[compared.on]}"
    return ChosenRuns(kept, captions, choices, note, settings)


def _score(compared: ComparedRuns) -> str:
    """The key of the log that these runs are compared by.

    Raises:
        JobError: no finished run has one.
    """
    for name in ("accuracy", "loss"):
        key = f"{compared.on}_{name}"
        if any(run.finished and run.scores[key] for run in compared.runs):
            return key
    raise JobError(
        f"{compared.runs[0].path}: no finished run has a test or validation score to choose by; "
        "report without --chosen"
    )


def _mean(runs: Sequence[RunRecord], key: str) -> float:
    known = [value for run in runs if run.finished and (value := run.last(key)) is not None]
    return mean_and_std(known)[0] if len(known) == len(runs) else float("nan")


def _comparable(candidates: Sequence[_Candidate]) -> list[_Candidate]:
    """Those with a score of all their seeds, and with as many seeds as any other of these."""
    known = [candidate for candidate in candidates if not isnan(candidate.score)]
    most = max((len(candidate.runs) for candidate in known), default=0)
    return [candidate for candidate in known if len(candidate.runs) == most]
