"""Write RUN/events: the numbers of log.jsonl for TensorBoard, where it is installed."""

from io import BytesIO
from os import getpid
from pathlib import Path
from secrets import token_hex
from socket import gethostname
from time import monotonic, time_ns
from typing import Any

from hpcfl.io.atomic import write_errors
from hpcfl.run_dir.record import SCORES
from hpcfl.types import Record

FLUSH_S = 10  # between two times that a live TensorBoard sees more


class Events:
    """The events of one start of a run, on rank 0 alone.

    They are collected in memory and written now and then, on the thread of the rounds: the one of
    TensorBoard's own writer does not say in one line that the disk is full.

    Args:
        folder: is made where it is not there.
        done: rounds that are kept from earlier starts: TensorBoard forgets what lies beyond.

    Raises:
        DiskError: the disk is full or fails.
    """

    def __init__(self, folder: Path, done: int) -> None:
        # Here, not above: what a run without events need not wait for.
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.summary.writer.record_writer import RecordWriter

        self._event, self._summary = Event, Summary
        self._kept = BytesIO()
        self._records = RecordWriter(self._kept)
        name = f"events.out.tfevents.{time_ns() // 10**9}.{gethostname()}.{getpid()}.{token_hex(4)}"
        self._path, self._written = folder / name, monotonic()
        with write_errors(self._path):
            folder.mkdir(exist_ok=True)
            self._file = self._path.open("xb", buffering=0)
        self._add(file_version="brain.Event:2")
        started = SessionLog(status=SessionLog.START)
        self._add(step=done + 1 if done else 0, session_log=started)
        self.flush()

    def round(self, record: Record) -> None:
        """Take down a line of the log.

        Raises:
            DiskError: the disk is full or fails.
        """
        values = [
            self._summary.Value(tag=_tag(key), simple_value=value)
            for key, value in record.items()
            if key != "round"
        ]
        self._add(step=int(record["round"]), summary=self._summary(value=values))
        if monotonic() - self._written > FLUSH_S:
            self.flush()

    def flush(self) -> None:
        """Hand everything to the system.

        Raises:
            DiskError: the disk is full or fails.
        """
        content = self._kept.getvalue()
        self._kept.seek(0)
        self._kept.truncate()  # so that a failure is told once
        self._written = monotonic()
        with write_errors(self._path):
            while content:
                content = content[self._file.write(content) :]

    def close(self) -> None:
        """Write what is left.

        Raises:
            DiskError: the disk is full or fails.
        """
        try:
            self.flush()
        finally:
            with write_errors(self._path):
                self._file.close()

    def _add(self, **what: Any) -> None:
        event = self._event(wall_time=time_ns() / 1e9, **what)
        self._records.write(event.SerializeToString())


def _tag(key: str) -> str:
    """The name of a curve; TensorBoard puts those of one folder side by side."""
    if key in SCORES or key == "train_loss":
        return f"score/{key}"
    if key.endswith("_s") and not key.endswith("_per_s"):
        return f"time/{key}"
    return f"round/{key}"
