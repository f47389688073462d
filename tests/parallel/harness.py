"""Run a script under a real mpirun of this environment."""

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def find_mpirun() -> str:
    """This environment's mpirun, else the system's; skips the test if there is none at all."""
    folders = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    found = shutil.which("mpirun", path=folders)
    if found is None:
        reason = "no mpirun beside this Python nor on PATH: pip install mpi4py mpich"
        if os.environ.get("HPCFL_REQUIRE_MPI") == "1":
            pytest.fail(reason)
        pytest.skip(reason)
    return found


def environment(**changes: str) -> dict[str, str]:
    """The environment of a rank: this checkout importable, one thread."""
    return {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": "1",
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
        **changes,
    }


def mpirun(
    ranks: int, *args: str | Path, env: Mapping[str, str] | None = None, timeout: float = 300
) -> subprocess.CompletedProcess[str]:
    """Run ``python ARGS`` on ``ranks`` ranks; ``timeout`` (s) only protects against a hang."""
    command = [find_mpirun(), "-n", str(ranks), sys.executable, *map(str, args)]
    return subprocess.run(
        command,
        env=environment(**(env or {})),
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
