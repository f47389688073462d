"""Runs two jobs and resumes the first, in one process: ``several.py ROOT JOB [FAULT]``.

FAULT happens on the last rank between the first two runs.
"""

import os
import sys
from pathlib import Path

import hpcfl

ROOT, JOB = Path(sys.argv[1]), sys.argv[2]
FAULT = sys.argv[3] if len(sys.argv) > 3 else ""
NAMES = ("PMI_RANK", "OMPI_COMM_WORLD_RANK", "RANK")
LAST = next((os.environ[name] for name in NAMES if name in os.environ), "0") == "1"

first = hpcfl.run(JOB, ["rounds=2"], out=ROOT / "a")
if FAULT and LAST:
    if FAULT == "raise":
        raise RuntimeError("the flux capacitor is empty")
    sys.exit(3)
second = hpcfl.run(JOB, ["seed=5"], out=ROOT / "b")
again = hpcfl.resume(ROOT / "a", ["rounds=4"])
assert (first.rounds, second.rounds, again.rounds) == (2, 4, 4)
(ROOT / f"done-{os.getpid()}").touch()
