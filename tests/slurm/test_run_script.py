"""slurm/run.sh starts, resumes and requeues as hpcfl's exit codes say, on a real Slurm."""

import shutil
import time
from pathlib import Path

import pytest

HERE = Path(__file__).parent
RUN = HERE.parents[1] / "slurm/run.sh"


@pytest.fixture
def here(tmp_path):
    """A place to submit from, whose .venv holds a fake hpcfl."""
    (tmp_path / ".venv/bin").mkdir(parents=True)
    shutil.copy(HERE / "fake_hpcfl", tmp_path / ".venv/bin/hpcfl")
    return tmp_path


def submit(slurm, here, *plan, options=()):
    (here / "plan").write_text("\n".join(plan))
    return slurm.sbatch("--ntasks=2", *options, str(RUN), "a/quick.yaml", "seed=3", cwd=here)


def starts(here, rank=0):
    """What the rank was started with, in order."""
    made = (here / "starts").read_text().splitlines() if (here / "starts").exists() else []
    return [line.removeprefix(f"{rank}/2 ") for line in made if line.startswith(f"{rank}/2 ")]


def wait_for_starts(here, count):
    while min(len(starts(here, rank)) for rank in (0, 1)) < count:
        time.sleep(0.05)


def signal_before_checkpoint(here, job):
    return (here / f"runs/quick-{job}/checkpoints/7/manifest.json").read_text()


def test_a_run_that_ends_is_done(slurm, here):
    job = submit(slurm, here, "0")
    ended = slurm.wait(job)
    assert (ended["JobState"], ended["Restarts"]) == ("COMPLETED", "0")
    assert starts(here) == starts(here, rank=1) == [
        f"run a/quick.yaml seed=3 --out runs/quick-{job}"
    ]  # fmt: skip


def test_a_stopped_run_is_requeued_and_resumed(slurm, here):
    job = submit(slurm, here, "75", "75", "0")
    ended = slurm.wait(job)
    assert (ended["JobState"], ended["Restarts"]) == ("COMPLETED", "2")
    assert starts(here)[1:] == [f"resume runs/quick-{job}"] * 2
    output = (here / f"hpcfl-{job}.out").read_text()  # one file for all starts
    assert output.count("requeued") == 2
    assert "start 3: hpcfl resume" in output


@pytest.mark.parametrize("code", [1, 2, 3])
def test_a_run_that_failed_is_not_tried_again(slurm, here, code):
    ended = slurm.wait(submit(slurm, here, str(code)))
    assert (ended["JobState"], ended["ExitCode"]) == ("FAILED", f"{code}:0")
    assert ended["Restarts"] == "0"
    assert len(starts(here)) == 1


def test_preemption_signals_the_ranks_and_the_run_goes_on_after(slurm, here):
    job = submit(slurm, here, "signal 75", "0", options=["--nodes=2", "--exclusive"])
    wait_for_starts(here, 1)
    urgent = slurm.sbatch(
        "--partition=urgent", "--nodes=2", "--exclusive", "--wrap=true", cwd=here
    )  # fmt: skip
    assert slurm.wait(urgent)["JobState"] == "COMPLETED"
    ended = slurm.wait(job)
    assert (ended["JobState"], ended["Restarts"]) == ("COMPLETED", "1")
    assert signal_before_checkpoint(here, job) == "SIGUSR1"  # --signal, before the SIGTERM
    assert starts(here)[1:] == [f"resume runs/quick-{job}"]


def test_a_cancelled_run_stays_cancelled(slurm, here):
    job = submit(slurm, here, "signal 75", "0")
    wait_for_starts(here, 1)
    slurm.call("scancel", job)
    ended = slurm.wait(job)
    assert (ended["JobState"], ended["Restarts"]) == ("CANCELLED", "0")
    assert signal_before_checkpoint(here, job) == "SIGTERM"  # and the shell let the ranks write it
    assert len(starts(here)) == 1


def test_a_start_killed_before_its_first_checkpoint_is_set_aside(slurm, here):
    job = submit(slurm, here, "signal 1", "0")
    wait_for_starts(here, 1)
    slurm.call("scontrol", "requeue", job)  # as Slurm does when a node is lost
    ended = slurm.wait(job)
    assert (ended["JobState"], ended["Restarts"]) == ("COMPLETED", "1")
    out = f"runs/quick-{job}"
    assert starts(here) == [f"run a/quick.yaml seed=3 --out {out}"] * 2
    assert (here / f"{out}.start-1").is_dir()


def test_the_run_directory_can_be_named(slurm, here):
    (here / "plan").write_text("0")
    job = slurm.sbatch("--ntasks=2", str(RUN), "quick.yaml", cwd=here, HPCFL_OUT="mine")
    slurm.wait(job)
    assert starts(here) == ["run quick.yaml --out mine"]


def test_the_first_start_leaves_a_run_of_another_job_alone(slurm, here):
    old = here / "mine/checkpoints/7"
    old.mkdir(parents=True)
    (old / "manifest.json").touch()
    (here / "plan").write_text("2")  # what hpcfl says to a directory that holds a run
    job = slurm.sbatch("--ntasks=2", str(RUN), "quick.yaml", cwd=here, HPCFL_OUT="mine")
    assert slurm.wait(job)["ExitCode"] == "2:0"
    assert starts(here) == ["run quick.yaml --out mine"]
    assert (old / "manifest.json").exists()


def test_a_job_file_is_asked_for(slurm, here):
    job = slurm.sbatch(str(RUN), cwd=here)
    assert slurm.wait(job)["ExitCode"] == "2:0"
    assert "usage: sbatch" in (here / f"hpcfl-{job}.out").read_text()


def test_a_sigterm_to_the_shell_does_not_end_the_ranks(slurm, here):
    job = submit(slurm, here, "signal 75", "0")
    wait_for_starts(here, 1)
    slurm.call("scancel", "--batch", "--signal=TERM", job)
    time.sleep(0.5)  # of an untrapped shell the ranks would be gone by now
    slurm.call("scancel", "--signal=USR1", job)
    ended = slurm.wait(job)
    assert (ended["JobState"], ended["Restarts"]) == ("COMPLETED", "1")
    assert signal_before_checkpoint(here, job) == "SIGUSR1"
