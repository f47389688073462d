"""The columns of a report: a title, and the value of each run."""

from collections.abc import Callable, Sequence
from functools import partial

from rich.filesize import decimal

from hpcfl.report.table import Value
from hpcfl.run_dir.record import SCORES, RunRecord


def percent(share: float | None) -> float | None:
    """A fraction in percent."""
    return None if share is None else 100 * share


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.2f}"


def _loss(loss: float | None) -> str:
    return "-" if loss is None else f"{loss:.4g}"


DIVERGED = (
    "diverged: a number was not finite, or the train loss of the last rounds is far above that of "
    "guessing and of the beginning; hpcfl status DIR has the numbers"
)
"""The meaning of the mark, as a caption."""


def _rounds(run: RunRecord) -> str:
    marks = [] if run.finished else [run.state]
    marks += ["diverged"] if run.diverged and "diverged" not in marks else []
    return " ".join([f"{run.done}/{run.rounds}", *marks])


def count_diverged(runs: Sequence[RunRecord]) -> str:
    """How many of the runs of a job diverged: " (1 diverged)"; nothing of none."""
    count = sum(run.diverged for run in runs)
    return f" ({count} diverged)" if count else ""


def _best(run: RunRecord) -> str:
    if run.best is not None:
        return f"{_percent(run.best[1])} @{run.best[0]}"
    return "-" if run.lowest is None else f"loss {_loss(run.lowest[1])} @{run.lowest[0]}"


def _mean_of_last(run: RunRecord) -> float | None:
    """The mean over the job's window, unless that has a column of its own."""
    return None if run.window == 100 and run.accuracy_last100 is not None else run.mean_accuracy


def _duration(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, whole = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{whole:02d}"


Cell = tuple[str, Callable[[RunRecord], str]]
SCORE_COLUMNS: tuple[Cell, ...] = (
    ("run", lambda run: run.name),
    ("algorithm", lambda run: run.algorithm),
    ("rounds", _rounds),
    ("accuracy\n%", lambda run: _percent(run.last("test_accuracy"))),
    ("best\n% @round", _best),
    ("mean of\nlast %", lambda run: _percent(_mean_of_last(run))),
    ("last\n100 %", lambda run: _percent(run.accuracy_last100)),
    ("test\nloss", lambda run: _loss(run.last("test_loss"))),
)
COSTS: tuple[Cell, ...] = (
    ("down", lambda run: decimal(int(run.total("down_bytes")))),
    ("up", lambda run: decimal(int(run.total("up_bytes")))),
    ("wall\ntime", lambda run: _duration(run.total("wall_s"))),
)

# A title, a run's value, and how values are shown.
Score = tuple[str, Callable[[RunRecord], float | None], str]
OVER_SEEDS: tuple[Score, ...] = (
    ("accuracy\n%", lambda run: percent(run.last("test_accuracy")), "{:.2f}"),
    ("best\n%", lambda run: percent(run.best[1] if run.best else None), "{:.2f}"),
    ("mean of\nlast %", lambda run: percent(_mean_of_last(run)), "{:.2f}"),
    ("last\n100 %", lambda run: percent(run.accuracy_last100), "{:.2f}"),
    ("test\nloss", lambda run: run.last("test_loss"), "{:.4g}"),
)
_OPTIONAL: tuple[Score, ...] = (
    ("top 5\n%", lambda run: percent(run.last("test_top5_accuracy")), "{:.2f}"),
    ("objective", lambda run: run.last("train_objective"), "{:.4g}"),
    ("clients\nmean %", lambda run: percent(run.last("client_accuracy_mean")), "{:.2f}"),
    ("worst\n10th %", lambda run: percent(run.last("client_accuracy_worst_decile")), "{:.2f}"),
    ("own models\nmean %", lambda run: percent(run.last("local_model_accuracy_mean")), "{:.2f}"),
    ("worst\n10th %", lambda run: percent(run.last("local_model_accuracy_worst_decile")), "{:.2f}"),
)


def optional_scores(runs: Sequence[RunRecord]) -> list[Score]:
    """The scores that are off by default, as far as one of these runs has them."""
    return [score for score in _OPTIONAL if any(score[1](run) is not None for run in runs)]


# For programs: keys, with their units.
NAMES: tuple[tuple[str, Callable[[RunRecord], Value]], ...] = (
    ("run", lambda run: run.name),
    ("algorithm", lambda run: run.algorithm),
    ("rounds", lambda run: run.rounds),
    ("rounds_done", lambda run: run.done),
    ("state", lambda run: run.state),
    ("diverged", lambda run: int(run.diverged)),
)
NUMBERS: tuple[tuple[str, Callable[[RunRecord], float | None]], ...] = (
    ("test_accuracy", lambda run: run.last("test_accuracy")),
    ("best_accuracy", lambda run: run.best[1] if run.best else None),
    ("best_round", lambda run: run.best[0] if run.best else None),
    ("mean_accuracy", lambda run: run.mean_accuracy),
    ("accuracy_last100", lambda run: run.accuracy_last100),
    *((key, partial(RunRecord.last, key=key)) for key in SCORES if key != "test_accuracy"),
    ("lowest_loss", lambda run: run.lowest[1] if run.lowest else None),
    ("lowest_loss_round", lambda run: run.lowest[0] if run.lowest else None),
    ("down_bytes", lambda run: int(run.total("down_bytes"))),
    ("up_bytes", lambda run: int(run.total("up_bytes"))),
    ("wall_s", lambda run: run.total("wall_s")),
)
