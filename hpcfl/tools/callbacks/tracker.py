"""The base of callbacks that send rounds to a tracker: rounds neither wait for it nor fail by it.

A thread sends them.  RUN/NAME.json has the id of the tracked run, and the last round that was sent.
No checksum covers the file, and no copy has it: a branch is another tracked run.
"""

import json
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Mapping, Sequence
from typing import ClassVar, NamedTuple

from hpcfl.engine.callbacks import Callback, RoundModel, RunStart
from hpcfl.errors import HpcflError, one_line
from hpcfl.io import regular
from hpcfl.io.atomic import write_file
from hpcfl.runs.job_file.settings import Settings, flatten
from hpcfl.runs.layout import RunDir
from hpcfl.tools.callbacks.curves import curves, logged
from hpcfl.types import Record

SEND_S = 10.0  # between two messages
FINISH_S, STOP_S = 60.0, 5.0  # that a run which is finished, or ends early, waits for the tracker
_WAITING = 20_000  # rounds that the tracker has not taken; more would fill the memory
_ROUNDS = 40  # in one call of the tracker
_LONG = 300  # characters of an error
_OF_START = ("ranks", "hpcfl", "python", "torch", "numpy", "git", "device", "processor", "gpu")


class LoggedRound(NamedTuple):
    """The numbers of one round."""

    round: int
    time_ms: int
    """When they were logged, since 1970."""
    values: Mapping[str, float]
    """By the names of their curves."""


class Tracker(Callback, ABC):
    """Sends every round once; a failure is one line, and the next start sends what is missing.

    A class for a tracker defines ``name``, and ``begin``, ``deliver`` and ``finish``, which run in
    a thread and raise what the tracker's package raises.

    Args:
        project: the project there.
        run: the name of the run there; that of the run directory when None.
    """

    name: ClassVar[str]

    def __init__(self, project: str = "hpcfl", run: str | None = None) -> None:
        self.project, self._run_name = project, run

    @abstractmethod
    def begin(self, run: RunStart, config: Settings, name: str, known: str | None) -> str:
        """Begin a tracked run, or continue one.

        Args:
            run: facts about the run.
            config: the resolved job, the run directory, and versions.
            name: of the run.
            known: the id of the tracked run to continue; None: begin one.

        Returns:
            The id of the tracked run.
        """

    @abstractmethod
    def deliver(self, rows: Sequence[LoggedRound]) -> None:
        """Send rounds, in order, each of them once."""

    @abstractmethod
    def finish(self, status: str) -> None:
        """Close the run: it is "finished", "stopped", "diverged" or "failed"."""

    def start(self, run: RunStart) -> None:
        """Begin the thread, with those rounds of the log that were not sent before."""
        self._file = run.directory / f"{self.name}.json"
        self._rows: deque[LoggedRound] = deque()
        self._left, self._ended, self._status = False, threading.Event(), ""
        try:
            self._id, self._sent = self._known()
        except (ValueError, TypeError, KeyError, OSError) as e:  # to be left as it is
            self._leave(one_line(f"{self._file}: {type(e).__name__}: {e}; move it elsewhere"))
            return
        self._sent_before = self._sent
        for record in logged(run.directory):
            self.round(record)
        begun = RunDir(run.directory).last_start
        config = flatten(run.job) | {"directory": str(run.directory)}
        config |= {key: begun[key] for key in _OF_START if key in begun}
        self._thread = threading.Thread(
            target=self._serve, args=(run, config), name="tracker", daemon=True
        )
        self._thread.start()

    def round(self, record: Record, model: RoundModel | None = None) -> None:
        """Send a round, within ``SEND_S``."""
        number = int(record["round"])
        if len(self._rows) > _WAITING:
            self._leave("it does not answer")
        # A round that a resume undid is run again with the same numbers, and not sent again.
        if not self._left and number > self._sent_before:
            self._rows.append(LoggedRound(number, time.time_ns() // 1_000_000, curves(record)))

    def end(self, status: str) -> None:
        """Send the rest, and wait a while until the tracker has taken it."""
        self._status = status
        self._ended.set()
        # A run that is stopped has little time: the next start sends the rest.
        patience = FINISH_S if status == "finished" else STOP_S
        if not self._left:
            self._thread.join(patience)
            if self._thread.is_alive():
                self._leave(f"it has not taken all within {patience:g} s")

    def _known(self) -> tuple[str | None, int]:
        """The id of the tracked run, and the last round that earlier starts sent; -1: none.

        Raises:
            ValueError, TypeError, KeyError, OSError: the file is damaged, or another one.
        """
        try:
            found = json.loads(regular.read(self._file))
            project, id, sent = str(found["project"]), str(found["id"]), int(found["sent"])
        except FileNotFoundError:
            return None, -1
        return (id, sent) if project == self.project else (None, -1)

    def _serve(self, run: RunStart, config: Settings) -> None:
        """The thread."""
        try:
            self._id = self.begin(run, config, self._run_name or run.directory.name, self._id)
            while True:
                self._save()
                ended = self._ended.wait(SEND_S)  # before the last rounds are taken
                while self._rows:
                    rows = [self._rows.popleft() for _ in range(min(_ROUNDS, len(self._rows)))]
                    self.deliver(rows)
                    self._sent = rows[-1].round
                    self._save()
                if ended:
                    break
            self.finish(self._status)
        except Exception as e:  # noqa: BLE001 - whatever a tracker's package raises
            text = str(e) if isinstance(e, HpcflError) else f"{type(e).__name__}: {e}"
            self._leave(one_line(text)[:_LONG])

    def _save(self) -> None:
        found = {"project": self.project, "id": self._id, "sent": self._sent}
        write_file(self._file, json.dumps(found).encode() + b"\n")

    def _leave(self, why: str) -> None:
        if not self._left:
            self._left = True
            self._rows.clear()
            sys.stderr.write(
                f"warning: callbacks: {self.name}: {why}; the run continues without it, and the "
                "next start sends the missing rounds\n"
            )
