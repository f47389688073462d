"""``python -m hpcfl`` and the ``hpcfl`` command."""

from hpcfl import interrupt

interrupt.begin()  # before any import that takes its time

import signal  # noqa: E402
import sys  # noqa: E402

from hpcfl import cli  # noqa: E402
from hpcfl.signals import STOP  # noqa: E402


def main() -> int:
    """Run one command; the exit code, see :func:`hpcfl.cli.main`."""
    code = cli.main()
    # When the first rank has left, srun --kill-on-bad-exit sends SIGTERM to those still leaving.
    # Python's handlers end before the process does; an ignored signal stays ignored, so that every
    # rank ends with its own code (75: requeue) and not with 143.
    for number in STOP:
        signal.signal(number, signal.SIG_IGN)
    return code


if __name__ == "__main__":
    sys.exit(main())
