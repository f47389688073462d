"""Send the rounds of a run to a tracker, from a thread: rounds neither wait for it nor fail by it.

RUN/tracker.json has the id of the tracked run, and the last round that was sent.  No checksum
covers the file, and no copy has it: a branch is another tracked run.
"""

import json
import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from queue import SimpleQueue
from typing import Any, NamedTuple

from hpcfl.errors import HpcflError, one_line
from hpcfl.io import regular
from hpcfl.io.atomic import write_file
from hpcfl.job.schema import TrackerConfig
from hpcfl.job.settings import Settings
from hpcfl.run_dir.tensorboard import curve_name
from hpcfl.run_dir.trackers import Row, Tracker
from hpcfl.types import Record

FLUSH_S = 10.0  # between two messages at least
FINISH_S, STOP_S = 60.0, 5.0  # that a run which is finished, or ends early, waits for the tracker
_WAITING = 60  # messages that the tracker has not taken; more mean that it hangs
_ROUNDS = 40  # in one call of the tracker
_LONG = 300  # characters of an error


class Tracked(NamedTuple):
    """What a run knows about its tracked run."""

    tracker: str
    project: str
    id: str | None
    sent: int
    """The last round that was sent; -1: none."""


def read_tracked(path: Path, config: TrackerConfig) -> Tracked:
    """Read what earlier starts sent to this tracker; of another one, or none, nothing was.

    Raises:
        ValueError: the file is damaged.
    """
    new = Tracked(config.name, config.project, None, -1)
    try:
        content = regular.read(path)
    except FileNotFoundError:
        return new
    found = json.loads(content)
    if not isinstance(found, dict) or set(found) != set(Tracked._fields):
        raise ValueError(f"expected an object with {', '.join(Tracked._fields)}")
    if type(found["sent"]) is not int or not isinstance(found["id"], str | None):
        raise ValueError(f"found id {found['id']!r}, sent {found['sent']!r}")
    tracked = Tracked(**found)
    return tracked if tracked[:2] == new[:2] else new


class Tracking:
    """Sends the rounds of one start of a run; its methods neither wait for the tracker nor raise.

    A failure is one line.  The next start sends the rounds that the tracker lacks, from the log.

    Args:
        tracker: takes the rounds.
        config: the job's section.
        path: of tracker.json.
        warn: prints a line.
    """

    def __init__(
        self, tracker: Tracker, config: TrackerConfig, path: Path, warn: Callable[[str], None]
    ) -> None:
        self._tracker, self._path, self._warn = tracker, path, warn
        self._rows: list[Row] = []
        self._queue: SimpleQueue[list[Row] | str] = SimpleQueue()  # a text is the run's status
        self._failure = ""  # of the thread
        self._given_up = False
        self._flushed = time.monotonic()
        try:
            self._tracked = read_tracked(path, config)
        except (ValueError, OSError) as e:
            warn(f"warning: {path}: {one_line(str(e))}; {config.name} gets another run")
            self._tracked = Tracked(config.name, config.project, None, -1)
        self._sent_before = self._tracked.sent

    def start(self, settings: Settings, name: str, log: Sequence[Mapping[str, Any]]) -> None:
        """Begin the thread, and send those rounds of the log that were not sent before.

        Args:
            settings: the configuration to show.
            name: of the run.
            log: the lines of the completed rounds.
        """
        self._thread = threading.Thread(
            target=self._serve, args=(settings, name), name="tracker", daemon=True
        )
        self._thread.start()
        for line in log:
            scalars = {key: value for key, value in line.items() if not isinstance(value, list)}
            self._add({key: math.nan if v is None else v for key, v in scalars.items()})
        self.flush()

    def round(self, record: Record) -> None:
        """Send a round, within ``FLUSH_S``."""
        self._add(record)
        if time.monotonic() - self._flushed > FLUSH_S:
            self.flush()

    def _add(self, record: Record) -> None:
        number = int(record["round"])
        # A round that a resume undid is run again with the same numbers, and not sent again.
        if number > self._sent_before and not self._given_up:
            values = {curve_name(k): float(v) for k, v in record.items() if k != "round"}
            self._rows.append(Row(number, time.time_ns() // 1_000_000, values))

    def flush(self) -> None:
        """Hand the collected rounds to the thread."""
        self._flushed = time.monotonic()
        if self._failure:
            self._give_up(self._failure)
        elif self._queue.qsize() > _WAITING:
            self._give_up("it does not answer")
        if self._rows and not self._given_up:
            self._queue.put(self._rows)
        self._rows = []

    def close(self, status: str) -> None:
        """Send the rest, and wait a while until the tracker has taken it.

        Args:
            status: "finished", "stopped", "diverged" or "failed".
        """
        self.flush()
        self._queue.put(status)
        # A run that is stopped has little time: the next start sends the rest.
        patience = FINISH_S if status == "finished" else STOP_S
        if not self._given_up:
            self._thread.join(patience)
            if self._thread.is_alive():
                self._give_up(f"it has not taken all within {patience:g} s")
            elif self._failure:
                self._give_up(self._failure)

    def _give_up(self, why: str) -> None:
        if not self._given_up:
            self._warn(
                f"warning: log.tracker: {self._tracked.tracker}: {why}; the run continues "
                "without it, and the next start sends the missing rounds"
            )
        self._given_up = True

    def _serve(self, settings: Settings, name: str) -> None:
        """The thread."""
        try:
            known = self._tracker.start(settings, name, self._tracked.id)
            self._save(self._tracked._replace(id=known))
            while not isinstance(rows := self._queue.get(), str):
                try:
                    for first in range(0, len(rows), _ROUNDS):
                        part = rows[first : first + _ROUNDS]
                        self._tracker.scores(part)
                        self._tracked = self._tracked._replace(sent=part[-1].round)
                finally:
                    self._save(self._tracked)
            self._tracker.end(rows)
        except Exception as e:  # noqa: BLE001 - whatever a tracker's package raises
            text = str(e) if isinstance(e, HpcflError) else f"{type(e).__name__}: {e}"
            self._failure = one_line(text)[:_LONG]

    def _save(self, tracked: Tracked) -> None:
        self._tracked = tracked
        write_file(self._path, json.dumps(tracked._asdict()).encode() + b"\n")
