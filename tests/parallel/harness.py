"""Run a script, or several jobs, under a real mpirun of this environment."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import yaml

from hpcfl.errors import JobError
from hpcfl.tools.sweep import process
from tests import forked

ROOT = Path(__file__).parents[2]


def find_mpirun() -> str:
    """This environment's mpirun, else the system's; skips the test if there is none at all."""
    try:
        return process.mpirun()
    except JobError as e:
        if os.environ.get("HPCFL_REQUIRE_MPI") == "1":
            pytest.fail(str(e))
        pytest.skip(str(e))


def environment(**changes: str) -> dict[str, str]:
    """The environment of a rank: this checkout importable, one thread."""
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(
            [str(ROOT), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
        ),
        "OMP_NUM_THREADS": "1",
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
        **changes,
    }


def mpirun(
    ranks: int,
    *args: str | Path,
    env: Mapping[str, str] | None = None,
    timeout: float = 300,
    anew: bool = False,
) -> subprocess.CompletedProcess[str]:
    """Run ``python ARGS`` under mpirun.

    Args:
        ranks: how many.
        args: "-m" and a module, or a script; then its arguments.
        env: variables to set.
        timeout: s; only protects against a hang.
        anew: every rank starts Python itself; without it, each is a ``forked.program``.
    """
    with ExitStack() as stack:
        python = [sys.executable] if anew else stack.enter_context(forked.program()).command
        return subprocess.run(
            [find_mpirun(), "-n", str(ranks), *python, *map(str, args)],
            env=environment(**(env or {})),
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )


def play_all(
    root: Path,
    jobs: Mapping[str, Mapping[str, Any]],
    ranks: int,
    *,
    stop: int = 0,
    mpi: bool = True,
    under: Sequence[Path] = (),
) -> None:
    """Play the jobs in one launch, each into ``root/NAME``; resume those that are there already.

    Args:
        root: gets the job files and the run directories.
        jobs: their contents, by name.
        ranks: how many.
        stop: after so many rounds a signal stops every one; 0: never.
        mpi: under mpirun if there are several ranks, else as torchrun starts them.
        under: a script that runs another one.
    """
    plan = []
    for name, job in jobs.items():
        file, out = root / f"{name}.yaml", root / name
        file.write_text(yaml.safe_dump(dict(job)))
        again = {"job": None, "how": {}}
        plan.append(
            {**(again if out.exists() else {"job": str(file)}), "out": str(out), "stop": stop}
        )
    launch(root, plan, ranks, mpi=mpi, under=under)


def launch(
    root: Path,
    plan: Sequence[Mapping[str, Any]],
    ranks: int,
    *,
    mpi: bool = True,
    under: Sequence[Path] = (),
) -> None:
    """Play a plan of ``runs.py``, which is written to ``root``, in one launch."""
    (root / "plan.json").write_text(json.dumps(plan))
    start = mpirun if mpi and ranks > 1 else forked.python
    done = start(ranks, *under, Path(__file__).with_name("runs.py"), root / "plan.json")
    assert done.returncode == 0, done.stderr
