"""``python -m hpcfl`` and the ``hpcfl`` command."""

from hpcfl.signals import STOP, exit_on_interrupt, latch_early

exit_on_interrupt()  # before any import that takes its time

import os  # noqa: E402
import signal  # noqa: E402
import sys  # noqa: E402

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
