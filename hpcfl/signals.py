"""The signals of this process: those that stop a run or ask for a checkpoint, and Ctrl-C.

In the rounds of a run, ``Signals`` latches them and the engine acts on them after a round, on all
ranks together.  Ctrl-C (SIGINT) outside of the rounds ends the ``hpcfl`` command: while the program
starts, at once and without a message, since a KeyboardInterrupt raised in the middle of an import
becomes a traceback of a library's, or is printed and lost; once a command works, by a
KeyboardInterrupt, so that it can clean up.  A second Ctrl-C ends the process at once.
"""

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any, Self

from hpcfl.errors import INTERRUPTED, Stopped

STOP = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)
SAVE = signal.SIGUSR2
BATCH = (signal.SIGTERM, signal.SIGUSR1)
"""What a batch system sends to ask for a stop; it may do so while the program still starts."""
_IMPORT = "<frozen importlib._bootstrap>"


class _Latched:
    """What was asked of this process before a ``Signals`` was open."""

    stop = 0
    save = False


def latch_early() -> None:
    """Latch a batch system's signals from now on; the next ``Signals`` that opens takes them over.

    Called before the slow imports and the set-up, in which such a signal would kill the process:
    nothing would be left to tell a stop that was asked for from a crash.  Only a process's main
    thread can call it.
    """
    for number in BATCH:
        signal.signal(number, _latch_stop_early)
    signal.signal(SAVE, _latch_save_early)


def _latch_stop_early(number: int, frame: FrameType | None) -> None:
    _Latched.stop = _Latched.stop or number


def _latch_save_early(number: int, frame: FrameType | None) -> None:
    _Latched.save = True


def stopped(number: int, done: int, rounds: int) -> Stopped:
    """The end of a run that the signal ``number`` stopped after ``done`` of ``rounds`` rounds."""
    return Stopped(
        f"stopped by {signal.Signals(number).name} after round {done} of {rounds}, with a "
        "checkpoint: resume to go on"
    )


class Signals:
    """What was asked of this process; a context manager that listens while it is open.

    It begins with what ``latch_early`` latched.

    The first signal to stop counts; those that follow it (Slurm sends more than one) do not, but
    for a SIGINT (Ctrl-C) after another signal: whoever presses it twice does not want to wait.
    A context that ends by Stopped goes on latching: the process is on its way out, and signals
    that follow must not change its exit code.  Only a process's main thread can open it.
    """

    def __init__(self, *, latch_interrupt: bool = True) -> None:
        self.latch_interrupt = latch_interrupt
        """Whether a first SIGINT waits to be agreed on, as those of batch systems do; else it
        raises KeyboardInterrupt.  False while there is nothing that is worth the wait."""
        self.stop = 0
        """The number of the signal that asked for a stop, or 0."""
        self.save = False
        """Whether a checkpoint was asked for."""
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        for number in STOP:
            self._before[number] = signal.signal(number, self._latch_stop)
        self._before[SAVE] = signal.signal(SAVE, self._latch_save)
        self.stop, self.save = self.stop or _Latched.stop, self.save or _Latched.save
        _Latched.stop, _Latched.save = 0, False
        return self

    def __exit__(self, *exception: object) -> None:
        if not isinstance(exception[1], Stopped):
            for number, handler in self._before.items():
                signal.signal(number, handler)

    def _latch_stop(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGINT and (self.stop or not self.latch_interrupt):
            raise KeyboardInterrupt
        self.stop = self.stop or number

    def _latch_save(self, number: int, frame: FrameType | None) -> None:
        self.save = True


class _Command:
    """What Ctrl-C must know of the ``hpcfl`` command in this process."""

    runs = False
    """Whether this process is the ``hpcfl`` command; else signals belong to the caller."""
    resumes: Path | None = None
    """The run directory whose checkpoints the command resumes from, once it is known."""


def exit_on_interrupt() -> None:
    """From now on Ctrl-C ends this process, the ``hpcfl`` command, at once."""
    _Command.runs = True
    # Where KeyboardInterrupt cannot be raised (in a __del__, in a callback of a library), Python
    # would print a traceback and go on.
    sys.unraisablehook = _end_if_interrupted(sys.unraisablehook)
    signal.signal(signal.SIGINT, _end)


def raise_on_interrupt() -> None:
    """In the ``hpcfl`` command, raise KeyboardInterrupt on Ctrl-C from now on.

    A second one, or one that comes in the middle of an import, ends the process at once.
    """
    if _Command.runs:
        signal.signal(signal.SIGINT, _raise)


def set_resumable(run: Path | None) -> None:
    """Set the run directory whose checkpoints, if any, a resume of this command starts from.

    Ctrl-C then ends the process with the exit code that asks for a resume.
    """
    _Command.resumes = run


def interrupt_exit_code() -> int:
    """The exit code of a process that Ctrl-C ends: 75 where it can be resumed, else 130."""
    run = _Command.resumes
    resumable = run is not None and any(run.glob("checkpoints/*/manifest.json"))
    return Stopped.exit_code if resumable else INTERRUPTED


def _end(number: int, frame: FrameType | None) -> None:
    os._exit(interrupt_exit_code())


def _raise(number: int, frame: FrameType | None) -> None:
    signal.signal(signal.SIGINT, _end)
    while frame is not None:
        if frame.f_code.co_filename == _IMPORT:
            os._exit(interrupt_exit_code())
        frame = frame.f_back
    raise KeyboardInterrupt


def _end_if_interrupted(
    shown: Callable[["sys.UnraisableHookArgs"], object],
) -> Callable[["sys.UnraisableHookArgs"], object]:
    def hook(unraisable: "sys.UnraisableHookArgs") -> object:
        if issubclass(unraisable.exc_type, KeyboardInterrupt):
            os._exit(interrupt_exit_code())
        return shown(unraisable)

    return hook
