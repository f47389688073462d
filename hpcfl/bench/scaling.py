"""Compare a round on 1, 2, ... ranks with as many bare loops that run side by side.

LeNet, 20 clients of 250 random images in a round: R ranks share them out, and each of R bare loops
trains 20 / R.  Each side's processes wait for their turn; a turn takes as long as its slowest
process.  What is lost is what ranks do together: the exact mean, and waiting for each other.
"""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path

from hpcfl.bench.interleave import take_turns
from hpcfl.bench.result import Figure, Result
from hpcfl.bench.round import LENET, images
from hpcfl.errors import JobError
from hpcfl.sweep.process import environment, mpirun

RANKS, TURNS, CLIENTS = (1, 2, 4), 7, 20
PAUSE_S = 0.01  # between two looks at the folder, so that waiting takes little CPU time


def bench_scaling(ranks: Sequence[int] | None, turns: int = TURNS) -> Result:
    """Measure both sides on these numbers of ranks.

    Args:
        ranks: divisors of ``CLIENTS``; ``RANKS`` when None.
        turns: a round each, of every side, after a warm-up.

    Raises:
        JobError: clients cannot be shared out evenly, there is no mpirun, or a process ended.
    """
    sizes = list(dict.fromkeys(ranks or RANKS))
    for size in sizes:
        if CLIENTS % size:
            raise JobError(f"bench scaling: --ranks {size}: does not divide {CLIENTS} clients")
    folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)  # ranks may outlive mpirun
    with folder as name, ExitStack() as stack:
        root = Path(name)
        images(root)
        changes = {"clients: 10": f"clients: {CLIENTS}", "size: 2": f"size: {CLIENTS}"}
        text = LENET.replace("ROOT", name)
        for old, new in changes.items():
            text = text.replace(old, new)
        (root / "job.yaml").write_text(text)
        sides = {
            (size, what): stack.enter_context(_Side(root, size, what))
            for size in sizes
            for what in ("ranks", "bare")
        }
        plays = {key: side.play for key, side in sides.items()}
        times = take_turns(plays, turns, "bench scaling: rounds")
    figures = [Figure(f"{n} at once", what, "s", seconds) for (n, what), seconds in times.items()]
    return Result("bench scaling", report(figures), figures, {"clients": CLIENTS})


def report(figures: Sequence[Figure]) -> str:
    """A line for each number of ranks."""
    first = figures[0]
    lines = [
        f"{'':12} {'ranks':>10} {'bare loops':>12} {'ranks reach':>12} {'speed-up':>9}    "
        f"({os.cpu_count()} cores)"
    ]
    for ranks, bare in zip(figures[::2], figures[1::2], strict=True):
        lines.append(
            f"{ranks.subject:12} {ranks.middle:8.3f} s {bare.middle:10.3f} s "
            f"{bare.over(ranks):11.1%} {first.over(ranks):8.2f}x"
        )
    return "\n".join(lines)


class _Side:
    """Processes that play a round when they are asked to."""

    def __init__(self, root: Path, size: int, what: str) -> None:
        self._folder = root / f"{size}-{what}"
        self._folder.mkdir()
        self._size, self._turn = size, 0
        self._log = self._folder / "said"
        own = [
            sys.executable,
            "-m",
            "hpcfl.bench.worker",
            str(root / "job.yaml"),
            str(self._folder),
        ]
        if what == "ranks" and size > 1:
            self._commands = [[mpirun(), "-n", str(size), *own, "0", "1"]]
        else:
            self._commands = [[*own, str(k), str(size)] for k in range(size)]

    def __enter__(self) -> "_Side":
        settings = environment(1, ())
        with self._log.open("ab") as log:
            self._processes = [
                subprocess.Popen(command, env=settings, stdout=log, stderr=log)  # noqa: S603
                for command in self._commands
            ]
        return self

    def __exit__(self, *_: object) -> None:
        (self._folder / "end").touch()
        for process in self._processes:
            with suppress(subprocess.TimeoutExpired):
                process.wait(20)
                continue
            process.kill()
            process.wait()

    def play(self) -> float:
        """Play the next round; the seconds that the slowest process took."""
        turn, self._turn = self._turn, self._turn + 1
        (self._folder / f"go-{turn}").touch()
        done = [self._folder / f"done-{turn}-{k}" for k in range(self._size)]
        while not all(path.exists() for path in done):
            if any(process.poll() is not None for process in self._processes):
                lines = self._log.read_text(errors="replace").strip().splitlines()
                raise JobError(f"bench scaling: a process ended: {(lines or ['silently'])[-1]}")
            time.sleep(PAUSE_S)
        return max(float(path.read_text()) for path in done)
