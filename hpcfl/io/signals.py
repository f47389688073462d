"""Handle the signals that stop a run or ask for a checkpoint, and Ctrl-C.

During the rounds, ``Signals`` latches them, and the engine acts on them after a round, on all ranks
together.

At other times Ctrl-C (SIGINT) ends the ``hpcfl`` command.  While the program starts, it does so at
once and without a message: a KeyboardInterrupt in the middle of an import would become a traceback
of some library, or would be printed and lost.  Later it raises KeyboardInterrupt, so that the
command can clean up.  A second Ctrl-C ends the process at once.
"""

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, Self

from hpcfl.errors import INTERRUPTED, JobError, Stopped

EARLY = (signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP)
"""Sent by a batch system, or when a terminal closes, maybe while the program still starts."""
STOP = (*EARLY, signal.SIGINT)
SAVE = signal.SIGUSR2
_IMPORT = "<frozen importlib._bootstrap>"


class _Latched:
    """The signals that arrived before a ``Signals`` was open."""

    stop = 0
    save = False


def latch_early() -> None:
    """Latch the signals of ``EARLY`` from now on, for the next ``Signals`` that is opened.

    Call it before the slow imports and the set-up.  Without it such a signal would kill the process
    there, and a requested stop could not be distinguished from a crash.  Only a process's main
    thread can call it.
    """
    for number in EARLY:
        _handle(number, _latch_stop_early)
    signal.signal(SAVE, _latch_save_early)


def _handle(number: signal.Signals, handler: Callable[[int, FrameType | None], None]) -> Any:
    """Install a handler, unless it is of a SIGHUP that ``nohup`` ignores; return the one before."""
    before = signal.getsignal(number)
    if number != signal.SIGHUP or before != signal.SIG_IGN:
        signal.signal(number, handler)
    return before


def _latch_stop_early(number: int, frame: FrameType | None) -> None:
    _Latched.stop = _Latched.stop or number


def _latch_save_early(number: int, frame: FrameType | None) -> None:
    _Latched.save = True


def stopped(number: int, done: int, rounds: int) -> Stopped:
    """Make the error that ends a run stopped by the signal ``number``."""
    return Stopped(
        f"stopped by {signal.Signals(number).name} after round {done} of {rounds}, with a "
        "checkpoint: resume to continue"
    )


class Signals:
    """The signals that this process received; a context manager that latches them while open.

    It starts with the signals that ``latch_early`` latched.

    The first signal to stop counts.  Later ones (Slurm sends more than one) are ignored, except
    SIGINT (Ctrl-C) after another signal, which raises KeyboardInterrupt: the user does not want to
    wait.  If the context ends by Stopped in the ``hpcfl`` command, signals are still latched: the
    process is ending, and later signals must not change its exit code.

    Raises:
        JobError: at the beginning of the context: this is not the process's main thread, which
            alone can receive signals.
    """

    def __init__(self, *, latch_interrupt: bool = True) -> None:
        self.latch_interrupt = latch_interrupt
        """Whether a first SIGINT stops the run after the round, as other signals do; if not, it
        raises KeyboardInterrupt.  False while there is no round that a checkpoint would save."""
        self.stop = 0
        """The number of the signal that requested a stop, or 0."""
        self.save = False
        """Whether a signal requested a checkpoint."""
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is not threading.main_thread():
            raise JobError(
                f"found the thread {threading.current_thread().name}, expected the main thread, "
                "which alone gets the signals that stop a run; start it there, or in a process"
            )
        for number in STOP:
            self._before[number] = _handle(number, self._latch_stop)
        self._before[SAVE] = signal.signal(SAVE, self._latch_save)
        self.stop, self.save = self.stop or _Latched.stop, self.save or _Latched.save
        _Latched.stop, _Latched.save = 0, False
        return self

    def __exit__(self, *exception: object) -> None:
        if not (_Command.runs and isinstance(exception[1], Stopped)):
            for number, handler in self._before.items():
                signal.signal(number, handler)

    def _latch_stop(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGINT and (self.stop or not self.latch_interrupt):
            raise KeyboardInterrupt
        self.stop = self.stop or number

    def _latch_save(self, number: int, frame: FrameType | None) -> None:
        self.save = True


class _Command:
    """The state that decides how Ctrl-C ends this process."""

    runs = False
    """Whether this process is the ``hpcfl`` command; if not, signals are the caller's business."""
    resumable: Path | None = None
    """The run directory from whose checkpoints a resume can start, once it is known."""


def exit_on_interrupt() -> None:
    """Declare this process to be the ``hpcfl`` command; from now on Ctrl-C ends it at once."""
    _Command.runs = True
    # A KeyboardInterrupt in a ``__del__`` or in a callback of a library cannot be raised further:
    # Python would print a traceback and continue.
    sys.unraisablehook = _end_if_interrupted(sys.unraisablehook)
    signal.signal(signal.SIGINT, _end)


def raise_on_interrupt() -> None:
    """In the ``hpcfl`` command, raise KeyboardInterrupt on Ctrl-C from now on.

    A second one, or one that comes in the middle of an import, ends the process at once.
    """
    if _Command.runs:
        signal.signal(signal.SIGINT, _raise)


@contextmanager
def interrupt_ends() -> Iterator[None]:
    """In the ``hpcfl`` command, let the system end the process on Ctrl-C inside the block.

    For a library's call that may wait for ever: Python's handler runs after it has returned.
    """
    if not _Command.runs:
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def set_resumable(run: Path | None) -> None:
    """Set the run directory from whose checkpoints, if there are any, a resume can start.

    With it Ctrl-C ends the process with the exit code that requests a resume.
    """
    _Command.resumable = run


def interrupt_exit_code() -> int:
    """The exit code of a process that Ctrl-C ends: 75 where it can be resumed, else 130."""
    run = _Command.resumable
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
