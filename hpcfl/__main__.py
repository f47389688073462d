"""``python -m hpcfl`` and the ``hpcfl`` command."""

import os
import sys


def _open_closed_streams() -> None:
    """Open /dev/null in place of each standard stream that is closed (``hpcfl run ... 2>&-``).

    Python sets such a stream to None, which nothing can print to.  And the next file that is opened
    gets the free descriptor 0, 1 or 2: output of a library would be written into a data file.
    """
    for descriptor, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest descriptor that is free: this one
            os.set_inheritable(descriptor, True)  # also for the programs that hpcfl starts
        if getattr(sys, name) is None:
            mode = "w" if descriptor else "r"
            stream = os.fdopen(
                descriptor, mode, encoding="utf-8", errors="backslashreplace", closefd=False
            )
            setattr(sys, name, stream)


_open_closed_streams()  # before any import that opens a file

from hpcfl.io.signals import STOP, exit_on_interrupt, latch_early  # noqa: E402

exit_on_interrupt()  # before any import that takes its time

import signal  # noqa: E402

LONG = ("run", "resume", "sweep")
"""The commands that a signal of ``STOP`` stops with a checkpoint."""


def main() -> int:
    """Run one command; the exit code, see :func:`hpcfl.cli.main.main`."""
    # Read when torch is loaded: the warnings of its C++ part repeat, with a stack of frames, what
    # the one line of an error says.
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    if sys.argv[1:2] and sys.argv[1] in LONG:
        latch_early()
    from hpcfl.cli.main import main as run_command  # slow, so only once signals are latched

    code = run_command()
    # When the first rank has left, srun --kill-on-bad-exit sends SIGTERM to those still leaving.
    # Python's handlers end before the process does; an ignored signal stays ignored, so that every
    # rank ends with its own code (75: requeue) and not with 143.
    for number in STOP:
        signal.signal(number, signal.SIG_IGN)
    return code


if __name__ == "__main__":
    sys.exit(main())
