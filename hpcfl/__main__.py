"""``python -m hpcfl`` and the ``hpcfl`` command."""

import signal
import sys

from hpcfl import cli
from hpcfl.signals import STOP


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
