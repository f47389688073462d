"""Define the columns of reports: their titles, and the functions that give a run's values."""

from collections.abc import Callable, Sequence

from rich.filesize import decimal

from hpcfl.job.settings import BRANCH, labels, some_of
from hpcfl.report.comparison import spread
from hpcfl.report.table import Value
from hpcfl.run_dir.history import edited_text
from hpcfl.run_dir.record import SCORES, RunRecord


def percent(fraction: float | None) -> float | None:
    """A fraction in percent."""
    return None if fraction is None else 100 * fraction


DIVERGED = (
    "diverged: a number was not finite, or the train loss of the last rounds is far above that of "
    "guessing and of the first rounds; hpcfl status DIR has the numbers"
)
"""The meaning of the mark, as a caption."""


def rounds_text(run: RunRecord) -> str:
    """Rounds completed / rounds of the job, and the state of an unfinished run: "3/10 stopped"."""
    marks = [] if run.finished else [run.state]
    marks += ["diverged"] if run.diverged and "diverged" not in marks else []
    return " ".join([f"{run.done}/{run.rounds}", *marks])


def run_captions(runs: Sequence[RunRecord]) -> list[str]:
    """Captions about branches, different code and diverged runs, if there are any."""
    names = labels([run.path for run in runs])
    captions = [
        f"{name}: {'; '.join(map(str, run.branches))}; its rounds, bytes and times count from "
        f"round 0 of {run.branches[0].parent}"
        for name, run in zip(names, runs, strict=True)
        if run.branches
    ]
    captions += _code_caption(runs, names)
    return captions + [DIVERGED] * any(run.diverged for run in runs)


def _code_caption(runs: Sequence[RunRecord], names: Sequence[str]) -> list[str]:
    """A caption where modules of the user's were edited; runs of the same contents together."""
    contents: dict[str, set[str]] = {}
    for run in runs:
        for code in run.code:
            for module, digest in code.items():
                contents.setdefault(module, set()).add(digest)
    edited = [module for module, digests in contents.items() if len(digests) > 1]
    alike: dict[tuple[tuple[str | None, ...], ...], list[str]] = {}
    for name, run in zip(names, runs, strict=True):
        found = [tuple(map(code.get, edited)) for code in run.code if code.keys() & edited]
        if found:
            alike.setdefault(tuple(dict.fromkeys(found)), []).append(name)
    groups = [
        some_of(group) + (" (between its starts)" if len(found) > 1 else "")
        for found, group in alike.items()
    ]
    if not groups:
        return []
    return [f"computed with different code, as {edited_text(edited)}: {some_of(groups, '; ')}"]


def diverged_note(runs: Sequence[RunRecord]) -> str:
    """The number of diverged runs as a note: " (1 diverged)"; empty if no run diverged."""
    count = sum(run.diverged for run in runs)
    return f" ({count} diverged)" if count else ""


def _best(run: RunRecord) -> str:
    if run.best is not None:
        return f"{100 * run.best[1]:.2f} @{run.best[0]}"
    return "-" if run.lowest is None else f"loss {run.lowest[1]:.4g} @{run.lowest[0]}"


def _mean_of_last(run: RunRecord) -> float | None:
    """The mean over the job's window; None where the column "last 100" shows the same mean."""
    return None if run.window == 100 and run.accuracy_last100 is not None else run.mean_accuracy


def duration(seconds: float) -> str:
    """Seconds as "12.3 s", from a minute on as hours, minutes and seconds: "6:00:00"."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, whole = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{whole:02d}"


BEST = ("best\n% @round", "best\n%")
"""The titles of the columns of the best round, of a run and over seeds."""

MEAN_OF_LAST = "mean of\nlast %"
"""The title of the column of the means over the rounds of ``evaluate.last``."""

# A key, and a run's value.
NumberValue = tuple[str, Callable[[RunRecord], float | None]]
# A title, a run's value, and the format of the mean and the deviation over seeds.
NumberColumn = tuple[str, Callable[[RunRecord], float | None], str]
SEED_COLUMNS: tuple[NumberColumn, ...] = (
    ("accuracy\n%", lambda run: percent(run.last("test_accuracy")), "{:.2f}"),
    (BEST[1], lambda run: percent(run.best[1] if run.best else None), "{:.2f}"),
    (MEAN_OF_LAST, lambda run: percent(_mean_of_last(run)), "{:.2f}"),
    ("last\n100 %", lambda run: percent(run.accuracy_last100), "{:.2f}"),
    ("test\nloss", lambda run: run.last("test_loss"), "{:.4g}"),
)


def _cell(value: Callable[[RunRecord], float | None], show: str) -> Callable[[RunRecord], str]:
    return lambda run: spread([value(run)], show)


# A title, and a run's cell.
TextColumn = tuple[str, Callable[[RunRecord], str]]
SCORE_COLUMNS: tuple[TextColumn, ...] = (
    ("run", lambda run: run.name),
    ("algorithm", lambda run: run.algorithm),
    ("rounds", rounds_text),
    *(
        (BEST[0], _best) if title == BEST[1] else (title, _cell(value, show))
        for title, value, show in SEED_COLUMNS
    ),
)
COST_COLUMNS: tuple[TextColumn, ...] = (
    ("down", lambda run: decimal(int(run.total("down_bytes")))),
    ("up", lambda run: decimal(int(run.total("up_bytes")))),
    ("wall\ntime", lambda run: duration(run.total("wall_s"))),
)

_OPTIONAL: tuple[NumberColumn, ...] = (
    ("validation\n%", lambda run: percent(run.last("validation_accuracy")), "{:.2f}"),
    ("validation\nloss", lambda run: run.last("validation_loss"), "{:.4g}"),
    ("top 5\n%", lambda run: percent(run.last("test_top5_accuracy")), "{:.2f}"),
    ("objective", lambda run: run.last("train_objective"), "{:.4g}"),
    ("clients\nmean %", lambda run: percent(run.last("client_accuracy_mean")), "{:.2f}"),
    ("worst\ndecile %", lambda run: percent(run.last("client_accuracy_worst_decile")), "{:.2f}"),
    ("local models\nmean %", lambda run: percent(run.last("local_model_accuracy_mean")), "{:.2f}"),
    (
        "worst\ndecile %",
        lambda run: percent(run.last("local_model_accuracy_worst_decile")),
        "{:.2f}",
    ),
)


def optional_scores(runs: Sequence[RunRecord]) -> list[NumberColumn]:
    """The columns of scores that are off by default, if at least one of these runs has them.

    Of the user's metrics only those on the test set: each has up to nine others.
    """
    keys = [key for key in metric_keys(runs) if key.startswith("test_")]
    own = [(key, _last(key), "{:.4g}") for key in keys]
    return [s for s in (*_OPTIONAL, *own) if any(s[1](run) is not None for run in runs)]


def metric_keys(runs: Sequence[RunRecord]) -> list[str]:
    """The keys of the user's metrics of all these runs that at least one has in its log."""
    keys = dict.fromkeys(key for run in runs for key in run.metric_keys)
    return [key for key in keys if any(run.last(key) is not None for run in runs)]


def number_values(runs: Sequence[RunRecord]) -> tuple[NumberValue, ...]:
    """``NUMBER_VALUES``, and the user's metrics of these runs."""
    return (*NUMBER_VALUES, *((key, _last(key)) for key in metric_keys(runs)))


def _last(key: str) -> Callable[[RunRecord], float | None]:
    return lambda run: run.last(key)


# The same for programs (CSV): keys with their units, and values of full precision.
RUN_VALUES: tuple[tuple[str, Callable[[RunRecord], Value]], ...] = (
    ("run", lambda run: run.name),
    ("algorithm", lambda run: run.algorithm),
    ("rounds", lambda run: run.rounds),
    ("rounds_done", lambda run: run.done),
    ("state", lambda run: run.state),
    ("diverged", lambda run: int(run.diverged)),
    ("chosen_on", lambda run: run.chosen_on),
    ("branch", lambda run: run.settings.get(BRANCH)),
)
NUMBER_VALUES: tuple[NumberValue, ...] = (
    ("test_accuracy", lambda run: run.last("test_accuracy")),
    ("best_accuracy", lambda run: run.best[1] if run.best else None),
    ("best_round", lambda run: run.best[0] if run.best else None),
    ("mean_accuracy", lambda run: run.mean_accuracy),
    ("accuracy_last100", lambda run: run.accuracy_last100),
    *((key, _last(key)) for key in SCORES if key != "test_accuracy"),
    ("lowest_loss", lambda run: run.lowest[1] if run.lowest else None),
    ("lowest_loss_round", lambda run: run.lowest[0] if run.lowest else None),
    ("down_bytes", lambda run: int(run.total("down_bytes"))),
    ("up_bytes", lambda run: int(run.total("up_bytes"))),
    ("wall_s", lambda run: run.total("wall_s")),
)
