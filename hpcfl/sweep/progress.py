"""Show the progress of a sweep: bars on a terminal, and a line for every event."""

import fcntl
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from io import FileIO
from pathlib import Path
from typing import IO, Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn

from hpcfl.errors import one_line
from hpcfl.io import regular
from hpcfl.io.atomic import write_errors
from hpcfl.io.progress import has_bars, until_unread
from hpcfl.run_dir.sweep_log import completion, log_line


class SweepProgress:
    """Lines to a file and to a stream; on a terminal, a bar for the sweep and each of its runs.

    A context manager.

    Args:
        name: of the sweep.
        log: the file, appended to.
        total: how many runs there are.
        stream: standard error when absent.
    """

    def __init__(self, name: str, log: Path, total: int, stream: IO[str] | None = None) -> None:
        self._console = Console(file=until_unread(sys.stderr if stream is None else stream))
        self._path = log
        with self._opened() as file:
            file.write(completion(log, regular.read(log)))
        self._bars = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=None),
            MofNCompleteColumn(),
            console=self._console,
            auto_refresh=False,
            redirect_stdout=False,
            expand=True,
            disable=not has_bars(self._console),
        )
        self._whole = self._bars.add_task(one_line(name), total=total)
        self._tasks: dict[str, TaskID] = {}

    def __enter__(self) -> Self:
        self._bars.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._bars.stop()

    @contextmanager
    def _opened(self) -> Iterator[FileIO]:
        """Open the file to append to it; other parts of the sweep do so too, on other hosts.

        It is opened for each line, locked where the file system has locks: NFS otherwise appends
        at the end that this host remembers, over the lines of others.  Not through a buffer: a line
        is one write.

        Raises:
            DiskError: the disk is full or fails.
        """
        with write_errors(self._path), regular.open_append(self._path) as file:
            with suppress(OSError):
                fcntl.flock(file, fcntl.LOCK_EX)
            yield file

    def log_event(self, event: str, run: str, text: str) -> None:
        """Print an event and append it to the log: "12:30:01 finished fedcm-seed1: 60 rounds"."""
        line = one_line(f"{event:<8} {run}: {text}")
        with self._opened() as file:
            file.write(log_line(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {line}"))
        self._console.print(
            f"{time.strftime('%H:%M:%S')} {line}", markup=False, highlight=False, soft_wrap=True
        )

    def show(self, over: int, live: Mapping[str, tuple[int, int]]) -> None:
        """Update the bars.

        Args:
            over: how many runs have ended.
            live: the present runs, each with its rounds done and in all.
        """
        if self._bars.disable:
            return
        for run in self._tasks.keys() - live.keys():
            self._bars.remove_task(self._tasks.pop(run))
        for run, (done, rounds) in live.items():
            if run not in self._tasks:
                self._tasks[run] = self._bars.add_task(f"  {run}", total=rounds)
            self._bars.update(self._tasks[run], completed=done)
        self._bars.update(self._whole, completed=over)
        self._bars.refresh()
