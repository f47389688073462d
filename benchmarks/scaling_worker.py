"""A process of scaling.py: python scaling_worker.py JOB FOLDER NUMBER SHARES.

In a FOLDER whose name ends in "bare" it is a bare loop, which trains one of SHARES equal shares of
each cohort; else it is one of mpirun's ranks of the engine, or the only rank.  It runs a round for
each file FOLDER/go-K, and writes the seconds to FOLDER/done-K-RANK.
"""

import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from hpcfl.comm.connect import connect
from hpcfl.comm.failure import group
from hpcfl.job.load import load
from round import BareLoop
from timed_rounds import TimedRounds, build_timed_run

PAUSE_S = 0.01


def main(job: str, folder: str, number: str, shares: str) -> None:
    """Run a round for each file ``go-K``, until there is a file ``end``."""
    root = Path(folder)
    bare = root.name.endswith("bare")
    size = load(job).tree["cohort"]["size"]
    changes = [f"cohort.size={size // int(shares)}"] if bare else []
    loaded = load(job, changes)
    with ExitStack() as stack:
        comm = stack.enter_context(group(connect("auto", "cpu", 600.0, root)))
        own = root / f"own-{comm.rank + int(number)}"
        own.mkdir()
        components, run, _ = build_timed_run(loaded, own, stack, comm)
        run_round: Callable[[], float] = (
            BareLoop(components, run, 1) if bare else TimedRounds(run, 1)
        )
        turn = 0
        while _wait_for_turn(root, turn):
            comm.barrier()
            seconds = run_round()
            # Renamed once it is complete: the reader never sees half a number.
            result = own / "seconds"
            result.write_text(str(seconds))
            result.rename(root / f"done-{turn}-{comm.rank + int(number)}")
            turn += 1


def _wait_for_turn(root: Path, turn: int) -> bool:
    """Wait for the file of a turn; return False if the file ``end`` comes first."""
    while not (root / f"go-{turn}").exists():
        if (root / "end").exists():
            return False
        time.sleep(PAUSE_S)
    return True


if __name__ == "__main__":
    main(*sys.argv[1:])
