"""The outputs of one start of a run: log, table of clients, progress line, user's callbacks."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from torch import nn

from hpcfl.comm.watched import WatchedComm
from hpcfl.engine.callbacks import Callbacks, RoundModel
from hpcfl.errors import DiskError, HookError, StoreError
from hpcfl.runs.client_table import ClientRow, ClientTable
from hpcfl.runs.history import outcome_of
from hpcfl.runs.layout import RunDir
from hpcfl.runs.log import NOTHING, LogPosition, RunLog, of_ranks
from hpcfl.start.progress import Progress
from hpcfl.types import Record, Vector


class Outputs:
    """Log, table of clients, progress and callbacks, of which rank 0 alone has any.

    Args:
        folder: the run directory.
        comm: the group of ranks.
        callbacks: the user's; none but on rank 0.
    """

    def __init__(self, folder: RunDir, comm: WatchedComm, callbacks: Callbacks) -> None:
        self.callbacks = callbacks
        self._folder, self._comm = folder, comm
        self._log: RunLog | None = None
        self._clients = ClientTable(folder.clients)
        self._progress: Progress | None = None

    @contextmanager
    def opened(self, progress: Progress, position: LogPosition) -> Iterator[None]:
        """Open the log for the block's rounds, and end the callbacks after it.

        Args:
            progress: prints lines for the user.
            position: the end of the log.

        Raises:
            DiskError, StoreError: a file cannot be closed; not raised if the rounds failed before.
            HookError: a callback failed at the end; likewise.
        """
        self._log = RunLog(self._folder.log if self._comm.rank == 0 else None, position)
        self._progress = progress
        try:
            yield
        except BaseException as e:
            # The error that ended the rounds is raised, not one of closing.
            for failure in self._close(outcome_of(e, self._comm.progress.round).ending):
                if isinstance(failure, HookError):
                    progress.note(f"warning: {failure}")
            raise
        failures = self._close("finished")
        if failures:
            raise failures[0]

    def record(self, record: Record, busy: Sequence[float], x: Vector, model: nn.Module) -> None:
        """Append to the log, show the round's progress, and call the callbacks.

        Raises:
            DiskError: the disk is full or fails.
            HookError: a callback failed.
        """
        if self._comm.rank != 0:
            return
        if self._log is None or self._progress is None:
            raise RuntimeError("the log is not open yet")
        self._log.write({**record, **of_ranks(busy)})
        self._progress.round(record)
        if self.callbacks:
            self._comm.progress.phase = "in a callback"
            self.callbacks.round(record, RoundModel(x, model))

    def write_clients(self, rows: Sequence[ClientRow]) -> None:
        """Append to the table of clients; on rank 0.

        Raises:
            DiskError: the disk is full or fails.
            StoreError: the table is damaged.
        """
        if self._comm.rank == 0:
            self._clients.write(rows)

    @property
    def log_position(self) -> LogPosition:
        """The log's length and checksum so far; nothing at the checkpoint of round 0."""
        return self._log.position if self._log else NOTHING

    @property
    def table_lines(self) -> int:
        """The lines of the table of clients so far; 0 but on rank 0.

        Raises:
            StoreError: the table cannot be read.
        """
        return self._clients.lines if self._comm.rank == 0 else 0

    def sync(self) -> None:
        """Flush the log and the table to the disk; called in the thread of a checkpoint.

        Raises:
            DiskError: the disk fails.
        """
        if self._log:
            self._log.sync()
        self._clients.sync()

    def require_in_place(self) -> None:
        """Refuse to commit a checkpoint where log or table is no longer the file that is written.

        Raises:
            LostFileError: it was deleted, replaced or changed.
        """
        if self._log:
            self._log.require_in_place()
        self._clients.require_in_place()

    def _close(self, status: str) -> list[Exception]:
        """Close the log and the table, and end the callbacks; the errors."""
        failures: list[Exception] = []
        for file in (self._log, self._clients):
            try:
                if file:
                    file.close()
            except (DiskError, StoreError) as e:
                failures.append(e)
        return [*failures, *self.callbacks.end(status)]
