"""Write the numbers of log.jsonl to RUN/events, for TensorBoard."""

from os import getpid
from secrets import token_hex
from socket import gethostname
from time import monotonic, time, time_ns
from typing import Any

from hpcfl.engine.callbacks import Callback, RoundModel, RunStart
from hpcfl.io.atomic import write_errors
from hpcfl.tools.callbacks.curves import curves, logged
from hpcfl.types import Record

FLUSH_S = 10  # seconds between two writes at least; a running TensorBoard shows each


class TensorBoard(Callback):
    """Writes a file of events at every start; it begins with the rounds that are in the log.

    TensorBoard's own writer has a thread in which a full disk ends in a traceback.
    """

    def start(self, run: RunStart) -> None:
        """Make the file; TensorBoard forgets what earlier starts wrote.

        Raises:
            DiskError: the disk is full or fails.
        """
        # Imported here: it takes seconds, and a job is also checked without a run.
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.summary.writer.record_writer import RecordWriter

        self._event, self._summary = Event, Summary
        name = f"events.out.tfevents.{time_ns() // 10**9}.{gethostname()}.{getpid()}.{token_hex(4)}"
        self._path = run.directory / "events" / name
        with write_errors(self._path):
            self._path.parent.mkdir(exist_ok=True)
            self._file = self._path.open("xb")
        self._records, self._flushed = RecordWriter(self._file), monotonic()
        self._add(file_version="brain.Event:2")
        self._add(step=0, session_log=SessionLog(status=SessionLog.START))
        for record in logged(run.directory):
            self.round(record)
        with write_errors(self._path):
            self._file.flush()

    def round(self, record: Record, model: RoundModel | None = None) -> None:
        """Add the events of a round.

        Raises:
            DiskError: the disk is full or fails.
        """
        points = curves(record).items()
        values = [self._summary.Value(tag=tag, simple_value=value) for tag, value in points]
        self._add(step=int(record["round"]), summary=self._summary(value=values))
        if monotonic() - self._flushed > FLUSH_S:
            self._flushed = monotonic()
            with write_errors(self._path):
                self._file.flush()

    def end(self, status: str) -> None:
        """Write the remaining events, and close the file.

        Raises:
            DiskError: the disk is full or fails.
        """
        with write_errors(self._path):
            self._file.close()

    def _add(self, **fields: Any) -> None:
        with write_errors(self._path):
            self._records.write(self._event(wall_time=time(), **fields).SerializeToString())
