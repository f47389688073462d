"""hpcfl, but a run's first start goes no further than its checkpoint of round 40 until it is ended.

What it computes is the same.
"""

import os
import sys
import time
from pathlib import Path

from hpcfl.__main__ import main
from hpcfl.engine import loop

POINT = Path(os.environ["HPCFL_OUT"], "checkpoints/00000040/manifest.json")
first = not POINT.exists()
run_round = loop.run_round


def held(run, *args):
    while first and POINT.exists() and not run.signals.stop:
        time.sleep(0.01)
    return run_round(run, *args)


loop.run_round = held
sys.exit(main())
