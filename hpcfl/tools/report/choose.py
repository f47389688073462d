"""Keep the best of the settings of each method, a rate above all: ``hpcfl report --chosen``.

Runs of one method and one set-up (``hpcfl.tools.report.set_ups``: data, model, cohort, weights,
precision) that differ in other settings are compared by their scores after the last round, those of
the clients' own models where the method makes them: on the validation data where every run has it,
else on the test set, which a caption says.  A setting with an unfinished seed, or with fewer seeds
than another that is finished, is not compared: the luck of few seeds would decide.  Nor is one
whose score is of an x that is not trained.
"""

from collections.abc import Mapping, Sequence
from math import isnan
from typing import NamedTuple, get_args

from hpcfl.errors import JobError
from hpcfl.runs.record import RunRecord
from hpcfl.runs.run_score import Quantity
from hpcfl.runs.score_names import score_named
from hpcfl.tools.report.columns import mean_and_std
from hpcfl.tools.report.grid import read_grid
from hpcfl.tools.report.groups import ComparedRuns, x_mark
from hpcfl.tools.report.set_ups import method_names

_LEFT_OUT = (
    "jobs compared: those with a finite score of every seed, and with as many seeds as any other "
    "of these"
)
_UNTRAINED = (
    "the clients' own models are not scored, and x is not trained, or not all of it: its jobs need "
    "data.holdout or data.validation, and evaluate.personal=true"
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
    quantity, grid = _quantity(compared), read_grid(compared.runs)
    higher = score_named(quantity).better == "higher"
    titles = dict(zip(grid.columns, grid.titles(), strict=True))
    methods = method_names(compared.runs)
    found: dict[tuple[str, str], list[_Candidate]] = {}
    for (row, column), indices in grid.cells.items():
        several = titles[column].replace("\n", ", ") if len(grid.columns) > 1 else ""
        members = [compared.runs[index] for index in indices]
        candidate = _Candidate(row.settings, members, _mean(members, quantity))
        found.setdefault((methods[indices[0]], several), []).append(candidate)
    kept: list[RunRecord] = []
    choices, settings, some_left_out = [], dict[tuple[str, str], Sequence[RunRecord]](), False
    for place, candidates in found.items():
        what = ", ".join(filter(None, place))
        known = _comparable(candidates)
        some_left_out |= len(known) < len(candidates)
        of = f"{len(known)} of {len(candidates)}" if len(known) < len(candidates) else len(known)
        if not known:
            choices.append(f"{what}: none, {_why_none(candidates)}")
            continue
        best = max(known, key=lambda each: each.score if higher else -each.score)
        choices.append(f"{what}: {best.settings or 'as it is'} (of {of} job{'s' * (of != 1)})")
        chosen, settings[place] = {run.path for run in best.runs}, best.runs
        kept += [run for run in runs if run.path in chosen]
    keys = dict.fromkeys(run.score_key(quantity, compared.on) for run in kept or compared.runs)
    score = " or ".join(key.replace("_", " ") for key in keys)
    captions = [
        f"settings: those with the {'highest' if higher else 'lowest'} {score} after the last "
        "round, a mean over seeds",
        *([_LEFT_OUT] if some_left_out else []),
        *(compared.caption("settings") if compared.on == "test" else []),
    ]
    note = f"settings chosen on {compared.examples}"
    return ChosenRuns(kept, captions, choices, note, settings)


def _quantity(compared: ComparedRuns) -> Quantity:
    """The score that these runs are compared by.

    Raises:
        JobError: no finished run has one.
    """
    for quantity in get_args(Quantity):
        if any(
            run.finished and run.scores[run.score_key(quantity, compared.on)]
            for run in compared.runs
            if not _is_untrained(run)
        ):
            found: Quantity = quantity
            return found
    why = "no finished run has a test or validation score to choose by"
    if all(map(_is_untrained, compared.runs)):
        why = _UNTRAINED
    raise JobError(f"{compared.runs[0].path}: {why}; report without --chosen")


def _mean(runs: Sequence[RunRecord], quantity: Quantity) -> float:
    known = [
        value
        for run in runs
        if run.finished
        and not _is_untrained(run)
        # The runs of a report are compared on the same examples.
        and (value := run.last(run.score_key(quantity, run.chosen_on))) is not None
    ]
    return mean_and_std(known)[0] if len(known) == len(runs) else float("nan")


def _is_untrained(run: RunRecord) -> bool:
    """Whether it counts by an x that is not trained, or not all of it."""
    return bool(x_mark(run)) and not run.personal


def _why_none(candidates: Sequence[_Candidate]) -> str:
    """Why none of a method's settings has a score to be chosen by."""
    if all(_is_untrained(run) for candidate in candidates for run in candidate.runs):
        return _UNTRAINED
    return "no job has a finite score of every seed"


def _comparable(candidates: Sequence[_Candidate]) -> list[_Candidate]:
    """Those with a score of all their seeds, and with as many seeds as any other of these.

    Where some count by the clients' own models, the others are not compared with them.
    """
    known = [candidate for candidate in candidates if not isnan(candidate.score)]
    if any(candidate.runs[0].personal for candidate in known):
        known = [candidate for candidate in known if candidate.runs[0].personal]
    most = max((len(candidate.runs) for candidate in known), default=0)
    return [candidate for candidate in known if len(candidate.runs) == most]
