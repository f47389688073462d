"""Read what a run directory says of its run."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import Any

from hpcfl.errors import JobError, StoreError
from hpcfl.evaluation.divergence import Divergence, find_divergence
from hpcfl.io.files import present
from hpcfl.job.settings import Settings, flatten
from hpcfl.job.yaml_file import plain
from hpcfl.run_dir.history import Outcome, last_outcome, recorded_guess
from hpcfl.run_dir.layout import RunDir
from hpcfl.run_dir.log import LogReader, require_log_prefix
from hpcfl.run_dir.manifest import MANIFEST, newest

SCORES = (
    "test_loss",
    "test_accuracy",
    "test_top5_accuracy",
    "train_objective",
    "client_accuracy_mean",
    "client_accuracy_worst_decile",
    "local_model_accuracy_mean",
    "local_model_accuracy_worst_decile",
)
"""What an evaluation may leave in the log, see ``hpcfl.evaluation``."""


@dataclass(frozen=True)
class RunRecord:
    """A run as its directory tells it, finished or not."""

    path: Path
    algorithm: str
    rounds: int
    """How many rounds the job asks for."""
    window: int
    """The job's evaluate.last: every one of the last ``window`` rounds is evaluated."""
    log: tuple[Mapping[str, Any], ...]
    """One object per round, in order; round 0 is the initial model."""
    settings: Settings = field(default_factory=dict)
    """The job's values by their dotted keys."""
    fate: str = "unfinished"
    """Its state while it is not finished, see ``hpcfl.report.collect.state``."""
    guess_loss: float | None = None
    """The training loss of guessing, as the history has it, see ``hpcfl.evaluation.divergence``."""
    outcome: Outcome | None = None
    """How its newest start ended, as the history has it."""

    @property
    def name(self) -> str:
        """The directory's name."""
        return self.path.name

    @property
    def done(self) -> int:
        """Rounds completed."""
        return int(self.log[-1]["round"]) if self.log else 0

    @property
    def finished(self) -> bool:
        """Whether every round of the job is in the log."""
        return self.done >= self.rounds

    @property
    def state(self) -> str:
        """finished, else its fate."""
        return "finished" if self.finished else self.fate

    @cached_property
    def divergence(self) -> Divergence | None:
        """How far its training loss is from what it should be; None where it did not diverge."""
        return find_divergence(self.log, self.guess_loss)

    @property
    def diverged(self) -> bool:
        """Whether it diverged, to numbers that are not finite or to finite ones."""
        ending = self.outcome.ending if self.outcome and not self.finished else ""
        return ending == "diverged" or self.divergence is not None

    @cached_property
    def scores(self) -> dict[str, tuple[tuple[int, float], ...]]:
        """(round, value) of every evaluation, by the names of SCORES."""
        return {key: self.curve(key) for key in SCORES}

    def curve(self, key: str) -> tuple[tuple[int, float], ...]:
        """(round, value) of every round whose line of the log has the key."""
        found = ((entry["round"], entry.get(key)) for entry in self.log)
        return tuple((t, float(value)) for t, value in found if isinstance(value, int | float))

    def last(self, key: str) -> float | None:
        """The newest value of a score, or None where there is none."""
        return self.scores[key][-1][1] if self.scores[key] else None

    @property
    def best(self) -> tuple[int, float] | None:
        """(round, value) of the best test accuracy, the first of equals."""
        return max(self.scores["test_accuracy"], key=lambda score: score[1], default=None)

    @property
    def lowest(self) -> tuple[int, float] | None:
        """(round, value) of the lowest test loss, the first of equals."""
        losses = [score for score in self.scores["test_loss"] if not math.isnan(score[1])]
        return min(losses, key=lambda score: score[1], default=None)

    @property
    def mean_accuracy(self) -> float | None:
        """Mean test accuracy of the last ``window`` rounds, once the run is finished."""
        return self._mean_accuracy(self.window)

    @property
    def accuracy_last100(self) -> float | None:
        """Mean test accuracy of the last 100 rounds, if the run made and evaluated them all."""
        return self._mean_accuracy(100, whole=True)

    def _mean_accuracy(self, window: int, *, whole: bool = False) -> float | None:
        """Of the evaluated ones of the last ``window`` rounds; ``whole``: only if all are."""
        if not self.finished:
            return None
        first = max(self.rounds - window, 0)
        tail = [v for t, v in self.scores["test_accuracy"] if t > first]
        enough = len(tail) == window if whole else tail
        return math.fsum(tail) / len(tail) if enough else None

    def spent(self, *keys: str) -> dict[int, float]:
        """By rounds, the sum of what they and all before them spent; empty if none spent any."""
        sums = accumulate(math.fsum(entry.get(key) or 0 for key in keys) for entry in self.log)
        spent = {entry["round"]: total for entry, total in zip(self.log, sums, strict=True)}
        return spent if any(spent.values()) else {}

    def total(self, key: str) -> float:
        """The sum over the rounds of what a round spends ("wall_s", "down_bytes", "up_bytes")."""
        return math.fsum(entry.get(key, 0) for entry in self.log)


def with_history(run: RunRecord, history: Sequence[Mapping[str, Any]]) -> RunRecord:
    """The run with what its history tells of it, oldest first."""
    return replace(run, guess_loss=recorded_guess(history), outcome=last_outcome(history))


def read_run(path: Path) -> RunRecord:
    """Read a run directory; a run in progress, its last line cut short, is read up to there.

    Raises:
        JobError: the directory holds no run.
        StoreError: a file of the run is damaged.
    """
    folder = RunDir(path)
    job, log = read_job(path), LogReader(folder.log).read()
    require_log(folder)
    return replace(job, log=log)


def require_log(folder: RunDir) -> None:
    """Refuse a log that lacks rounds of the newest checkpoint; the run may be alive.

    Raises:
        StoreError: it does, or the checkpoint's manifest is damaged.
    """
    while True:
        found = newest(folder.checkpoints)
        if found is None:
            return
        try:
            require_log_prefix(folder.log, found.log)
        except StoreError:
            if present(found.folder / MANIFEST) and newest(folder.checkpoints) == found:
                raise
        else:
            return  # else a resume gave up the checkpoint meanwhile, and cut the log


def read_job(path: Path) -> RunRecord:
    """Read the job of a run directory alone, without its rounds.

    Raises:
        JobError: the directory holds no run.
        StoreError: the job is damaged.
    """
    folder = RunDir(path)
    if not present(folder.job):
        raise JobError(
            f"{path}: no job.yaml here, so this is no run directory; "
            "name the --out directory of a hpcfl run, or of a sweep"
        )
    try:
        job = plain(folder.read_job().tree)
        algorithm, rounds, window = (
            str(job["algorithm"]["name"]), int(job["rounds"]), int(job["evaluate"]["last"])
        )  # fmt: skip
    except StoreError:
        raise
    except (JobError, KeyError, TypeError, ValueError, OverflowError) as error:
        raise StoreError(
            f"{folder.job}: not the resolved job of a run (needs algorithm.name, rounds and "
            f"evaluate.last): {error}"
        ) from error
    return RunRecord(path, algorithm, rounds, window, (), flatten(job))
