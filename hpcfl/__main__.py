"""``python -m hpcfl`` and the ``hpcfl`` command."""

import sys

from hpcfl.cli import main

__all__ = ["main"]

if __name__ == "__main__":
    sys.exit(main())
