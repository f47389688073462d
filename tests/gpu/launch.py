"""Start ranks on a GPU: under mpirun where there is one, else by torch's own launcher."""

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from hpcfl.errors import JobError
from hpcfl.tools.sweep import process
from tests.parallel.harness import environment, mpirun


def on_ranks(
    ranks: int, *args: str | Path, env: Mapping[str, str] | None = None, timeout: float = 300
) -> subprocess.CompletedProcess[str]:
    """Run ``python ARGS`` on ranks that start Python themselves: no fork has its parent's GPU.

    The arguments are those of ``mpirun`` of the harness.
    """
    try:
        process.mpirun()
    except JobError:
        return torchrun(ranks, *args, env=env, timeout=timeout)
    return mpirun(ranks, *args, env=env, timeout=timeout, anew=True)


def torchrun(
    ranks: int, *args: str | Path, env: Mapping[str, str] | None = None, timeout: float = 300
) -> subprocess.CompletedProcess[str]:
    """The same by torch's launcher."""
    words = ("-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}")
    return subprocess.run(
        [sys.executable, *words, *map(str, args)],
        env=environment(**(env or {})),
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
