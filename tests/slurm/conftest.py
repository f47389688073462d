"""A private Slurm cluster of two nodes, with fake GPUs, for the session."""

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.forked import free_ports

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
ENDED = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL")


class Slurm:
    def __init__(self, directory, path):
        self.directory = directory
        self.env = {
            **os.environ,
            "PATH": path,
            "SLURM_CONF": str(directory / "slurm.conf"),
            # Both nodes are this machine: ranks meet in its memory, whatever devices come and go.
            "UCX_TLS": "self,sm",
        }

    def call(self, *command, cwd=None, tries=1, **env):
        """Run a Slurm command and return what it printed."""
        for _ in range(tries):
            made = subprocess.run(
                command, env={**self.env, **env}, cwd=cwd,
                capture_output=True, text=True, check=False,
            )  # fmt: skip
            if made.returncode == 0:
                return made.stdout.strip()
            time.sleep(1)
        pytest.fail(f"{command}: {made.stderr}")

    def sbatch(self, *arguments, cwd, **env):
        return self.call("sbatch", "--parsable", *arguments, cwd=cwd, **env)

    def show(self, job):
        fields = self.call("scontrol", "show", "job", "-o", job, tries=5).split()
        return dict(field.split("=", 1) for field in fields if "=" in field)

    def use_again(self, node):
        """Wait until jobs may run on a node that was set down; it may also come back by itself."""
        while "down" in self.call("sinfo", "-h", "-n", node, "-o", "%T", tries=5):
            resume = ("scontrol", "update", f"nodename={node}", "state=resume")
            # Refused where the node has come back since.
            subprocess.run(resume, env=self.env, capture_output=True, check=False)
            time.sleep(0.1)

    def wait(self, job, states=ENDED):
        """The job's fields once it is in one of the states for good."""
        while (found := self.show(job))["JobState"] not in states:
            time.sleep(0.1)
        return found


@pytest.fixture(scope="session")
def slurm(tmp_path_factory):
    path = f"{os.environ['PATH']}:/usr/sbin"  # the daemons are on no user's path
    missing = [c for c in ("slurmctld", "slurmd", "srun") if not shutil.which(c, path=path)]
    if missing:
        give_up = pytest.fail if os.environ.get("HPCFL_REQUIRE_SLURM") else pytest.skip
        give_up(f"not installed: {', '.join(missing)}")
    directory = tmp_path_factory.mktemp("slurm")
    program = directory / "bin/hpcfl"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m hpcfl "$@"\n')
    program.chmod(0o755)
    env = {**os.environ, "PATH": path}
    # No pipes: the daemons would hold them open.
    subprocess.run(
        [HERE / "cluster_up.sh", directory, str(free_ports(3)), "2", "32", "4"],
        env=env, check=True, stdout=subprocess.DEVNULL,
    )  # fmt: skip
    # hpcfl of the Python that runs the tests, and its mpirun.
    yield Slurm(directory, f"{program.parent}:{Path(sys.executable).parent}:{path}")
    subprocess.run([HERE / "cluster_down.sh", directory], env=env, check=True)
