"""A private Slurm cluster of two nodes, with fake GPUs, for the session."""

import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.forked import PATIENCE_S, free_ports, program

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
ENDED = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL")


def make_fake(file, *hpcfl):
    """Make a program hpcfl whose ranks are those of ``fake_hpcfl``.

    Args:
        file: the program.
        hpcfl: the words that start hpcfl itself, which decides what is started.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    own, fake = shlex.join(map(str, hpcfl)), shlex.join(["python3", str(HERE / "fake_hpcfl")])
    text = f'#!/bin/sh\ncase $1 in batch) exec {own} "$@" ;; esac\nexec {fake} "$@"\n'
    file.write_text(text)
    file.chmod(0o755)


def write_jobs(folder):
    """A job and a sweep, which no test runs."""
    (folder / "a").mkdir()
    (folder / "a/quick.yaml").write_text("rounds: 9\n")
    (folder / "several.yaml").write_text("job: quickstart\ngrid: {seed: [0, 1, 2]}\n")


class Slurm:
    def __init__(self, directory, path, python):
        self.directory, self._python = directory, python
        self.env = {
            **os.environ,
            "PATH": path,
            "SLURM_CONF": str(directory / "slurm.conf"),
            # Slurm's pmi2 now and then loses a part of UCX's addresses; those of TCP are short.
            # Both nodes are this machine: its loopback is there, whatever devices come and go.
            "MPIR_CVAR_CH4_NETMOD": "ofi",
            "FI_PROVIDER": "tcp",
            "FI_TCP_IFACE": "lo",
        }

    def make_hpcfl(self, folder, *words):
        """Make a program hpcfl that starts ``python WORDS``."""
        folder.mkdir(exist_ok=True)
        file = folder / "hpcfl"
        file.write_text(f'#!/bin/sh\nexec {shlex.join([*self._python.command, *words])} "$@"\n')
        file.chmod(0o755)

    def call(self, *command, cwd=None, tries=1, **env):
        """Run a Slurm command and return what it printed."""
        for _ in range(tries):
            made = subprocess.run(
                command, env={**self.env, **env}, cwd=cwd,
                capture_output=True, text=True, check=False, timeout=PATIENCE_S,
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

        def up():
            if "down" not in self.call("sinfo", "-h", "-n", node, "-o", "%T", tries=5):
                return True
            resume = ("scontrol", "update", f"nodename={node}", "state=resume")
            # Refused where the node has come back since.
            subprocess.run(resume, env=self.env, capture_output=True, check=False)
            return False

        self.until(up)

    def wait(self, job, states=ENDED):
        """The job's fields once it is in one of the states for good."""

        def found():
            fields = self.show(job)
            return fields if fields["JobState"] in states else None

        return self.until(found)

    def until(self, ready):
        """Wait for what ``ready`` returns to be true, and return it.

        Where that takes too long, the test fails with what Slurm and its jobs say.
        """
        deadline = time.monotonic() + PATIENCE_S
        while not (found := ready()):
            if time.monotonic() > deadline:
                pytest.fail(f"not within {PATIENCE_S:g} s\n{self._situation()}")
            time.sleep(0.05)
        return found

    def _situation(self):
        jobs = self.call("scontrol", "show", "job", tries=5)
        nodes = self.call("scontrol", "show", "node", tries=5)
        outputs = {Path(path) for path in re.findall(r"StdOut=(\S+)", jobs)}
        files = (*sorted(outputs), *sorted((self.directory / "log").iterdir()))
        ends = [f"{file}:\n{file.read_text()[-8000:]}" for file in files if file.exists()]
        ps = subprocess.run(("ps", "-eHo", "pid,ppid,stat,etime,wchan:20,args"),
                            capture_output=True, text=True, check=True)  # fmt: skip
        return "\n\n".join([jobs, nodes, *ends, ps.stdout])


@pytest.fixture(scope="session")
def python():
    """Stands for the Python that runs the tests, and starts sooner."""
    with program() as python:
        yield python


@pytest.fixture(scope="session")
def slurm(tmp_path_factory, python):
    path = f"{os.environ['PATH']}:/usr/sbin"  # the daemons are on no user's path
    missing = [c for c in ("slurmctld", "slurmd", "srun") if not shutil.which(c, path=path)]
    if missing:
        give_up = pytest.fail if os.environ.get("HPCFL_REQUIRE_SLURM") else pytest.skip
        give_up(f"not installed: {', '.join(missing)}")
    directory = tmp_path_factory.mktemp("slurm")
    env = {**os.environ, "PATH": path}
    # No pipes: the daemons would hold them open.
    subprocess.run(
        [HERE / "cluster_up.sh", directory, str(free_ports(3)), "2", "32", "4"],
        env=env, check=True, stdout=subprocess.DEVNULL,
    )  # fmt: skip
    # hpcfl of the Python that runs the tests, and its mpirun.
    slurm = Slurm(directory, f"{directory}/bin:{Path(sys.executable).parent}:{path}", python)
    slurm.make_hpcfl(directory / "bin", "-m", "hpcfl")
    yield slurm
    subprocess.run([HERE / "cluster_down.sh", directory], env=env, check=True)


# Notes its options and what newer versions read besides, then starts what follows as one rank.
SRUN = """echo "${SLURM_TRES_PER_TASK:-}" >>tres
while [[ $1 == --* ]]; do echo "$1" >>srun; shift; done
SLURM_PROCID=0 SLURM_NTASKS=1 exec "$@"
"""


@pytest.fixture
def play(tmp_path, python):
    """Start run.sh, or another script that starts it, as the batch script of a job.

    Slurm itself is played: ``play.commands`` are its programs, which a test may replace.
    """
    write_jobs(tmp_path)
    folder = tmp_path / "bin"
    make_fake(folder / "hpcfl", *python.command, "-m", "hpcfl")

    def start(script, *words, plan="0", **env):
        for name, text in start.commands.items():
            (folder / name).write_text(f"#!/bin/bash\n{text}\n")
            (folder / name).chmod(0o755)
        (tmp_path / "plan").write_text(plan)
        job = {"SLURM_JOB_ID": "7", "SLURM_NNODES": "1", "SLURM_JOB_NODELIST": "node1"}
        own = {"PATH": f"{folder}:{os.environ['PATH']}", "HOME": str(tmp_path)}
        return subprocess.run(
            [ROOT / "slurm" / script, *words], cwd=tmp_path, env={**own, **job, **env},
            capture_output=True, text=True, check=False, timeout=60,
        )  # fmt: skip

    start.commands = {
        "srun": SRUN,
        "scontrol": '[ "$1" = requeue ] && echo "$2" >>requeued',
        "squeue": 'echo "RUNNING ${SLURM_RESTART_COUNT:-0}"',
        "scancel": 'echo "$@" >cancelled',
        "sleep": "exit 0",  # nobody is waited for
    }
    return start
