"""Read a run from its directory: job, log, scores, outcome."""

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import Any, get_args

from hpcfl.errors import DiskError, JobError, StoreError
from hpcfl.io.files import present
from hpcfl.runs.branches import Branch, read_branches
from hpcfl.runs.divergence import find_divergence
from hpcfl.runs.history import (
    Outcome,
    ended_early,
    last_outcome,
    recorded_guess,
    recorded_init,
    recorded_machines,
    recorded_own_models,
    state_of,
)
from hpcfl.runs.job_file.settings import BRANCH, Settings, flatten
from hpcfl.runs.job_file.yaml_file import plain, relative_to_run
from hpcfl.runs.layout import RunDir, last_start
from hpcfl.runs.log import LogReader, require_log_prefix
from hpcfl.runs.log_keys import SIMULATED
from hpcfl.runs.manifest import (
    BRANCHES,
    MANIFEST,
    Checkpoint,
    committed_folders,
    newest,
    read_file,
)
from hpcfl.runs.run_score import ChosenOn, OwnModels, Quantity, Trained, score_key
from hpcfl.runs.score_names import METRIC_KEYS, OF_SERVER, SCORES, metric_name, score_named
from hpcfl.runs.sweep_log import Label
from hpcfl.user_code.names import short_name

_QUANTITIES: tuple[Quantity, ...] = get_args(Quantity)
_KEEPS_A_PART = ("fedbn", "fedper", "fedrep")  # methods whose clients keep a part of x


@dataclass(frozen=True)
class RunRecord:
    """A run as read from its directory, finished or not."""

    path: Path
    algorithm: str
    rounds: int
    """Rounds of the job."""
    window: int
    """The job's evaluate.last: every one of the last ``window`` rounds is evaluated."""
    log: tuple[Mapping[str, Any], ...]
    """An object for each round, in order; round 0 is the initial model."""
    settings: Settings = field(default_factory=dict)
    """The job's values by their dotted keys; of a branch, its course under BRANCH."""
    alive: bool | None = None
    """Whether it was running when it was read; None: nobody asked."""
    failed: bool = False
    """Whether the sweep that made it saw it fail last."""
    guess_loss: float | None = None
    """The training loss of guessing, from the history (``hpcfl.runs.divergence``)."""
    history: Sequence[Mapping[str, Any]] = ()
    """Its starts, and where it was copied, the oldest first."""
    unread: StoreError | DiskError | None = None
    """Why its history cannot be read; the numbers in its log stand all the same."""
    outcome: Outcome | None = None
    """How its newest start ended, from the history."""
    own_models: OwnModels | None = None
    """What is known of the clients' own models; None of a method that makes none."""
    machines: tuple[str, ...] = ()
    """The ranks and devices of its starts, from the history; several if they changed."""
    compared_on: ChosenOn | None = None
    """The examples on which all runs that it is compared with choose; None: its own, see
    ``chosen_on``."""
    branches: tuple[Branch, ...] = ()
    """Where it was branched from other runs, the oldest first."""
    labels: tuple[Label, ...] = ()
    """Its choices on the axes of its sweep; none where they are not known, or of another run."""
    inputs: Mapping[str, str] = field(default_factory=dict)
    """The digest of every input by name (``hpcfl.data.fingerprints``), of its newest checkpoint;
    none without a checkpoint. Of the file of ``model.init`` that of its first start."""

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
        """Whether every round of the job is in the log, or the run ended early on purpose."""
        return self.done >= self.rounds or ended_early(self.done, self.outcome)

    @property
    def state(self) -> str:
        """What it is now, see ``hpcfl.runs.history.state_of``."""
        return state_of(self.done, self.rounds, self.outcome, alive=self.alive, failed=self.failed)

    @cached_property
    def divergence(self) -> str | None:
        """By how much its training loss diverged; None if it did not."""
        return find_divergence(self.log, self.guess_loss)

    @property
    def diverged(self) -> bool:
        """Whether it diverged, also if all its numbers are finite."""
        ending = self.outcome.ending if self.outcome and not self.finished else ""
        return ending == "diverged" or self.divergence is not None

    @cached_property
    def scores(self) -> dict[str, tuple[tuple[int, float], ...]]:
        """(round, value) of every evaluation, by the names of SCORES and of the user's metrics."""
        return {key: self.curve(key) for key in (*SCORES, *self.metric_keys)}

    @property
    def metric_keys(self) -> tuple[str, ...]:
        """The keys that the user's metrics may have, and those of the algorithm's own numbers."""
        paths = self.settings.get("evaluate.metrics") or ()
        names = [metric_name(path) for path in paths if isinstance(path, str)]
        last = self.log[-1] if self.log else ()
        own = (key for key in last if key.startswith(OF_SERVER))
        return (*(key.format(name) for name in names for key in METRIC_KEYS), *own)

    def curve(self, key: str) -> tuple[tuple[int, float], ...]:
        """(round, value) of every round whose line in the log has the key."""
        found = ((entry["round"], entry.get(key)) for entry in self.log)
        return tuple((t, float(value)) for t, value in found if isinstance(value, int | float))

    def last(self, key: str) -> float | None:
        """The newest value of a score, NaN if it is not finite; None where there is none."""
        newest = next((entry[key] for entry in reversed(self.log) if key in entry), None)
        if newest is None:  # the log has null for numbers that are not finite
            return math.nan if self.scores.get(key) else None
        return float(newest)

    @property
    def personal(self) -> bool:
        """Whether it counts by the scores of the clients' own models, not by those of x."""
        # Fine-tuned models, for which there is a section, do not count where they begin with x.
        asked = self.settings.get("evaluate.personal")
        return self.own_models is not None and asked is not False

    def score_key(self, quantity: Quantity, on: ChosenOn = "test") -> str:
        """The key in the log of the score that it counts by."""
        return score_key(quantity, on, personal=self.personal)

    @property
    def score_of(self) -> str:
        """The model that its score is of: "global" or "personal"; and what is special about it."""
        own = self.own_models
        if own is None or not self.personal:
            return f"global{own.of_x}" if own else "global"
        return ", ".join(filter(None, ["personal", own.tested_on]))

    @property
    def validated(self) -> bool:
        """Whether it has validation scores of the model that it counts by."""
        return any(self.scores[self.score_key(name, "validation")] for name in _QUANTITIES)

    @property
    def chosen_on(self) -> ChosenOn:
        """What ``best`` and ``lowest`` choose on."""
        return self.compared_on or ("validation" if self.validated else "test")

    @property
    def best(self) -> tuple[int, float] | None:
        """(round, test accuracy) of the round with the best accuracy, the first of equals.

        It is that of the model that the run counts by; so are ``lowest`` and the means below.
        """
        return self._test_score_at(self.choice("accuracy"), "accuracy")

    @property
    def lowest(self) -> tuple[int, float] | None:
        """(round, test loss) of the round with the lowest loss, the first of equals."""
        return self._test_score_at(self.choice("loss"), "loss")

    def choice(self, name: Quantity) -> tuple[int, float] | None:
        """(round, score) of the best round on ``chosen_on``, the first of equals."""
        key = self.score_key(name, self.chosen_on)
        scores, sign = self.scores[key], 1 if score_named(key).better == "higher" else -1
        known = (score for score in scores if not math.isnan(score[1]))
        return max(known, key=lambda score: sign * score[1], default=None)

    def _test_score_at(
        self, chosen: tuple[int, float] | None, name: Quantity
    ) -> tuple[int, float] | None:
        tested = dict(self.scores[self.score_key(name)])
        return (chosen[0], tested[chosen[0]]) if chosen and chosen[0] in tested else None

    @property
    def mean_accuracy(self) -> float | None:
        """Mean test accuracy of the last ``window`` rounds, if all of them were evaluated."""
        return self._mean_accuracy(min(self.window, self.done))

    @property
    def accuracy_last100(self) -> float | None:
        """Mean test accuracy of the last 100 rounds, if it has so many and all were evaluated."""
        return self._mean_accuracy(100) if self.done >= 100 else None

    def _mean_accuracy(self, window: int) -> float | None:
        """Mean over the last ``window`` rounds; None unless all are done and were evaluated."""
        if not (self.finished and window):
            return None
        first = self.done - window
        tail = [v for t, v in self.scores[self.score_key("accuracy")] if t > first]
        return math.fsum(tail) / window if len(tail) == window else None

    def cumulative(self, *keys: str) -> dict[int, float]:
        """For each round, the sum of the keys' values up to it; empty if all are zero."""
        sums = accumulate(math.fsum(entry.get(key) or 0 for key in keys) for entry in self.log)
        cumulated = {entry["round"]: total for entry, total in zip(self.log, sums, strict=True)}
        return cumulated if any(cumulated.values()) else {}

    @property
    def simulated(self) -> dict[int, float]:
        """For each round, the simulated seconds up to it; empty without devices."""
        return dict(self.curve(SIMULATED))

    def total(self, key: str) -> float:
        """The sum of a key ("wall_s", "examples", "down_bytes", "up_bytes") over all rounds."""
        return math.fsum(entry.get(key, 0) for entry in self.log)


class RunReader:
    """Reads a run, also again and again: only what changed since the last time is parsed.

    Args:
        path: the run directory.
    """

    def __init__(self, path: Path) -> None:
        self._folder, self._log = RunDir(path), LogReader(RunDir(path).log)
        self._written_ns: tuple[int, int] | None = None
        self._job: RunRecord
        self._compared: Path | None = None  # the checkpoint that the log was compared with
        self._inputs: Mapping[str, str] = {}  # of that checkpoint

    def read(self, *, alive: bool | None = None, failed: bool = False) -> RunRecord:
        """Read the run as it is now; a last line of the log that is not complete is ignored.

        Args:
            alive: whether it is running, found out before: then the log of a run that is not is
                complete.  None: not known.
            failed: whether the sweep that made it saw it fail last.

        Raises:
            JobError: the directory holds no run.
            StoreError: a file of the run other than its history is damaged.
        """
        folder = self._folder
        written_ns = _written_ns(folder.job), _written_ns(folder.history)
        if written_ns != self._written_ns:  # a start or an end has written the history
            self._job = _with_history(read_record(folder.root), folder)
            # The next read tries again: an error of the disk may pass.
            self._written_ns = None if self._job.unread else written_ns
        log = self._log.read()
        newest_folder = next(iter(committed_folders(folder.checkpoints)[-1:]), None)
        if newest_folder != self._compared:  # once each: the comparison reads the whole log
            checkpoint = _require_log(folder)
            self._inputs = checkpoint.inputs if checkpoint else {}
            self._compared = newest_folder
        init = recorded_init(self._job.history)
        # A record has no checkpoint.
        inputs = {**last_start(self._job.history).get("inputs", {}), **self._inputs}
        inputs |= {"model.init": init} if init else {}
        return replace(self._job, log=log, inputs=inputs, alive=alive, failed=failed)


def read_run(path: Path) -> RunRecord:
    """Read a run directory once, see ``RunReader.read``."""
    return RunReader(path).read()


def _written_ns(path: Path) -> int:
    """When a file was last written; 0 where there is none."""
    return path.stat().st_mtime_ns if path.exists() else 0


def _with_history(run: RunRecord, folder: RunDir) -> RunRecord:
    """Add to a run the values that its history holds, or why that cannot be read."""
    try:
        history = _read_history(folder)
    except (StoreError, DiskError) as e:
        return replace(run, unread=e)
    return replace(
        run,
        history=history,
        guess_loss=recorded_guess(history),
        outcome=last_outcome(history),
        machines=recorded_machines(history),
        own_models=recorded_own_models(history, run.own_models),
    )


def _read_history(folder: RunDir) -> list[dict[str, Any]]:
    """Read the history, and check that its entries have the keys that are shown."""
    entries = folder.history_entries()
    for number, entry in enumerate(entries, 1):
        if "opened" in entry:  # a start that has not come to its rounds, or ended before
            continue
        needed = ("time", "round", "ranks") if "session" in entry else ("time", "round")
        absent = [key for key in needed if key not in entry]
        if absent:
            raise StoreError(f"{folder.history}:{number}: found no {absent[0]!r}: of no start")
    return entries


def _require_log(folder: RunDir) -> Checkpoint | None:
    """Refuse a log that lacks rounds of the newest checkpoint, which is returned.

    Raises:
        StoreError: it lacks some, or the checkpoint's manifest is damaged.
    """
    while True:
        found = newest(folder.checkpoints)
        if found is None:
            return None
        if BRANCHES in found.run_files:  # without this file, it would be reported as no branch
            read_file(folder.branches, "put it back")
        try:
            require_log_prefix(folder.log, found.log)
        except StoreError:
            # A run that is resumed meanwhile may delete the checkpoint and cut the log.
            if present(found.folder / MANIFEST) and newest(folder.checkpoints) == found:
                raise
        else:
            return found


def read_record(path: Path) -> RunRecord:
    """Read the job of a run directory, without its log.

    Raises:
        JobError: the directory holds no run.
        StoreError: the job is damaged.
    """
    folder = RunDir(path)
    if not present(folder.job):
        raise JobError(
            f"{path}: {_what(path)}, so this is no run directory; "
            "name the --out directory of an hpcfl run, or of a sweep"
        )
    try:
        # Kept files are named relative to the directory: runs of equal objects are of one job.
        job = plain(relative_to_run(folder.read_job().tree, path))
        algorithm, rounds, window = (
            short_name(str(job["algorithm"]["name"])),
            int(job["rounds"]),
            int(job["evaluate"]["last"]),
        )
    except StoreError:
        raise
    except (JobError, KeyError, TypeError, ValueError, OverflowError) as error:
        raise StoreError(
            f"{folder.job}: not the resolved job of a run (needs algorithm.name, rounds and "
            f"evaluate.last): {error}"
        ) from error
    settings, branches = flatten(job), read_branches(folder.branches)
    if branches:
        settings = {**settings, BRANCH: "; ".join(branch.course for branch in branches)}
    own = _own_models(algorithm, settings)
    return RunRecord(
        path, algorithm, rounds, window, (), settings, branches=branches, own_models=own
    )


def _own_models(algorithm: str, settings: Settings) -> OwnModels | None:
    """What a job tells of the clients' own models; the history of a new run has it."""
    x: Trained = "trained"
    if settings.get("algorithm.personal") == "all":
        x = "not trained"
    elif algorithm in _KEEPS_A_PART or settings.get("model.statistics") == "local":
        x = "partly trained"
    elif algorithm != "ditto" and settings.get("evaluate.personal") is not True:
        return None
    return OwnModels("holdout" if settings.get("data.holdout") else None, x)


def _what(path: Path) -> str:
    """What a path that holds no run is."""
    if not path.is_dir():
        return "is a file" if present(path) else "no such directory"
    empty = False
    with suppress(OSError):  # it may not be listed
        empty = not any(path.iterdir())
    return "is empty" if empty else "no job.yaml here"
