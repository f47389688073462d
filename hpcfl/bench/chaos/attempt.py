"""One attempt of a run: the processes of ``hpcfl run`` or ``hpcfl resume``, seen from outside.

Linux alone: what processes there are and what they have open is read from /proc.
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
"""An attempt that shows nothing new for so long hangs."""
SCAN_S = 0.05  # between two looks at all processes of the machine

_PROC = Path("/proc")
_RANK = (b"PMI_RANK=", b"OMPI_COMM_WORLD_RANK=")
_MANY = {  # more ranks than cores, whichever Open MPI it is; others know neither
    "OMPI_MCA_rmaps_base_oversubscribe": "1",
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
}


class Attempt:
    """The processes of one start of a run; a context manager that leaves none behind.

    Args:
        ranks: more than one are started by mpirun.
        arguments: of hpcfl.
        log: gets what it says, after what others said.
        tracer: words that stand before the command of one rank.
        traced: which rank that is.
    """

    def __init__(
        self,
        ranks: int,
        arguments: Sequence[str],
        log: Path,
        tracer: Sequence[str] = (),
        traced: int = 0,
    ) -> None:
        self._token = f"HPCFL_CHAOS={uuid4().hex}"  # by which its processes are known
        name, _, value = self._token.partition("=")
        self._size = ranks
        self._first: list[int] = []  # the ranks, once they are all there
        self._scan = 0.0
        self._log, self._said = log, log.stat().st_size if log.exists() else 0
        with log.open("ab") as file:
            self._process = subprocess.Popen(  # noqa: S603
                _command(ranks, [sys.executable, "-m", "hpcfl", *arguments], tracer, traced),
                env={"OMP_NUM_THREADS": "1", **_MANY, **os.environ, name: value},
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C is the bench's, which ends the attempt itself
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
        """The process ids of the ranks that are there, rank 0 first."""
        found: dict[int, int] = {}
        for pid in self._own():
            try:
                words = (_PROC / str(pid) / "environ").read_bytes().split(b"\0")
                command = (_PROC / str(pid) / "cmdline").read_bytes().split(b"\0")
            except OSError:  # it ended meanwhile
                continue
            if command[:3] == [os.fsencode(sys.executable), b"-m", b"hpcfl"]:
                rank = next((w for w in words if w.startswith(_RANK)), b"=0")
                found.setdefault(
                    int(rank.partition(b"=")[2]), pid
                )  # the rank itself comes before the processes it forked
        return [found[rank] for rank in sorted(found)]

    def processes(self) -> list[int]:
        """All process ids, the launcher's too."""
        return sorted({*self._own(), *([] if self.code is not None else [self._process.pid])})

    def holds(self, file: Path) -> bool:
        """Whether a rank has the file open; quick, to be asked over and over again."""
        if len(self._first) < self._size and time.monotonic() >= self._scan:
            self._first, self._scan = self.ranks(), time.monotonic() + SCAN_S
        return any(os.fspath(file.resolve()) in _open_files(pid) for pid in self._first)

    def kill(self, pids: Sequence[int], number: signal.Signals = signal.SIGKILL) -> None:
        """Send them a signal."""
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    def outlived(self) -> bool:
        """Whether any process is still there long after one was killed."""
        deadline = time.monotonic() + PATIENCE_S
        while self.processes():
            if time.monotonic() > deadline:
                return True
            time.sleep(0.01)
        return False

    def words(self) -> list[str]:
        """The lines of its output."""
        with self._log.open("rb") as file:
            file.seek(self._said)
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
