"""Compare a round on 1, 2, ... ranks with as many independent bare loops at the same time.

A round of LeNet has 20 clients of 250 random images: R ranks train them together, and each of R
bare loops trains 20 / R of them.  The processes of a side wait while another side runs; the time of
a turn is that of its slowest process.  The bare loops share the machine like the ranks do, but do
not communicate, and their times exclude the making of batches: the difference is the cost of that,
of the exact mean and of waiting for each other.
"""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path

from common import Measurement, Result, main, parser, take_turns
from hpcfl.errors import JobError
from hpcfl.tools.sweep.process import environment, mpirun
from round import BARE_NOTE, LENET, write_images

RANKS, TURNS, CLIENTS = (1, 2, 4), 7, 20
PAUSE_S = 0.01  # between two checks for files, so that waiting takes little CPU time


def bench_scaling(ranks: Sequence[int] | None, turns: int) -> Result:
    """Measure both sides on these numbers of ranks.

    Args:
        ranks: divisors of ``CLIENTS``; ``RANKS`` when None.
        turns: the number of measured rounds of each side, after one as a warm-up.

    Raises:
        JobError: a number does not divide the clients, there is no mpirun, or a process ended.
    """
    sizes = list(dict.fromkeys(ranks or RANKS))
    for size in sizes:
        if CLIENTS % size:
            raise JobError(f"scaling: --ranks {size}: does not divide {CLIENTS} clients")
    folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)  # ranks may outlive mpirun
    with folder as name, ExitStack() as stack:
        root = Path(name)
        write_images(root)
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
        functions = {key: side.run_round for key, side in sides.items()}
        times = take_turns(functions, turns, "scaling: rounds")
    figures = [
        Measurement(f"{n} at once", what, "s", seconds) for (n, what), seconds in times.items()
    ]
    return Result("scaling", report(figures), figures, {"clients": CLIENTS})


def report(figures: Sequence[Measurement]) -> str:
    """A line for each number of ranks; the speed-up is over the first of them."""
    first = figures[0]
    speed_up = f"speed-up over {first.subject}"
    lines = [
        f"{'':12} {'ranks':>10} {'bare loops':>12} {'ranks reach':>12} {speed_up:>25}    "
        f"({os.cpu_count()} cores)"
    ]
    for ranks, bare in zip(figures[::2], figures[1::2], strict=True):
        lines.append(
            f"{ranks.subject:12} {ranks.median:8.3f} s {bare.median:10.3f} s "
            f"{bare.over(ranks):11.1%} {first.over(ranks):24.2f}x"
        )
    lines.append(BARE_NOTE)
    return "\n".join(lines)


class _Side:
    """Processes of ``scaling_worker.py``, which run a round for each file ``go-K``."""

    def __init__(self, root: Path, size: int, what: str) -> None:
        self._folder = root / f"{size}-{what}"
        self._folder.mkdir()
        self._size, self._turn = size, 0
        self._log = self._folder / "output"
        own = [
            sys.executable,
            str(Path(__file__).with_name("scaling_worker.py")),
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

    def run_round(self) -> float:
        """Let the processes run the next round; return the seconds of the slowest one."""
        turn, self._turn = self._turn, self._turn + 1
        (self._folder / f"go-{turn}").touch()
        done = [self._folder / f"done-{turn}-{k}" for k in range(self._size)]
        while not all(path.exists() for path in done):
            if any(process.poll() is not None for process in self._processes):
                lines = self._log.read_text(errors="replace").strip().splitlines()
                raise JobError(f"scaling: a process ended: {(lines or ['silently'])[-1]}")
            time.sleep(PAUSE_S)
        return max(float(path.read_text()) for path in done)


def command(words: Sequence[str] | None = None) -> int:
    """Run by itself."""
    made = parser("A round on 1, 2, 4 ranks against as many bare loops side by side.")
    made.add_argument("--ranks", type=int, nargs="+", help="(default 1 2 4)")
    return main(made.parse_args(words), lambda o: bench_scaling(o.ranks, TURNS))


if __name__ == "__main__":
    sys.exit(command())
