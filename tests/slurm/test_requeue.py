"""hpcfl itself under Slurm: whatever happens to a job, it ends as if undisturbed."""

import json
import os
import shutil
import signal
import subprocess
from pathlib import Path

import numpy as np
import pytest

from tests.parallel.outcome import outcome

ROOT = Path(__file__).parents[2]
RUN = ROOT / "slurm/run.sh"
JOB = """\
data: {kind: arrays, path: ten.npz}
model: {name: linear}
cohort: {kind: uniform, size: 4}
algorithm: {name: scaffold}
local: {epochs: 1, batch_size: 8, lr: 0.1}
rounds: 300
evaluate: {every: 100, last: 1}
checkpoint: {every: 20, keep: 2}
seed: 7
"""
SWEEP = """\
job: job.yaml
set: {rounds: 3}
grid: {local.lr: [0.1, 0.2, 0.3]}
"""


@pytest.fixture(scope="module")
def here(tmp_path_factory):
    """A folder to submit from, with a job and its data."""
    folder = tmp_path_factory.mktemp("here")
    rng = np.random.default_rng(0)
    x = rng.normal(size=(160, 8)).astype(np.float32)
    y = x.argmax(1)
    np.savez(folder / "ten.npz", x=x, y=y, client=np.arange(160) % 10, x_test=x, y_test=y)
    (folder / "job.yaml").write_text(JOB)
    (folder / "sweep.yaml").write_text(SWEEP)
    return folder


@pytest.fixture(scope="module")
def undisturbed(slurm, here):
    slurm.call("hpcfl", "run", "job.yaml", "--out", "undisturbed", cwd=here)
    return outcome(here / "undisturbed")


@pytest.fixture
def going(slurm, here, request, tmp_path):
    """Submit the job and wait until it has come so far that it can be disturbed."""
    slurm.make_hpcfl(tmp_path, str(ROOT / "tests/slurm/held_hpcfl.py"))
    path = f"{tmp_path}:{slurm.env['PATH']}"

    def go(*options):
        run = here / request.node.name
        words = ("--open-mode=append", *options, str(RUN), "job.yaml")
        job = slurm.sbatch(*words, cwd=here, HPCFL_OUT=str(run), PATH=path)

        def held():
            assert slurm.show(job)["JobState"] in ("PENDING", "RUNNING"), said(here, job)
            return (run / "checkpoints/00000040/manifest.json").exists()

        slurm.until(held)
        return job, run

    return go


def said(here, job):
    output = here / f"hpcfl-{job}.out"
    return output.read_text() if output.exists() else ""  # before the job runs


def starts(run):
    """(rounds done at its beginning, ranks) of every start."""
    entries = map(json.loads, (run / "history.jsonl").read_text().splitlines())
    return [(entry["round"], entry["ranks"]) for entry in entries if "session" in entry]


def processes(job, *words):
    """The process ids whose environment names the job and the words."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            environ = (path / "environ").read_bytes().split(b"\0")
            command = (path / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        wanted = (f"SLURM_JOB_ID={job}", *words)
        if all(word.encode() in environ for word in wanted) and b"run" in command:
            found.append(int(path.name))
    return found


def requeued_once(slurm, here, job):
    ended = slurm.wait(job)
    assert (ended["JobState"], ended["Restarts"]) == ("COMPLETED", "1"), said(here, job)


def test_stopped_near_its_time_limit(slurm, here, going, undisturbed):
    """Four ranks on two nodes."""
    job, run = going("--nodes=2", "--ntasks-per-node=2")
    slurm.call("scancel", "--batch", "--signal=USR1", job)  # as --signal does
    requeued_once(slurm, here, job)
    (_, ranks), (round, again) = starts(run)
    assert (ranks, again) == (4, 4)
    assert round >= 40
    assert outcome(run) == undisturbed


def test_cancelled_and_submitted_again_on_another_number_of_nodes(slurm, here, going, undisturbed):
    job, run = going("--nodes=2")
    slurm.call("scancel", job)
    assert slurm.wait(job)["JobState"] == "CANCELLED"
    job = slurm.sbatch(str(RUN), "job.yaml", cwd=here, HPCFL_OUT=str(run))
    assert slurm.wait(job)["JobState"] == "COMPLETED", said(here, job)
    assert [ranks for _, ranks in starts(run)] == [2, 1]
    assert outcome(run) == undisturbed


def test_a_run_goes_back_or_is_copied_once(slurm, here, tmp_path):
    """Where the job that does so is requeued, it goes on from there."""
    words = ("job.yaml", "rounds=60", "checkpoint.keep=9")
    slurm.call("hpcfl", "run", *words, "--out", "whole", cwd=here)
    shutil.copytree(here / "whole", here / "back")
    slurm.make_hpcfl(tmp_path, str(ROOT / "tests/slurm/held_hpcfl.py"))
    path = f"{tmp_path}:{slurm.env['PATH']}"
    jobs = {}
    for name, words in (
        ("back", ("back", "--round", "20", "rounds=80")),
        ("copy", ("whole", "--round", "20", "--out", "copy", "local.lr=0.05")),
    ):
        jobs[name] = slurm.sbatch(str(RUN), *words, cwd=here, HPCFL_TEST_HELD=name, PATH=path)
    for name, job in jobs.items():
        kept = here / name / "checkpoints"
        slurm.until(lambda kept=kept: [f.name for f in sorted(kept.glob("*"))][-1:] == ["00000040"]
                    and (kept / "00000040/manifest.json").exists())  # fmt: skip
        slurm.call("scancel", "--batch", "--signal=USR1", job)
    for name, rounds in (("back", 80), ("copy", 60)):
        requeued_once(slurm, here, jobs[name])
        assert f"start 2: hpcfl resume {name}, 1 rank(s)" in said(here, jobs[name])
        *_, first, second = [round for round, _ in starts(here / name)]
        assert first == 20
        assert second >= 40
        assert outcome(here / name).round == rounds


def test_two_jobs_of_one_directory_in_one_second(slurm, here, going, undisturbed, tmp_path):
    """The second has seen no lock before it starts its ranks: it is requeued, and goes on."""
    first, run = going()
    real = shutil.which("flock")
    script = f'[ -n "$SLURM_RESTART_COUNT" ] || exit 0\nexec {real} "$@"\n'
    (tmp_path / "flock").write_text(f"#!/bin/sh\n{script}")
    (tmp_path / "flock").chmod(0o755)
    path = f"{tmp_path}:{slurm.env['PATH']}"
    second = slurm.sbatch(str(RUN), "job.yaml", cwd=here, HPCFL_OUT=str(run), PATH=path)
    slurm.until(lambda: " requeued: exit code 75" in said(here, second))
    assert "a run is alive in this directory" in said(here, second)
    slurm.call("scancel", first)
    requeued_once(slurm, here, second)
    assert outcome(run) == undisturbed


def test_a_node_is_lost(slurm, here, going, undisturbed):
    """With all that runs there; the script is on the other one."""
    job, run = going("--nodes=2", "--ntasks-per-node=1")
    daemon = int((slurm.directory / "run/slurmd.node2.pid").read_text())
    for process in (daemon, *processes(job, "SLURM_NODEID=1")):
        os.kill(process, signal.SIGKILL)
    slurm.until(lambda: slurm.show(job)["JobState"] != "RUNNING")
    subprocess.run(["slurmd", "-N", "node2"], env=slurm.env, check=True)  # repaired
    requeued_once(slurm, here, job)
    assert outcome(run) == undisturbed


def test_a_node_is_lost_but_the_ranks_there_live_on(slurm, here, going, undisturbed):
    """The next start waits for them; the script that lives on with them requeues nothing."""
    job, run = going("--ntasks=2")
    node = slurm.show(job)["BatchHost"]
    daemon = int((slurm.directory / f"run/slurmd.{node}.pid").read_text())
    os.kill(daemon, signal.SIGSTOP)  # Slurm reaches nothing on the node any more
    ranks = [*processes(job, "PMI_RANK=0"), *processes(job, "PMI_RANK=1")]
    try:
        slurm.call("scontrol", "update", f"nodename={node}", "state=down", "reason=test")
        slurm.until(lambda: "another start of this run is alive: it holds" in said(here, job))
        for rank in ranks:  # as their watchdog does
            os.kill(rank, signal.SIGKILL)
        requeued_once(slurm, here, job)
        slurm.until(lambda: " requeued already: " in said(here, job))
    finally:
        os.kill(daemon, signal.SIGCONT)
        slurm.use_again(node)
    assert outcome(run) == undisturbed


@pytest.mark.parametrize("ranks", [[1], [0, 1, 2]])
def test_the_disk_is_full(slurm, here, ranks):
    """For one rank or, as a shared disk is, for all at once.

    Slurm calls a step that MPI aborts killed, and would be asked to start it again."""
    full = str(ROOT / "tests/parallel/full")
    words = ("--ntasks=3", str(RUN), "job.yaml")
    job = slurm.sbatch(
        *words, cwd=here, HPCFL_OUT=f"full{len(ranks)}", HPCFL_TEST_ROUND="30",
        HPCFL_TEST_RANK=",".join(map(str, ranks)), PYTHONPATH=f"{full}:{ROOT}",
    )  # fmt: skip
    ended = slurm.wait(job)
    assert (ended["ExitCode"], ended["Restarts"]) == ("74:0", "0"), said(here, job)
    told = [rank for rank in range(3) if f"[rank {rank} of 3] DiskError: " in said(here, job)]
    assert told == ranks
    assert "not requeued: exit code 74: a disk is full" in said(here, job)


def test_an_array_of_seeds(slurm, here):
    words = ("--array=0-3", str(ROOT / "slurm/array.sh"), "job.yaml", "rounds=3")
    job = slurm.sbatch(*words, cwd=here, HPCFL_OUT="seeds")
    for seed in range(4):
        assert slurm.wait(f"{job}_{seed}")["JobState"] == "COMPLETED"
    models = {outcome(here / f"seeds/seed{seed}").server["x"] for seed in range(4)}
    assert len(models) == 4


def test_a_sweep_is_submitted_packed(slurm, here):
    (here / "slurm").symlink_to(ROOT / "slurm")
    submit = ("hpcfl", "sweep", "sweep.yaml", "--submit", "--parallel", "2")
    assert slurm.call(*submit, "--sbatch=--hold", cwd=here) == (
        "how far they are: hpcfl status runs/sweep"
    )
    status = ("hpcfl", "status", "runs/sweep")
    assert slurm.call(*status, cwd=here).splitlines()[-1] == "3 runs: 3 not started"
    (job,) = slurm.call("squeue", "-h", "--array-unique", "-o", "%F", cwd=here).split()
    slurm.call("scontrol", "release", job)
    for task in range(2):
        assert slurm.wait(f"{job}_{task}")["JobState"] == "COMPLETED"
    assert slurm.call(*status, cwd=here).splitlines()[-1] == "3 runs: 3 finished"
    assert slurm.call(*submit, cwd=here) == (
        "runs/sweep: nothing to submit: all runs are finished, or of tasks that run"
    )
