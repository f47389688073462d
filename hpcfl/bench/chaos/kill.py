"""End a run's process early: by SIGKILL or a signal to stop, at an instant or a system call."""

import shutil
import subprocess
from pathlib import Path
from random import Random
from signal import SIGINT, SIGKILL, SIGTERM, SIGUSR1, Signals
from typing import NamedTuple

# Kinds of system calls that change a disk, and the largest number of the call that is drawn.  With
# a leading "?", strace ignores a call that the machine does not have.
CALLS = {
    "write": ("?write,?writev", 40),
    "pwrite": ("?pwrite64,?pwritev,?pwritev2", 80),
    "fsync": ("?fsync,?fdatasync,?msync,?sync_file_range", 60),
    "rename": ("?rename,?renameat,?renameat2,?link,?linkat", 24),
    "remove": ("?unlink,?unlinkat,?rmdir", 30),
    "size": ("?truncate,?ftruncate,?fallocate", 3),
    "mkdir": ("?mkdir,?mkdirat", 8),
}
PHASES = {"import": 1, "resume": 3, "checkpoint": 4, "round": 4}
"""Phases in which random instants are drawn, and their weights."""
STOP_SIGNALS = (SIGTERM, SIGUSR1, SIGINT)
"""Signals at which a run finishes its round, writes a checkpoint and exits with 75."""
MOST_ROUNDS = 6  # the largest number of rounds, or of changes of the checkpoints, that is drawn


class Kill(NamedTuple):
    """How to end one attempt."""

    at: str
    """One of PHASES, or one of CALLS."""
    nth: int
    """Counted from 1: which call of the kind ``at``; or the completed rounds, or the changes of the
    folder of checkpoints, after which the signal is sent."""
    phase_fraction: float = 0.0
    """The instant in the phase, from 0 at its beginning to 1 at its end."""
    victim: float | None = None
    """The rank, as a fraction of the number of ranks; None: all ranks."""
    signal: Signals = SIGKILL
    """The signal that is sent."""

    @property
    def exact(self) -> bool:
        """Whether it is at a system call."""
        return self.at in CALLS

    @property
    def name(self) -> str:
        """A description for people."""
        who = "all ranks" if self.victim is None else "one rank"
        when = f"at a call of {self.at}" if self.exact else "at a random instant"
        return f"{self.signal.name} to {who}, {when}"

    def rank(self, ranks: int) -> int:
        """The number of the rank that is killed, out of ``ranks``."""
        return int((self.victim or 0.0) * ranks)


def draw_kill(draw: Random, *, exact: bool) -> Kill:
    """A kill at a system call of one rank; or at an instant, of one rank or all."""
    if exact:
        kind = draw.choice(list(CALLS))
        _, last = CALLS[kind]
        # At least half of these kills hit rank 0, which makes more kinds of calls than the others.
        first = draw.random() < 0.5
        nth = 1 + int(last * draw.random() ** 2)
        return Kill(kind, nth, victim=0.0 if first else draw.random())
    (at,) = draw.choices(list(PHASES), list(PHASES.values()))
    victim = draw.choice([None, draw.random()])
    return Kill(at, draw.randint(1, MOST_ROUNDS), draw.random(), victim)


def draw_stop(draw: Random) -> Kill:
    """A signal to stop, at an instant, to one rank or all."""
    return draw_kill(draw, exact=False)._replace(signal=draw.choice(STOP_SIGNALS))


def strace_command(kill: Kill, trace: Path) -> list[str]:
    """The words of strace before a command: SIGKILL at the ``nth`` call, before the kernel acts."""
    calls, _ = CALLS[kill.at]
    return [
        shutil.which("strace") or "strace",
        "-D",  # the tracer is a grandchild: the launcher's child is the rank itself
        *("-f", "-b", "execve"),  # its threads, not the programs it starts
        *("-y", "-qq", "-o", str(trace)),
        *("-e", f"trace={calls}", "-e", f"inject={calls}:signal=KILL:when={kill.nth}"),
    ]


def was_killed_at_call(trace: Path) -> bool:
    """Whether a trace shows a system call that never returned."""
    return trace.exists() and ") = ?" in " ".join(trace.read_text(errors="replace").split())


def why_no_strace(folder: Path) -> str | None:
    """Why strace cannot kill a process at a system call on this machine; None if it can."""
    if shutil.which("strace") is None:
        return "strace is not installed"
    trace = folder / "strace"
    command = [*strace_command(Kill("write", 1), trace), "echo"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
    trace.unlink(missing_ok=True)
    if done.returncode == -SIGKILL:
        return None
    words = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
    return f"strace cannot do it here ({words[-1]})"
