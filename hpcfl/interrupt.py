"""Ctrl-C (SIGINT) before and outside of the rounds of a run: what the ``hpcfl`` command does then.

While the program starts, nothing is to be kept: it ends at once, without a word.  A
KeyboardInterrupt would not do: raised in the middle of an import, it becomes a traceback of a
library's, or is printed and lost.  Once a command works, a KeyboardInterrupt lets it clean up; a
second Ctrl-C ends the process at once.  In the rounds of a run ``hpcfl.signals`` listens instead.
"""

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType

from hpcfl.errors import INTERRUPTED, Stopped

_IMPORT = "<frozen importlib._bootstrap>"


class _Start:
    """What this process has said of its start."""

    command = False
    """Whether it is the ``hpcfl`` command, whose signals are ours."""
    run: Path | None = None
    """The run directory whose checkpoints the command goes on from, once it is known."""


def begin() -> None:
    """Begin the ``hpcfl`` command: from now on Ctrl-C ends the process at once."""
    _Start.command = True
    # Where KeyboardInterrupt cannot be raised (in a __del__, in a callback of a library), Python
    # would print a traceback and go on.
    sys.unraisablehook = _end_if_interrupted(sys.unraisablehook)
    signal.signal(signal.SIGINT, _end)


def raise_once() -> None:
    """In the ``hpcfl`` command, raise KeyboardInterrupt on Ctrl-C from now on.

    A second one, or one that comes in the middle of an import, ends the process at once.
    """
    if _Start.command:  # else signals are those of the program that calls us
        signal.signal(signal.SIGINT, _raise)


def may_resume(run: Path | None) -> None:
    """Say that this process goes on from the checkpoints of ``run``, where there are any.

    A Ctrl-C ends it with the exit code that asks for a resume then.
    """
    _Start.run = run


def exit_code() -> int:
    """Of a process that Ctrl-C ends: 75 where a checkpoint stands that a resume goes on from."""
    stands = _Start.run is not None and any(_Start.run.glob("checkpoints/*/manifest.json"))
    return Stopped.exit_code if stands else INTERRUPTED


def _end(number: int, frame: FrameType | None) -> None:
    os._exit(exit_code())


def _raise(number: int, frame: FrameType | None) -> None:
    signal.signal(signal.SIGINT, _end)
    while frame is not None:
        if frame.f_code.co_filename == _IMPORT:
            os._exit(exit_code())
        frame = frame.f_back
    raise KeyboardInterrupt


def _end_if_interrupted(
    shown: Callable[["sys.UnraisableHookArgs"], object],
) -> Callable[["sys.UnraisableHookArgs"], object]:
    def hook(unraisable: "sys.UnraisableHookArgs") -> object:
        if issubclass(unraisable.exc_type, KeyboardInterrupt):
            os._exit(exit_code())
        return shown(unraisable)

    return hook
