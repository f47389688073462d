"""Ranks of MPI that fail, as under Slurm, and end by themselves: ``failing.py FOLDER WAY``.

Every rank is a child of the process that mpirun started, which stays until all children have ended:
mpirun itself would kill the others as soon as one has failed.  FOLDER/code-RANK is the exit code.
"""

import os
import sys
import time
from pathlib import Path

from hpcfl.comm.launcher import detect

TIMEOUT_S = {"hangs": 0.5}  # else only against a hang


def written(path: Path) -> None:
    """Wait until a file is there."""
    while not path.exists():
        time.sleep(0.001)


def play(folder: Path, way: str) -> None:
    from hpcfl.comm.mpi import Mpi

    launch = detect(os.environ)._replace(launcher="slurm")
    comm = Mpi(launch, TIMEOUT_S.get(way, 600.0))
    comm.barrier()
    if (way == "two" and comm.rank < 2) or way == "three":
        comm.abort(74)
    elif way == "one" and comm.rank == 1:
        comm.abort(1)
    elif way == "last" and comm.rank == 0:
        comm.abort(74)
    elif way == "last":
        comm.close()
    elif way == "hangs":  # rank 2 never waits for others until they are gone
        passed = folder / "passed"  # the barrier above, in which it would hear of the others' end
        if comm.rank < 2:
            written(passed)
            comm.abort(74)
        passed.touch()
        for rank in range(2):
            written(folder / f"code-{rank}")
        os._exit(9)
    comm.barrier()
    comm.close()


def main(folder: Path, way: str) -> None:
    launch = detect(os.environ)
    child = os.fork()
    if not child:
        play(folder, way)
        return
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    part = folder / f"part-{launch.rank}"
    part.write_text(str(code))
    part.rename(folder / f"code-{launch.rank}")
    for rank in range(launch.size):
        written(folder / f"code-{rank}")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
