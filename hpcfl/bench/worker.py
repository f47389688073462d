"""A process of ``hpcfl bench scaling``: python -m hpcfl.bench.worker JOB FOLDER NUMBER SHARES.

Under mpirun, one of the ranks of the engine; else with SHARES 1 the engine alone, with more a bare
loop that trains one of so many shares of each cohort.  Each file FOLDER/go-K asks for a round.
"""

import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from hpcfl.bench.round import Bare
from hpcfl.bench.single_rank import Engine, single_rank
from hpcfl.comm.connect import connect
from hpcfl.comm.failure import group
from hpcfl.job.schema import load

PAUSE_S = 0.01


def main(job: str, folder: str, number: str, shares: str) -> None:
    """Run a round for each file ``go-K``, until there is a file ``end``."""
    place = Path(folder)
    bare = place.name.endswith("bare")
    size = load(job).job.cohort.participation(1)
    changes = [f"cohort.size={int(size) // int(shares)}"] if bare else []
    loaded = load(job, changes)
    with ExitStack() as stack:
        comm = stack.enter_context(group(connect("auto", "cpu", 600.0)))
        own = place / f"own-{comm.rank + int(number)}"
        own.mkdir()
        parts, run, _ = single_rank(loaded, own, stack, comm)
        play: Callable[[], float] = Bare(parts, run, 1) if bare else Engine(run, 1)
        turn = 0
        while _wait_for_turn(place, turn):
            comm.barrier()
            seconds = play()
            made = own / "seconds"
            made.write_text(str(seconds))
            made.rename(place / f"done-{turn}-{comm.rank + int(number)}")
            turn += 1


def _wait_for_turn(place: Path, turn: int) -> bool:
    """Wait for the file of a turn; return False at the end."""
    while not (place / f"go-{turn}").exists():
        if (place / "end").exists():
            return False
        time.sleep(PAUSE_S)
    return True


if __name__ == "__main__":
    main(*sys.argv[1:])
