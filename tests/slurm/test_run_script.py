"""slurm/run.sh starts and requeues on a real Slurm.

What an exit code means is tested in tests/cli/test_batch.py, what needs no Slurm in test_played.py.
"""

import fcntl
import os
import shutil
import signal
import subprocess
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.slurm.conftest import make_fake, write_jobs

HERE = Path(__file__).parent
SLURM = HERE.parents[1] / "slurm"
RUN = SLURM / "run.sh"
COMMAND = "run a/quick.yaml --out runs/quick --continue"


@pytest.fixture
def place(slurm):
    """Make a folder one to submit from, whose .venv holds a fake hpcfl."""

    def make(folder):
        folder.mkdir(exist_ok=True)
        make_fake(folder / ".venv/bin/hpcfl", slurm.directory / "bin/hpcfl")
        write_jobs(folder)
        return folder

    return make


@pytest.fixture
def here(place, tmp_path):
    return place(tmp_path)


def submit(slurm, here, *plan, options=(), **env):
    (here / "plan").write_text("\n".join(plan))
    words = ("--ntasks=2", *options, str(RUN), "a/quick.yaml")
    return slurm.sbatch(*words, cwd=here, **env)


def starts(here, rank=0):
    """What the rank was started with, in order."""
    made = (here / "starts").read_text().splitlines() if (here / "starts").exists() else []
    return [line.removeprefix(f"{rank}/2 ") for line in made if line.startswith(f"{rank}/2 ")]


def tunables(here, out="runs/quick"):
    """What the ranks were told about the C library's memory."""
    return [(here / out / f"tunables.{rank}").read_text() for rank in (0, 1)]


def wait_for_starts(slurm, here, count):
    slurm.until(lambda: min(len(starts(here, rank)) for rank in (0, 1)) >= count)


def put(path, script):
    """A command that stands before Slurm's own."""
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def counters(here):
    """The files in which starts are counted."""
    return [path.name for path in here.rglob("*.starts")]


def said(here, job, name="hpcfl"):
    output = here / f"{name}-{job}.out"
    return output.read_text() if output.exists() else ""  # before the job runs


def signal_before_checkpoint(here):
    return (here / "runs/quick/checkpoints/00000007/manifest.json").read_text()


def test_a_run_that_ends_is_done(slurm, here):
    ended = slurm.wait(submit(slurm, here, "0"))
    assert (ended["JobState"], ended["Restarts"]) == ("COMPLETED", "0")
    assert starts(here) == starts(here, rank=1) == [COMMAND]
    assert tunables(here) == ["glibc.malloc.tcache_count=0"] * 2


def test_it_is_requeued_as_long_as_it_gets_on(slurm, here):
    """Stopped with a checkpoint, then killed after none."""
    job = submit(slurm, here, "75 7", "1", HPCFL_MAX_STARTS="1")
    ended = slurm.wait(job)
    assert (ended["JobState"], ended["ExitCode"], ended["Restarts"]) == ("FAILED", "1:0", "1")
    assert starts(here) == [COMMAND] * 2
    output = said(here, job)  # one file for all starts
    for line in (
        "start 1: hpcfl run",
        "to be requeued: exit code 75",
        "start 2: hpcfl run",
        "not requeued: exit code 1 and no checkpoint since the start; 1 starts in a row",
    ):
        assert output.count(f": {line}") == 1
    assert counters(here) == []


def test_ranks_that_leave_one_after_the_other_have_one_exit_code(slurm, here):
    ended = slurm.wait(submit(slurm, here, "apart 2"))
    assert (ended["JobState"], ended["ExitCode"]) == ("FAILED", "2:0")
    assert len(starts(here)) == 1


def test_starts_without_a_checkpoint_are_bounded_by_every_script(slurm, place, tmp_path):
    """A stop before the first round, for ever, as where the limit is not above the lead."""
    places = {name: place(tmp_path / name) for name in ("array", "landmarks", "chain")}
    for folder in places.values():
        (folder / "plan").write_text("75 0\n" * 3)
    (places["landmarks"] / "data").mkdir()
    (places["landmarks"] / "data/landmarks-256.h5").write_text("images")
    words = ("--array=3", "--ntasks=2", str(SLURM / "array.sh"), "a/quick.yaml")
    task = slurm.sbatch(*words, cwd=places["array"], HPCFL_MAX_STARTS="2")
    words = ("--ntasks-per-node=2", "--cpus-per-task=1", "--mem=0", "--gpus-per-node=1")
    large = slurm.sbatch(
        *words, str(SLURM / "landmarks.sh"), cwd=places["landmarks"], HPCFL_MAX_STARTS="1",
        HPCFL_SCRATCH=str(tmp_path / "scratch"), SLURM_TMPDIR="",
    )  # fmt: skip
    words = ("3", "--ntasks=2", str(RUN), "a/quick.yaml")
    made = slurm.call(
        str(SLURM / "chain.sh"), *words, cwd=places["chain"], HPCFL_MAX_STARTS="2"
    )  # fmt: skip
    links = made.partition(": ")[2].split()
    for name, job, restarts in (("array", f"{task}_3", "1"), ("landmarks", large, "0")):
        ended = slurm.wait(job)
        output = said(places[name], job, "landmarks" if name == "landmarks" else "hpcfl")
        found = (ended["JobState"], ended["ExitCode"], ended["Restarts"])
        assert found == ("FAILED", "75:0", restarts), output
        assert "starts in a row came to no new checkpoint (HPCFL_MAX_STARTS)" in output
        assert counters(places[name]) == []
    ended = [slurm.wait(job)["JobState"] for job in links]
    assert ended == ["FAILED", "FAILED", "CANCELLED"]
    assert counters(places["chain"]) == []


def test_a_limit_that_is_not_above_the_lead_is_told(slurm, here):
    """The signal may come at once, so the first start may be one of several."""
    job = submit(slurm, here, "0", "0", "0", options=["--time=1"])
    slurm.wait(job)
    line = "the time limit of 60 s is not well above 120 s, the lead of the signal to stop unless"
    assert line in said(here, job)


def test_a_lead_that_sbatch_takes_from_the_environment_is_known(slurm, here):
    job = submit(slurm, here, "0", options=["--time=3"], SBATCH_SIGNAL="B:USR1@10")
    slurm.wait(job)
    assert "not well above" not in said(here, job)


@pytest.fixture
def alive(here):
    """Hold a file of a run as a rank of an earlier start does."""
    with ExitStack() as held:

        def hold(name):
            (here / name).parent.mkdir(parents=True, exist_ok=True)
            file = held.enter_context((here / name).open("w"))
            fcntl.flock(file, fcntl.LOCK_EX)
            return file

        yield hold


def test_a_start_waits_for_every_rank_of_an_earlier_one(slurm, here, alive):
    """Rank 0, which alone holds the lock, may have been on another node."""
    held = [alive(f"runs/quick/stores/a-r000{rank}-s0000.h5") for rank in (1, 2)]
    job = submit(slurm, here, "0")
    for file in held:
        name = Path(file.name).relative_to(here)
        slurm.until(lambda name=name: f"it holds {name}" in said(here, job))
        assert starts(here) == []
        file.close()
    assert slurm.wait(job)["JobState"] == "COMPLETED", said(here, job)
    assert starts(here) == [COMMAND]


def test_a_sweep_waits_for_the_ranks_of_its_runs(slurm, here, alive):
    (here / "plan").write_text("0")
    file = alive("runs/several/seed0/stores/a-r0001-s0000.h5")
    job = slurm.sbatch("--ntasks=1", str(RUN), "several.yaml", cwd=here)
    line = "it holds runs/several/seed0/stores/a-r0001-s0000.h5"
    slurm.until(lambda: line in said(here, job))
    assert not (here / "starts").exists()
    file.close()
    assert slurm.wait(job)["JobState"] == "COMPLETED", said(here, job)


def test_jobs_with_gpus_are_requeued(slurm, place, tmp_path):
    """However they were asked for, every step of the script starts; a sweep has one node of two."""
    submitted = []
    for gpus in ("--gpus=3", "--gpus-per-node=2", "--gpus-per-task=1"):
        folder = place(tmp_path / f"job{gpus}")
        options = ["--nodes=2", gpus]
        submitted.append((folder, submit(slurm, folder, "apart 75 7", "0", options=options)))
    for gpus in ("--gpus=5", "--gpus-per-task=1"):
        folder = place(tmp_path / f"sweep{gpus}")
        (folder / "plan").write_text("1 7\n0")
        words = ("--nodes=2", "--ntasks=4", gpus, str(RUN), "several.yaml")
        submitted.append((folder, slurm.sbatch(*words, cwd=folder)))
    for folder, job in submitted:
        ended, output = slurm.wait(job), said(folder, job)
        assert (ended["JobState"], ended["Restarts"]) == ("COMPLETED", "1"), output
        assert "Unable to create step" not in output
    for folder, _ in submitted[3:]:
        assert (folder / "starts").read_text() == "0/1 sweep several.yaml --out runs/several\n" * 2


def test_a_job_is_requeued_once_the_controller_is_back(slurm, here):
    quick = here / "slurm.conf"  # of what asks the controller; else it would ask for a minute
    quick.write_text(
        (slurm.directory / "slurm.conf").read_text().replace("Timeout=60", "Timeout=2")
    )
    for name in ("squeue", "scontrol"):
        real = shutil.which(name, path=slurm.env["PATH"])
        put(here / ".venv/bin" / name, f'SLURM_CONF={quick} exec {real} "$@"')
    job = submit(slurm, here, "signal 75 7", "0")
    wait_for_starts(slurm, here, 1)
    slurm.call("scontrol", "shutdown", "slurmctld")  # which saves what it knows
    slurm.until(lambda: not (slurm.directory / "run/slurmctld.pid").exists())
    try:
        for rank in (0, 1):
            os.kill(int((here / f"runs/quick/pid0.{rank}").read_text()), signal.SIGUSR1)
        slurm.until(lambda: "Slurm does not requeue it: " in said(here, job))
    finally:
        subprocess.run(["slurmctld"], env=slurm.env, check=True)
    ended = slurm.wait(job)
    assert (ended["JobState"], ended["Restarts"]) == ("COMPLETED", "1"), said(here, job)
    assert said(here, job).count(" to be requeued: exit code 75") == 1


def test_preemption_signals_the_ranks_and_the_run_goes_on_after(slurm, here):
    job = submit(slurm, here, "signal 75 7", "0", options=["--nodes=2", "--exclusive"])
    wait_for_starts(slurm, here, 1)
    urgent = slurm.sbatch(
        "--partition=urgent", "--nodes=2", "--exclusive", "--wrap=true", cwd=here
    )  # fmt: skip
    assert slurm.wait(urgent)["JobState"] == "COMPLETED"
    ended = slurm.wait(job)
    assert (ended["JobState"], ended["Restarts"]) == ("COMPLETED", "1")
    assert signal_before_checkpoint(here) == "SIGUSR1"  # --signal, before the SIGTERM
    assert starts(here) == [COMMAND] * 2


def test_a_cancelled_run_stays_cancelled(slurm, here):
    job = submit(slurm, here, "signal 75 7", "0")
    wait_for_starts(slurm, here, 1)
    slurm.call("scancel", job)
    ended = slurm.wait(job)
    assert (ended["JobState"], ended["Restarts"]) == ("CANCELLED", "0")
    # Of itself or from the shell, which let the ranks write it.
    assert signal_before_checkpoint(here) in ("SIGTERM", "SIGUSR1")
    assert len(starts(here)) == 1


def test_the_environment_says_where_and_with_what_memory(slurm, here):
    other = "glibc.malloc.arena_max=2"
    slurm.wait(submit(slurm, here, "0", HPCFL_OUT="mine", GLIBC_TUNABLES=other))
    assert starts(here) == [COMMAND.replace("runs/quick", "mine")]
    assert tunables(here, "mine") == [f"{other}:glibc.malloc.tcache_count=0"] * 2


def test_a_job_file_is_asked_for(slurm, here):
    job = slurm.sbatch(str(RUN), cwd=here)
    array = slurm.sbatch("--array=0", str(SLURM / "array.sh"), cwd=here)
    for asked, name in ((job, job), (array, f"{array}_0")):
        assert slurm.wait(asked)["ExitCode"] == "2:0"
        assert "usage: sbatch" in (here / f"hpcfl-{name}.out").read_text()


def test_a_signal_to_the_shell_stops_the_ranks(slurm, here):
    """Also one of them that knows none yet, and dies: it was asked for."""
    job = submit(slurm, here, "signal 75 7", "forever", HPCFL_MAX_STARTS="1")
    wait_for_starts(slurm, here, 1)
    slurm.call("scancel", "--batch", "--signal=TERM", job)
    wait_for_starts(slurm, here, 2)
    slurm.call("scancel", "--batch", "--signal=USR1", job)
    ended = slurm.wait(job)
    assert (ended["ExitCode"], ended["Restarts"]) == ("138:0", "1")
    assert signal_before_checkpoint(here) == "SIGUSR1"
    assert "not requeued: stopped by exit code 138; 1 starts in a row" in said(here, job)


# Chains and arrays


def chained(slurm, here, *plan):
    """The jobs of a chain of three, when all of them are over."""
    (here / "plan").write_text("\n".join(plan))
    words = ("3", "--ntasks=2", str(RUN), "a/quick.yaml")
    made = slurm.call(str(SLURM / "chain.sh"), *words, cwd=here)
    return [slurm.wait(job) for job in made.partition(": ")[2].split()]


def test_a_chain_goes_on_and_ends_when_the_run_is_finished(slurm, here):
    ended = chained(slurm, here, "75 7", "0")
    assert [job["JobState"] for job in ended] == ["FAILED", "COMPLETED", "CANCELLED"]
    assert [job["Restarts"] for job in ended] == ["0"] * 3
    assert starts(here) == [COMMAND] * 2


def refused(slurm, here, *words):
    """What chain.sh says, and the jobs that are left."""
    path = f"{here / 'bin'}:{slurm.env['PATH']}"
    made = subprocess.run(
        [SLURM / "chain.sh", "3", *words, RUN, "a/quick.yaml"],
        env={**slurm.env, "PATH": path}, cwd=here, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert made.returncode
    left = slurm.call("squeue", "-h", "-t", "PENDING", "-o", "%j").split()
    return made.stderr, [name for name in left if name.startswith("chain-")]


def test_a_chain_that_cannot_be_submitted_leaves_nothing(slurm, here):
    real = shutil.which("sbatch", path=slurm.env["PATH"])
    put(here / "bin/sbatch", f'case "$*" in *afterany*) exit 1; esac; exec {real} "$@"')
    said, left = refused(slurm, here)
    assert said.startswith("chain.sh: not all 3 jobs could be submitted")
    assert not left


@pytest.mark.parametrize("option", ["--job-name=mine", "-Jmine", "--dependency=singleton", "-d"])
def test_a_chain_keeps_its_own_options(slurm, here, option):
    said, left = refused(slurm, here, option)
    assert said.startswith(f"chain.sh: {option}: leave it out")
    assert not left


def test_a_chain_ends_when_the_run_is_broken(slurm, here):
    ended = chained(slurm, here, "2")
    assert [job["JobState"] for job in ended] == ["FAILED", "CANCELLED", "CANCELLED"]
    assert len(starts(here)) == 1


def test_a_task_of_an_array_is_requeued_alone(slurm, here):
    """Also the last one, whose id is that of the whole array; by scripts in any folder."""
    shutil.copytree(SLURM, here / "my scripts")
    (here / "plan").write_text("0\n75 7\n0")
    words = ("--array=5,6%1", "--ntasks=2", "my scripts/array.sh", "a/quick.yaml", "mu=1")
    job = slurm.sbatch(*words, cwd=here)
    ended = [slurm.wait(f"{job}_{task}") for task in (5, 6)]
    assert [task["Restarts"] for task in ended] == ["0", "1"]
    assert {task["JobState"] for task in ended} == {"COMPLETED"}
    run = "run a/quick.yaml mu=1 seed={0} --out runs/quick-mu1-seeds/seed{0} --continue"
    seeds = [run.format(seed) for seed in (5, 6)]
    assert starts(here) == [*seeds, seeds[1]]


def test_data_are_staged_once_a_node(slurm, here):
    """And the large run goes on under the name of what the user said."""
    (here / "plan").write_text("0")
    (here / "data").mkdir()
    (here / "data/landmarks-256.h5").write_text("images")
    scratch = here / "scratch"
    job = slurm.sbatch(
        str(SLURM / "landmarks.sh"), "seed=3", cwd=here, HPCFL_SCRATCH=str(scratch), SLURM_TMPDIR=""
    )
    ended = slurm.wait(job)
    assert ended["JobState"] == "COMPLETED", (here / f"landmarks-{job}.out").read_text()
    assert [path.name for path in scratch.iterdir()] == ["landmarks-256.h5"]
    words = f"jobs/papers/base/landmarks.yaml seed=3 data.root={scratch} store.dir={scratch}"
    started = f"3/4 run {words} --out runs/landmarks-seed3 --continue"
    assert started in (here / "starts").read_text()


SMALL = ("--ntasks-per-node=1", "--cpus-per-task=1", "--mem=0", "--gpus-per-node=1")


@pytest.fixture
def photos(here):
    """Data to be staged, and where to."""
    (here / "plan").write_text("0")
    (here / "data").mkdir()
    (here / "data/landmarks-256.h5").write_text("images")
    return {"HPCFL_SCRATCH": str(here / "scratch"), "SLURM_TMPDIR": ""}


def staged(here):
    """What lies in the scratch folder."""
    return sorted(path.name for path in (here / "scratch").iterdir())


def test_two_jobs_of_a_node_stage_one_file(slurm, here, photos):
    """One copies, and the other one waits for it."""
    copy = 'echo >>copies; while [ ! -e go ]; do sleep 0.02; done; exec /bin/cp "$@"'
    put(here / ".venv/bin/cp", copy)
    (here / "plan").write_text("0\n0")
    words = (*SMALL, "--nodelist=node1", str(SLURM / "landmarks.sh"))
    jobs = [slurm.sbatch(*words, cwd=here, HPCFL_OUT=f"runs/{i}", **photos) for i in (1, 2)]
    for job in jobs:
        slurm.wait(job, ("RUNNING", "FAILED"))
    slurm.until((here / "copies").exists)
    (here / "go").touch()
    ended = [slurm.wait(job)["JobState"] for job in jobs]
    assert ended == ["COMPLETED"] * 2, said(here, jobs[0], "landmarks")
    assert (here / "copies").read_text().count("\n") == 1
    assert staged(here) == ["landmarks-256.h5"]


@pytest.mark.parametrize(
    ("fault", "failures", "code", "line"),
    [
        ("Stale file handle", 1, "0:0", "staging: exit code 1, try 1 of 3"),
        ("No space left on device", 9, "74:0", "not requeued: exit code 74: a disk is full"),
        ("Stale file handle", 9, "1:0", "not requeued: staging failed with exit code 1; 1 starts"),
    ],
)
def test_staging_that_fails_is_told(slurm, here, photos, fault, failures, code, line):
    """Twice it is tried again; what another start made and left is removed."""
    put(here / ".venv/bin/sleep", "exit 0")
    put(
        here / ".venv/bin/cp",
        f'echo >>tries; for part; do :; done; touch "$part"\n'
        f'[ "$(wc -l <tries)" -gt {failures} ] || {{ echo "cp: {fault}" >&2; exit 1; }}\n'
        'exec /bin/cp "$@"',
    )
    (here / "scratch").mkdir()
    (here / "scratch/landmarks-256.h5.part.12.0").touch()
    words = (*SMALL, str(SLURM / "landmarks.sh"))
    job = slurm.sbatch(*words, cwd=here, HPCFL_MAX_STARTS="1", **photos)
    output = f"{slurm.wait(job)['ExitCode']} {said(here, job, 'landmarks')}"
    assert output.startswith(code), output
    assert f": cp: {fault}" in output
    assert line in output
    assert staged(here) == ["landmarks-256.h5"] * (code == "0:0")


def test_data_that_are_missing_are_named(slurm, here, photos):
    (here / "data/landmarks-256.h5").unlink()
    job = slurm.sbatch(*SMALL, str(SLURM / "landmarks.sh"), cwd=here, **photos)
    assert slurm.wait(job)["ExitCode"] == "2:0"
    line = f"staging: {here}/data/landmarks-256.h5 is missing; make it by hpcfl data prepare"
    assert line in said(here, job, "landmarks")


def test_several_files_are_staged(slurm, here, photos):
    (here / "data/words.txt").write_text("words")
    command = f"{SLURM / 'staged.sh'} landmarks-256.h5 words.txt a/quick.yaml seed=3"
    job = slurm.sbatch("--job-name=large", "--output=%x-%j.out", f"--wrap={command}", cwd=here,
                       **photos)  # fmt: skip
    assert slurm.wait(job)["JobState"] == "COMPLETED", said(here, job, "large")
    assert staged(here) == ["landmarks-256.h5", "words.txt"]
    assert (here / "scratch/words.txt").read_text() == "words"


@pytest.mark.parametrize(("number", "chain"), [("USR1", ""), ("TERM", ""), ("USR1", "mine")])
def test_staging_is_cut_short_by_a_signal(slurm, here, number, chain):
    """While it copies from a pipe that nobody writes to."""
    (here / "data").mkdir()
    os.mkfifo(here / "data/landmarks-256.h5")
    scratch = here / "scratch"
    job = slurm.sbatch(
        str(SLURM / "landmarks.sh"), cwd=here, HPCFL_MAX_STARTS="1",
        HPCFL_SCRATCH=str(scratch), HPCFL_CHAIN=chain, SLURM_TMPDIR="",
    )  # fmt: skip
    slurm.until(scratch.exists)
    slurm.call("scancel", "--batch", f"--signal={number}", job)
    assert slurm.wait(job)["ExitCode"] == "75:0"
    line = "not requeued: stopped before the ranks were started; 1 starts in a row"
    assert line in said(here, job, "landmarks")


@pytest.mark.parametrize("script", sorted(SLURM.glob("*.sh")), ids=lambda path: path.name)
def test_slurm_takes_the_script(slurm, here, script):
    if script.name not in ("chain.sh", "staged.sh"):  # which are no jobs
        slurm.call("sbatch", "--test-only", str(script), "job.yaml", cwd=here)
