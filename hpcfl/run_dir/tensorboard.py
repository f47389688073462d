"""Write the numbers of log.jsonl to RUN/events, for TensorBoard."""

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

FLUSH_S = 10  # seconds between two writes at least; a running TensorBoard shows each


class Events:
    """The events of one start of a run; rank 0 alone writes them.

    They are collected in memory; ``round`` writes them to the file when ``FLUSH_S`` have passed
    since the last write.  TensorBoard's own writer has a thread in which a full disk ends in a
    traceback.

    Args:
        folder: where the file is made; the folder, too, if it is missing.
        done: rounds completed by earlier starts; TensorBoard drops their events of later rounds.

    Raises:
        DiskError: the disk is full or fails.
    """

    def __init__(self, folder: Path, done: int) -> None:
        # Imported here: it takes seconds, and most runs have no events.
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.summary.writer.record_writer import RecordWriter

        self._event, self._summary = Event, Summary
        self._buffer = BytesIO()
        self._records = RecordWriter(self._buffer)
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
        """Add the events of a round.

        Raises:
            DiskError: the disk is full or fails.
        """
        values = [
            self._summary.Value(tag=curve_name(key), simple_value=value)
            for key, value in record.items()
            if key != "round"
        ]
        self._add(step=int(record["round"]), summary=self._summary(value=values))
        if monotonic() - self._written > FLUSH_S:
            self.flush()

    def flush(self) -> None:
        """Write the collected events to the file.

        Raises:
            DiskError: the disk is full or fails.
        """
        content = self._buffer.getvalue()
        self._buffer.seek(0)
        # Emptied before the write: a failed write must not be tried, and reported, again.
        self._buffer.truncate()
        self._written = monotonic()
        with write_errors(self._path):
            while content:
                content = content[self._file.write(content) :]

    def close(self) -> None:
        """Write the remaining events, and close the file.

        Raises:
            DiskError: the disk is full or fails.
        """
        try:
            self.flush()
        finally:
            with write_errors(self._path):
                self._file.close()

    def _add(self, **fields: Any) -> None:
        event = self._event(wall_time=time_ns() / 1e9, **fields)
        self._records.write(event.SerializeToString())


def curve_name(key: str) -> str:
    """The name of a curve; TensorBoard and trackers group curves by the part before the slash."""
    of_metric = key.startswith(("test_", "validation_", "client_", "local_model_"))
    if key in SCORES or key == "train_loss" or (of_metric and key != "local_model_clients"):
        return f"score/{key}"
    if key.endswith("_s") and not key.endswith("_per_s"):
        return f"time/{key}"
    return f"round/{key}"
