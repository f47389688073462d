"""Define the columns of reports: what a run has in each, for people and for programs."""

from collections.abc import Callable, Mapping, Sequence
from math import isfinite, nan
from statistics import fmean, stdev
from typing import Literal, NamedTuple

from rich.filesize import decimal

from hpcfl.runs.job_file.settings import BRANCH
from hpcfl.runs.record import RunRecord
from hpcfl.runs.run_score import is_of_x
from hpcfl.runs.score_names import SCORES, Score
from hpcfl.tools.report.groups import score_mark, x_mark
from hpcfl.tools.report.table import Value


def number(form: str) -> Callable[[float], str]:
    """Shows a number in this format."""
    return lambda value: form.format(value)


def percent(fraction: float) -> str:
    """Shows a fraction in percent."""
    return f"{100 * fraction:.2f}"


class Column(NamedTuple):
    """A column of a report."""

    title: str | None
    """In tables; None: for programs alone."""
    key: str | None
    """In CSV and DataFrames; None: for people alone."""
    value: Callable[[RunRecord], Value]
    """Of a run; None where there is nothing."""
    show: Callable[[float], str] = str
    """The text of a number, such as a mean over seeds."""
    over_seeds: Literal["mean", "known", "same", "texts"] = "mean"
    """What runs have that differ in the seed alone: the mean over those that are finished, if each
    has a number; the mean over those that have one; all the same; or texts, which are joined."""
    mark: Callable[[RunRecord], str] | None = None
    """What stands behind the text of a run that has one."""

    def cell(self, run: RunRecord) -> str:
        """The text for a run; "-" where there is nothing."""
        value = self.value(run)
        text = value if isinstance(value, str) else spread([value], self.show)
        return self._marked(text, run)

    def seeds_cell(self, runs: Sequence[RunRecord]) -> str:
        """The text for runs that differ in the seed alone."""
        if self.over_seeds not in ("mean", "known"):
            return self.cell(runs[0])
        found = self._numbers(runs)
        if self.over_seeds == "mean":
            return self._marked(spread(found, self.show), runs[0])
        some = 0 < len(found) < len(runs)
        text = self._marked(spread(found, self.show), runs[0])
        return text + (seeds_note(len(found), len(runs)) if some else "")

    def seeds_values(self, runs: Sequence[RunRecord]) -> dict[str, Value]:
        """The values for runs that differ in the seed alone, by KEY, KEY_std and KEY_n.

        A mean is None where a finished run lacks the number: one over fewer runs would compare
        different seeds.
        """
        if self.key is None:
            return {}
        if self.over_seeds == "same":
            return {self.key: self.value(runs[0])}
        if self.over_seeds == "texts":
            texts = dict.fromkeys(str(text) for run in runs if (text := self.value(run)))
            return {self.key: "; ".join(texts) or None}
        found = self._numbers(runs)
        known = [value for value in found if value is not None]
        complete = len(known) == len(found) > 0
        mean, std = mean_and_std(known) if complete else (None, None)
        count = {f"{self.key}_n": len(known)} if self.over_seeds == "known" else {}
        return {self.key: mean, f"{self.key}_std": std, **count}

    def _marked(self, text: str, run: RunRecord) -> str:
        return text if self.mark is None or text == "-" else text + self.mark(run)

    def _numbers(self, runs: Sequence[RunRecord]) -> list[float | None]:
        """Those that the mean over seeds is of; None where a finished run lacks its number."""
        only_known = self.over_seeds == "known"
        values = [self.value(run) for run in runs if run.finished or only_known]
        return [
            None if isinstance(value, str) else value
            for value in values
            if value is not None or not only_known
        ]


def spread(values: Sequence[float | None], show: Callable[[float], str]) -> str:
    """The mean +- sample standard deviation of values, if none is absent; else "-"."""
    known = [value for value in values if value is not None]
    if not known or len(known) < len(values):
        return "-"
    mean, std = mean_and_std(known)
    return show(mean) + ("" if std is None else f" +- {show(std)}")


def seeds_note(count: int, of: int) -> str:
    """The number of runs that a mean is over: " (n=2)", " (n=1 of 2)"; empty for one run."""
    if of == 1:
        return ""
    return f" (n={count})" if count == of else f" (n={count} of {of})"


def mean_and_std(values: Sequence[float]) -> tuple[float, float | None]:
    """The mean and the sample standard deviation, None of a single value; NaN of a diverged one."""
    if not all(map(isfinite, values)):
        return sum(values) / len(values), nan if len(values) > 1 else None
    return fmean(values), stdev(values) if len(values) > 1 else None


def of_runs(runs: Sequence[RunRecord], values: Sequence[Value]) -> Callable[[RunRecord], Value]:
    """The value of a column that depends on the other runs: one for each of these."""
    found = {run.path: value for run, value in zip(runs, values, strict=True)}
    return lambda run: found[run.path]


def rounds_text(run: RunRecord) -> str:
    """Rounds completed / rounds of the job, and the state, unless finished: "3/10 stopped"."""
    marks = [] if run.state == "finished" else [run.state]
    marks += ["diverged"] if run.diverged and "diverged" not in marks else []
    return " ".join([f"{run.done}/{run.rounds}", *marks])


def duration(seconds: float) -> str:
    """Seconds as "12.3 s", from a minute on as hours, minutes and seconds: "6:00:00"."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, whole = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{whole:02d}"


def _size(count: float) -> str:
    return decimal(int(count))


def _best_at(run: RunRecord) -> str | None:
    if run.best is not None:
        return f"{percent(run.best[1])} @{run.best[0]}"
    return None if run.lowest is None else f"loss {run.lowest[1]:.4g} @{run.lowest[0]}"


def _mean_of_last(run: RunRecord) -> float | None:
    """The mean over the job's window; None where the column "last 100" shows the same mean."""
    return None if run.window == 100 and run.accuracy_last100 is not None else run.mean_accuracy


_DIGITS = number("{:.4g}")


def _last(score: Score) -> Column:
    """The newest value of a score."""
    title, show = score.title, percent if score.percent else _DIGITS
    if title and score.percent:
        title += " %" if "\n" in title else "\n%"
    mark = x_mark if is_of_x(score.key) else None
    return Column(title, score.key, lambda run: run.last(score.key), show, mark=mark)


ABOUT = (
    Column("run", "run", lambda run: run.name, over_seeds="same"),
    Column("algorithm", "algorithm", lambda run: run.algorithm, over_seeds="same"),
    Column("rounds", None, rounds_text, over_seeds="same"),
    Column(None, "rounds", lambda run: run.rounds, over_seeds="same"),
    Column(None, "rounds_done", lambda run: run.done),
    Column(None, "state", lambda run: run.state),
    Column(None, "diverged", lambda run: int(run.diverged)),
    Column(None, "score_of", lambda run: run.score_of, over_seeds="same"),
    Column(None, "chosen_on", lambda run: run.chosen_on, over_seeds="same"),
    Column(None, "branch", lambda run: run.settings.get(BRANCH)),
)
"""What a run is; not a result of it."""
BEST = Column(
    "best\n%",
    "best_accuracy",
    lambda run: run.best[1] if run.best else None,
    percent,
    mark=score_mark,
)
BEST_AT = Column("best\n% @round", None, _best_at, mark=score_mark)
"""In the place of BEST in a table of single runs."""
MEAN_OF_LAST = Column("mean of\nlast %", None, _mean_of_last, percent, mark=score_mark)
"""The mean over the rounds of ``evaluate.last``, for people; the next one is for programs."""
MEAN_ACCURACY = Column(None, "mean_accuracy", lambda run: run.mean_accuracy)
_OF_SCORE: Mapping[str, Sequence[Column]] = {
    "test_accuracy": (
        Column(None, "accuracy", lambda run: run.last(run.score_key("accuracy"))),
        BEST,
        Column(None, "best_round", lambda run: run.best[0] if run.best else None),
        MEAN_OF_LAST,
        MEAN_ACCURACY,
        Column(
            "last\n100 %",
            "accuracy_last100",
            lambda run: run.accuracy_last100,
            percent,
            mark=score_mark,
        ),
    ),
    "test_loss": (
        Column(None, "lowest_loss", lambda run: run.lowest[1] if run.lowest else None),
        Column(None, "lowest_loss_round", lambda run: run.lowest[0] if run.lowest else None),
    ),
}
"""What stands beside the newest value of a score."""
COSTS = (
    Column("down", "down_bytes", lambda run: int(run.total("down_bytes")), _size),
    Column("up", "up_bytes", lambda run: int(run.total("up_bytes")), _size),
    Column("wall\ntime", "wall_s", lambda run: run.total("wall_s"), duration),
    Column("simulated", "simulated_s", lambda run: run.simulated.get(run.done), duration),
)
"""What a run took; in tables of single runs alone."""


def score_columns(runs: Sequence[RunRecord]) -> list[Column]:
    """The scores of these runs, and those of the user's metrics that one of them has.

    Tables show the metrics on the test set alone: each has up to nine others.  Where all methods
    make models of the clients' own, the scores of these come first.
    """
    keys = dict.fromkeys(key for run in runs for key in run.metric_keys)
    known = [key for key in keys if any(run.last(key) is not None for run in runs)]
    of_clients = all(run.personal for run in runs)
    first = sorted(
        SCORES.values(), key=lambda score: not (of_clients and score.key.startswith("personal_"))
    )
    scores = [column for score in first for column in (_last(score), *_OF_SCORE.get(score.key, ()))]
    own = [
        _last(Score(key, key if key.startswith("test_") else None, percent=False)) for key in known
    ]
    return [*scores, *own]
