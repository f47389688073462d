"""Start and observe one attempt of a run: the processes of ``hpcfl run`` or ``hpcfl resume``.

Only on Linux: /proc lists the processes and their open files.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Self
from uuid import uuid4

from hpcfl.sweep.process import mpirun

PATIENCE_S = 300.0
"""An attempt without a change in its files for so long counts as hanging."""
SCAN_S = 0.05  # between two scans of all processes of the machine

_PROC = Path("/proc")
_RANK = (b"PMI_RANK=", b"OMPI_COMM_WORLD_RANK=")
_OVERSUBSCRIBE = {  # allows more ranks than cores, in Open MPI 4 and 5; other MPIs ignore it
    "OMPI_MCA_rmaps_base_oversubscribe": "1",
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
}


class Attempt:
    """The processes of one start of a run; a context manager that leaves none behind.

    Args:
        ranks: how many; more than one are started by mpirun.
        arguments: of hpcfl.
        log: a file to which the output is appended.
        tracer: the command line of a tracer of one rank, which the rank's own is appended to.
        traced: the rank with the tracer.
    """

    def __init__(
        self,
        ranks: int,
        arguments: Sequence[str],
        log: Path,
        tracer: Sequence[str] = (),
        traced: int = 0,
    ) -> None:
        # In the environment of its processes, by which they are found.
        self._token = f"HPCFL_CHAOS={uuid4().hex}"
        name, _, value = self._token.partition("=")
        self._size = ranks
        self._rank_pids: list[int] = []  # the ranks' process ids, once all have started
        self._next_scan = 0.0
        self._log, self._log_start = log, log.stat().st_size if log.exists() else 0
        with log.open("ab") as file:
            self._process = subprocess.Popen(  # noqa: S603
                _command(ranks, [sys.executable, "-m", "hpcfl", *arguments], tracer, traced),
                env={"OMP_NUM_THREADS": "1", **_OVERSUBSCRIBE, **os.environ, name: value},
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C reaches only the bench, which ends the attempt
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.kill(self.processes())
        self._process.wait()

    @property
    def code(self) -> int | None:
        """The exit code; None while it runs."""
        return self._process.poll()

    def ranks(self) -> list[int]:
        """The process ids of the ranks that are running, rank 0 first."""
        found: dict[int, int] = {}
        for pid in self._own():
            try:
                words = (_PROC / str(pid) / "environ").read_bytes().split(b"\0")
                command = (_PROC / str(pid) / "cmdline").read_bytes().split(b"\0")
            except OSError:  # it ended meanwhile
                continue
            if command[:3] == [os.fsencode(sys.executable), b"-m", b"hpcfl"]:
                rank = next((w for w in words if w.startswith(_RANK)), b"=0")
                # A rank's own process id comes before those of the processes that it forked.
                found.setdefault(int(rank.partition(b"=")[2]), pid)
        return [found[rank] for rank in sorted(found)]

    def processes(self) -> list[int]:
        """The process ids of all that are running, the launcher included."""
        return sorted({*self._own(), *([] if self.code is not None else [self._process.pid])})

    def has_open(self, file: Path) -> bool:
        """Whether a rank has the file open; quick enough to be polled."""
        if len(self._rank_pids) < self._size and time.monotonic() >= self._next_scan:
            self._rank_pids, self._next_scan = self.ranks(), time.monotonic() + SCAN_S
        return any(os.fspath(file.resolve()) in _open_files(pid) for pid in self._rank_pids)

    def kill(self, pids: Sequence[int], number: signal.Signals = signal.SIGKILL) -> None:
        """Send a signal to processes; those that have ended are skipped."""
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    def has_survivors(self) -> bool:
        """Wait until all processes have ended; return True if some run on after ``PATIENCE_S``."""
        deadline = time.monotonic() + PATIENCE_S
        while self.processes():
            if time.monotonic() > deadline:
                return True
            time.sleep(0.01)
        return False

    def output_lines(self) -> list[str]:
        """The lines of this attempt's output so far."""
        with self._log.open("rb") as file:
            file.seek(self._log_start)
            return file.read().decode(errors="replace").splitlines()

    def _own(self) -> Iterator[int]:
        for path in _PROC.glob("[0-9]*"):
            with suppress(OSError):  # it has ended, or belongs to another user
                if self._token.encode() in (path / "environ").read_bytes().split(b"\0"):
                    yield int(path.name)


def _command(ranks: int, own: list[str], tracer: Sequence[str], traced: int) -> list[str]:
    """The command line of all ranks; ``tracer`` stands before that of one."""
    if ranks == 1:
        return [*tracer, *own]
    parts = [(traced, own), (1, [*tracer, *own]), (ranks - traced - 1, own)]
    words = [word for n, line in parts if n for word in (":", "-n", str(n), *line)]
    return [mpirun(), *words[1:]]


def _open_files(pid: int) -> list[str]:
    found = []
    with suppress(OSError):
        for link in (_PROC / str(pid) / "fd").iterdir():
            with suppress(OSError):
                found.append(str(link.readlink()))
    return found
