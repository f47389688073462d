"""Choose among the settings of a method, a rate above all, and show the test score of the choice.

Runs of one algorithm, data set, split and cohort that differ in other settings are compared by
their scores after the last round: on the validation data where every run has it, else on the test
set, which a caption says.  A setting with an unfinished seed, or with fewer seeds than another that
is finished, is not compared: the luck of few seeds would decide.
"""

from collections.abc import Sequence
from math import isnan
from typing import NamedTuple

from hpcfl.errors import JobError
from hpcfl.job.settings import common_settings
from hpcfl.report.best import with_best
from hpcfl.report.columns import diverged_note, run_captions
from hpcfl.report.compared_runs import ComparedRuns
from hpcfl.report.comparison import mean_and_std, spread
from hpcfl.report.grid import Row, SetUp, read_grid
from hpcfl.report.seed_groups import seed_captions
from hpcfl.report.table import Caption, Report, Table, Value, without_blanks
from hpcfl.run_dir.record import RunRecord

_LEFT_OUT = (
    "jobs compared: those with a finite score of every seed, and with as many seeds as any other "
    "of these"
)


class _Candidate(NamedTuple):
    """The runs of one setting, which differ in the seed alone."""

    row: Row
    runs: Sequence[RunRecord]
    score: float
    """The mean that it is chosen by; NaN where a run is unfinished or has no finite score."""


class _Scores(NamedTuple):
    """The keys of the log that a choice is about."""

    name: str
    """"accuracy", or "loss" where no run has an accuracy."""
    chosen_by: str
    tested: str

    @property
    def higher_is_better(self) -> bool:
        """Whether the largest score is chosen."""
        return self.name == "accuracy"

    def shown(self, runs: Sequence[RunRecord], key: str) -> str:
        """The mean and deviation of a score, in percent if it is an accuracy."""
        scale, form = (100, "{:.2f}") if self.higher_is_better else (1, "{:.4g}")
        values = [run.last(key) for run in runs]
        return spread([None if value is None else scale * value for value in values], form)


def by_choice(runs: Sequence[RunRecord]) -> Report:
    """A row for each algorithm and set-up: the chosen setting, and its scores.

    Raises:
        JobError: no finished run has a score.
    """
    on = ComparedRuns.of(runs)
    runs = on.runs
    scores, grid = _scores(on), read_grid(runs)
    candidates: dict[tuple[str, SetUp], list[_Candidate]] = {}
    for (row, column), indices in grid.cells.items():
        members = [runs[index] for index in indices]
        found = _Candidate(row, members, _mean(members, scores.chosen_by))
        candidates.setdefault((row.algorithm, column), []).append(found)
    titles = dict(zip(grid.columns, grid.titles(), strict=True))
    unit = "%" if scores.higher_is_better else "loss"
    rows, values, choices, left_out = [], [], [], False
    for (algorithm, column), found_there in candidates.items():
        compared = _comparable(found_there)
        choice = _best(compared, higher_is_better=scores.higher_is_better)
        choices.append(choice)
        some = len(compared) < len(found_there)
        left_out |= some
        of = f"{len(compared)}" + (f" of {len(found_there)}" if some else "")
        chosen: Sequence[RunRecord] = choice.runs if choice else ()
        rows.append([
            algorithm,
            titles[column].replace("\n", ", ") if len(grid.columns) > 1 else "-",
            (choice.row.settings if choice else "") or "-",
            of,
            f"{len(chosen)}{diverged_note(chosen)}",
            scores.shown(chosen, scores.chosen_by) if "test" not in scores.chosen_by else "-",
            scores.shown(chosen, scores.tested),
        ])  # fmt: skip
        values.append(_values(algorithm, column, found_there, compared, choice, scores))
    settings = [
        common_settings([run.settings for run in choice.runs] if choice else [])
        for choice in choices
    ]
    chosen_columns = ("settings", f"validation\n{unit}", f"test\n{unit}")
    headings = ["algorithm", "set-up", "settings", "jobs\ncompared", "seeds", *chosen_columns[1:]]
    captions = [
        Caption(
            f"settings: those with the {'highest' if scores.higher_is_better else 'lowest'} "
            f"{scores.chosen_by.replace('_', ' ')} after the last round, a mean over seeds",
            *chosen_columns,
        ),
        *([Caption(_LEFT_OUT, "jobs\ncompared", *chosen_columns)] if left_out else []),
        *on.caption("settings", *chosen_columns),
        *seed_captions(runs, list(grid.cells.values())),
        *run_captions(runs),
    ]
    table = Table(headings, rows, captions, settings=settings)
    table = with_best(without_blanks(table), runs, [choice is not None for choice in choices])
    return Report([table], values, settings)


def _scores(compared: ComparedRuns) -> _Scores:
    """The keys that these runs are compared by.

    Raises:
        JobError: no finished run has one.
    """
    for name in ("accuracy", "loss"):
        key = f"{compared.on}_{name}"
        if any(run.finished and run.scores[key] for run in compared.runs):
            return _Scores(name, key, f"test_{name}")
    raise JobError(
        f"{compared.runs[0].path}: no finished run has a test or validation score to choose by; "
        "report without --layout chosen"
    )


def _mean(runs: Sequence[RunRecord], key: str) -> float:
    known = [value for run in runs if run.finished and (value := run.last(key)) is not None]
    return mean_and_std(known)[0] if len(known) == len(runs) else float("nan")


def _comparable(candidates: Sequence[_Candidate]) -> list[_Candidate]:
    """Those with a score of all their seeds, and with as many seeds as any other of these."""
    known = [candidate for candidate in candidates if not isnan(candidate.score)]
    most = max((len(candidate.runs) for candidate in known), default=0)
    return [candidate for candidate in known if len(candidate.runs) == most]


def _best(candidates: Sequence[_Candidate], *, higher_is_better: bool) -> _Candidate | None:
    """The candidate with the best score, the first of equals; None of none."""
    sign = 1 if higher_is_better else -1
    return max(candidates, key=lambda candidate: sign * candidate.score, default=None)


def _values(
    algorithm: str,
    column: SetUp,
    found: Sequence[_Candidate],
    compared: Sequence[_Candidate],
    choice: _Candidate | None,
    scores: _Scores,
) -> dict[str, Value]:
    """The row for programs."""
    tested = (
        [value for run in choice.runs if (value := run.last(scores.tested)) is not None]
        if choice
        else []
    )
    mean, std = mean_and_std(tested) if tested else (None, None)
    return {
        "algorithm": algorithm,
        **column._asdict(),
        "settings": choice.row.settings if choice else None,
        "jobs": len(found),
        "compared": len(compared),
        "chosen_by": scores.chosen_by,
        "chosen_score": choice.score if choice else None,
        "seeds_finished": len(choice.runs) if choice else 0,
        scores.tested: mean,
        f"{scores.tested}_std": std,
    }
