"""slurm/run.sh starts and requeues as hpcfl's exit codes say, on a real Slurm."""

import fcntl
import os
import shutil
import subprocess
from contextlib import ExitStack
from pathlib import Path

import pytest

HERE = Path(__file__).parent
SLURM = HERE.parents[1] / "slurm"
RUN = SLURM / "run.sh"
COMMAND = "run a/quick.yaml seed=3 --out runs/quick --continue"


@pytest.fixture
def here(tmp_path):
    """A place to submit from, whose .venv holds a fake hpcfl."""
    (tmp_path / ".venv/bin").mkdir(parents=True)
    shutil.copy(HERE / "fake_hpcfl", tmp_path / ".venv/bin/hpcfl")
    return tmp_path


def submit(slurm, here, *plan, options=(), **env):
    (here / "plan").write_text("\n".join(plan))
    words = ("--ntasks=2", *options, str(RUN), "a/quick.yaml", "seed=3")
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
    """Stopped, then killed after a checkpoint, then killed after none, twice."""
    job = submit(slurm, here, "75 7", "1 9", "1", "1", "0", HPCFL_MAX_STARTS="2")
    ended = slurm.wait(job)
    assert (ended["JobState"], ended["ExitCode"], ended["Restarts"]) == ("FAILED", "1:0", "3")
    assert starts(here) == [COMMAND] * 4
    output = (here / f"hpcfl-{job}.out").read_text()  # one file for all starts
    for line in (
        "start 1: hpcfl run",
        "stopped with a checkpoint, requeued",
        "start 2: hpcfl run",
        "exit code 1 after new checkpoints, requeued",
        "start 3: hpcfl run",
        "exit code 1 and no checkpoint since the start, requeued",
        "start 4: hpcfl run",
        "exit code 1 and no checkpoint since the start, not requeued: 2 starts in a row",
    ):
        assert output.count(line) == 1
    assert counters(here) == []


@pytest.mark.parametrize("plan", ["1 0", "2 9", "3 9", "74 9", "apart 2", "apart 3 9"])
def test_a_run_that_is_broken_is_not_tried_again(slurm, here, plan):
    """Round 0 is no progress; what is wrong or diverged, or a disk that is full, stays so."""
    ended = slurm.wait(submit(slurm, here, plan))
    code = plan.removeprefix("apart ").split()[0]
    assert (ended["JobState"], ended["ExitCode"]) == ("FAILED", f"{code}:0")
    assert ended["Restarts"] == "0"
    assert len(starts(here)) == 1


def test_starts_without_a_checkpoint_are_bounded_by_every_script(slurm, tmp_path):
    """A stop before the first round, for ever, as where the limit is not above the lead."""
    places = {}
    for name in ("run", "array", "landmarks", "chain"):
        places[name] = tmp_path / name
        (places[name] / ".venv/bin").mkdir(parents=True)
        shutil.copy(HERE / "fake_hpcfl", places[name] / ".venv/bin/hpcfl")
        (places[name] / "plan").write_text("75 0\n" * 4)
    (places["landmarks"] / "data").mkdir()
    (places["landmarks"] / "data/landmarks-256.h5").write_text("images")
    one = submit(slurm, places["run"], *["75 0"] * 4)  # thrice, when nothing else is said
    words = ("--array=3", "--ntasks=2", str(SLURM / "array.sh"), "a/quick.yaml")
    task = slurm.sbatch(*words, cwd=places["array"], HPCFL_MAX_STARTS="2")
    words = ("--ntasks-per-node=2", "--cpus-per-task=1", "--mem=0", "--gpus-per-node=1")
    large = slurm.sbatch(
        *words, str(SLURM / "landmarks.sh"), cwd=places["landmarks"], HPCFL_MAX_STARTS="2",
        HPCFL_SCRATCH=str(tmp_path / "scratch"), SLURM_TMPDIR="",
    )  # fmt: skip
    words = ("3", "--ntasks=2", str(RUN), "a/quick.yaml", "seed=3")
    made = slurm.call(
        str(SLURM / "chain.sh"), *words, cwd=places["chain"], HPCFL_MAX_STARTS="2"
    )  # fmt: skip
    links = made.partition(": ")[2].split()
    for name, job, restarts in (
        ("run", one, "2"), ("array", f"{task}_3", "1"), ("landmarks", large, "1"),
    ):  # fmt: skip
        ended = slurm.wait(job)
        output = said(places[name], job, "landmarks" if name == "landmarks" else "hpcfl")
        found = (ended["JobState"], ended["ExitCode"], ended["Restarts"])
        assert found == ("FAILED", "75:0", restarts), output
        assert "starts in a row came to no new checkpoint (HPCFL_MAX_STARTS)" in output
        assert counters(places[name]) == []
    ended = [slurm.wait(job)["JobState"] for job in links]
    assert ended == ["FAILED", "FAILED", "CANCELLED"]
    assert counters(places["chain"]) == []


def test_starts_that_slurm_itself_requeues_are_counted(slurm, here):
    job = submit(slurm, here, "signal 1", "0", HPCFL_MAX_STARTS="1")
    wait_for_starts(slurm, here, 1)
    slurm.call("scontrol", "requeue", job)
    ended = slurm.wait(job)
    assert (ended["ExitCode"], ended["Restarts"]) == ("1:0", "1")
    assert "start 2: not begun, 1 starts in a row came to no new checkpoint" in said(here, job)
    assert len(starts(here)) == 1


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


def test_a_launch_that_fails_is_tried_again(slurm, here):
    """By a run that has hours behind it."""
    manifest = here / "runs/quick/checkpoints/00000007/manifest.json"
    manifest.parent.mkdir(parents=True)
    manifest.write_text("")
    real = shutil.which("srun", path=slurm.env["PATH"])
    error = "srun: error: Application launch failed: Socket timed out on send/recv operation"
    once = f'[ -e failed ] || {{ touch failed; echo "{error}" >&2; exit 140; }}'
    put(here / ".venv/bin/srun", f'case "$*" in *--continue*) {once};; esac; exec {real} "$@"')
    job = submit(slurm, here, "0")
    ended = slurm.wait(job)
    assert (ended["JobState"], ended["Restarts"]) == ("COMPLETED", "1"), said(here, job)
    assert "exit code 140 and no checkpoint since the start, requeued" in said(here, job)
    assert len(starts(here)) == 1


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


FILES = ["lock", "stores/a-r0001-s0000.h5", "stores/shared/a-r0001-s0000.h5"]


@pytest.mark.parametrize("name", FILES)
def test_a_run_that_is_alive_elsewhere_for_good_is_given_up(slurm, here, alive, name):
    """After a wait that is bounded, and with the bound of all starts."""
    alive(f"runs/quick/{name}")
    job = submit(slurm, here, "0", HPCFL_WAIT_S="1", HPCFL_MAX_STARTS="1")
    ended = slurm.wait(job)
    assert (ended["ExitCode"], ended["Restarts"]) == ("1:0", "0")
    assert f"it holds runs/quick/{name}; wait up to 1 s for its end" in said(here, job)
    assert "another start of this run is still alive, not requeued: 1 starts" in said(here, job)
    assert starts(here) == []


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
    file = alive("runs/several/point0/stores/a-r0001-s0000.h5")
    job = slurm.sbatch("--ntasks=1", str(RUN), "several.yaml", cwd=here)
    line = "it holds runs/several/point0/stores/a-r0001-s0000.h5"
    slurm.until(lambda: line in said(here, job))
    assert not (here / "starts").exists()
    file.close()
    assert slurm.wait(job)["JobState"] == "COMPLETED", said(here, job)


@pytest.mark.parametrize("gpus", ["--gpus=3", "--gpus-per-node=2", "--gpus-per-task=1"])
def test_a_job_with_gpus_is_requeued(slurm, here, gpus):
    """However they were asked for, every step of the script starts."""
    job = submit(slurm, here, "apart 75 7", "0", options=["--nodes=2", gpus])
    ended = slurm.wait(job)
    output = (here / f"hpcfl-{job}.out").read_text()
    assert (ended["JobState"], ended["Restarts"]) == ("COMPLETED", "1"), output
    assert "Unable to create step" not in output


@pytest.mark.parametrize("gpus", ["--gpus=5", "--gpus-per-task=1"])
def test_a_sweep_is_requeued_as_long_as_it_gets_on(slurm, here, gpus):
    """On one node of two, of whatever GPUs."""
    (here / "plan").write_text("1 7\n1")
    options = ("--nodes=2", "--ntasks=4", gpus)
    job = slurm.sbatch(*options, str(RUN), "several.yaml", cwd=here, HPCFL_MAX_STARTS="1")
    ended = slurm.wait(job)
    output = (here / f"hpcfl-{job}.out").read_text()
    assert (ended["ExitCode"], ended["Restarts"]) == ("1:0", "1"), output
    assert (here / "starts").read_text() == "0/1 sweep several.yaml --out runs/several\n" * 2


def test_checkpoints_of_other_points_are_no_progress(slurm, here):
    """Another task of the array may play them meanwhile."""
    (here / "plan").write_text("signal 1")
    words = ("--ntasks=1", str(RUN), "several.yaml", "--points", "0-0")
    job = slurm.sbatch(*words, cwd=here, HPCFL_MAX_STARTS="1")
    slurm.until((here / "starts").exists)
    other = here / "runs/several/point1/checkpoints/00000007/manifest.json"
    other.parent.mkdir(parents=True)
    other.write_text("")
    slurm.call("scancel", "--batch", "--signal=USR1", job)
    ended = slurm.wait(job)
    assert (ended["ExitCode"], ended["Restarts"]) == ("1:0", "0"), said(here, job)
    assert "no checkpoint since the start, not requeued" in said(here, job)


@pytest.mark.parametrize("script", ["exit 1", "exit 0"])
def test_a_slurm_that_is_busy_cancels_nothing(slurm, here, script):
    """Whatever squeue says then; scontrol is asked again."""
    put(here / ".venv/bin/squeue", script)
    real = shutil.which("scontrol", path=slurm.env["PATH"])
    once = 'case "$1" in requeue) [ -e asked ] || { touch asked; exit 1; } ;; esac'
    put(here / ".venv/bin/scontrol", f'{once}; exec {real} "$@"')
    ended = slurm.wait(submit(slurm, here, "75 7", "0"))
    assert (ended["JobState"], ended["Restarts"]) == ("COMPLETED", "1")


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


def test_what_slurm_requeues_goes_on(slurm, here):
    """By hand, or when it loses the node of the script."""
    job = submit(slurm, here, "signal 1", "0")
    wait_for_starts(slurm, here, 1)
    slurm.call("scontrol", "requeue", job)
    ended = slurm.wait(job)
    assert (ended["JobState"], ended["Restarts"]) == ("COMPLETED", "1")
    assert starts(here) == [COMMAND] * 2


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


def test_packaged_sweeps_and_runs_are_told_from_jobs(slurm, here):
    """By hpcfl, as no file has the name; what is said in HPCFL_TASK is not asked for."""
    (here / "old run").mkdir()
    (here / "plan").write_text("0\n0\n0")
    for words, env in (
        (["sweeps/several"], {}),
        (["old run/", "rounds=9"], {}),
        (["odd", "--points", "1-1"], {"HPCFL_TASK": "sweep"}),
    ):
        ended = slurm.wait(job := slurm.sbatch("--ntasks=1", str(RUN), *words, cwd=here, **env))
        assert ended["JobState"] == "COMPLETED", said(here, job)
    assert (here / "starts").read_text().splitlines() == [
        "0/1 sweep sweeps/several --out runs/several",
        "0/1 resume old run/ rounds=9",
        "0/1 sweep odd --points 1-1 --out runs/odd",
    ]


@pytest.mark.parametrize(
    ("words", "env", "line"),
    [
        (["odd"], {"HPCFL_TASK": "jobs"}, "HPCFL_TASK: found jobs, expected job, sweep or run"),
        (["old"], {"HPCFL_OUT": "new"}, "old is the directory of a run, which is resumed there"),
        (["old"], {"HPCFL_INDEX": "1"}, "old is the directory of a run; an array is of a job"),
        (["several", "--only", "a"], {"HPCFL_INDEX": "1"}, "--only: an array runs points of the"),
        (["unknown"], {}, "JobError: unknown: no packaged job has this name"),
    ],
)
def test_what_cannot_be_started_ends_the_chain(slurm, here, words, env, line):
    (here / "old").mkdir()
    script = (str(SLURM / "chain.sh"), "2", "--ntasks=1", str(RUN), *words)
    links = slurm.call(*script, cwd=here, **env).partition(": ")[2].split()
    ended = [slurm.wait(link)["JobState"] for link in links]
    assert ended == ["FAILED", "CANCELLED"]
    (output,) = [path.read_text() for path in here.glob("chain-*.out")]
    assert line in output
    assert not (here / "starts").exists()


def test_a_task_of_an_array_plays_points_of_a_sweep(slurm, here):
    (here / "plan").write_text("0")
    words = ("--array=2", "--ntasks=1", str(SLURM / "array.sh"), "sweeps/several", "mu=1")
    job = slurm.sbatch(*words, cwd=here, HPCFL_PACK="3", HPCFL_OUT="mine")
    assert slurm.wait(f"{job}_2")["JobState"] == "COMPLETED"
    points = "--points 6-8 --parallel 3"
    assert (here / "starts").read_text() == (f"0/1 sweep sweeps/several mu=1 {points} --out mine\n")


def test_a_signal_to_the_shell_stops_the_ranks(slurm, here):
    """Also one of them that knows none yet, and dies: it was asked for."""
    job = submit(slurm, here, "signal 75 7", "forever", "0")
    wait_for_starts(slurm, here, 1)
    slurm.call("scancel", "--batch", "--signal=TERM", job)
    wait_for_starts(slurm, here, 2)
    slurm.call("scancel", "--batch", "--signal=USR1", job)
    ended = slurm.wait(job)
    assert (ended["JobState"], ended["Restarts"]) == ("COMPLETED", "2")
    assert signal_before_checkpoint(here) == "SIGUSR1"
    assert "stopped by exit code 138, requeued" in (here / f"hpcfl-{job}.out").read_text()


def test_an_error_after_a_signal_is_an_error(slurm, here):
    job = submit(slurm, here, "signal 1", "0")
    wait_for_starts(slurm, here, 1)
    slurm.call("scancel", "--batch", "--signal=USR1", job)
    ended = slurm.wait(job)
    assert (ended["ExitCode"], ended["Restarts"]) == ("1:0", "0")


# Chains and arrays


def chained(slurm, here, *plan):
    """The jobs of a chain of three, when all of them are over."""
    (here / "plan").write_text("\n".join(plan))
    words = ("3", "--ntasks=2", str(RUN), "a/quick.yaml", "seed=3")
    made = slurm.call(str(SLURM / "chain.sh"), *words, cwd=here)
    return [slurm.wait(job) for job in made.partition(": ")[2].split()]


def test_a_chain_goes_on_and_ends_when_the_run_is_finished(slurm, here):
    ended = chained(slurm, here, "75 7", "0")
    assert [job["JobState"] for job in ended] == ["FAILED", "COMPLETED", "CANCELLED"]
    assert [job["Restarts"] for job in ended] == ["0"] * 3
    assert starts(here) == [COMMAND] * 2


def test_a_chain_goes_on_after_a_link_that_is_out_of_time(slurm, here):
    put(here / ".venv/bin/squeue", "echo COMPLETING")
    ended = chained(slurm, here, "75 7", "0")
    assert [job["JobState"] for job in ended] == ["FAILED", "COMPLETED", "CANCELLED"]


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
    run = "run a/quick.yaml mu=1 seed={0} --out runs/quick-seeds/seed{0} --continue"
    seeds = [run.format(seed) for seed in (5, 6)]
    assert starts(here) == [*seeds, seeds[1]]


def test_seeds_are_not_packed(slurm, here):
    words = ("--array=0", str(SLURM / "array.sh"), "a/quick.yaml")
    job = slurm.sbatch(*words, cwd=here, HPCFL_PACK="2")
    assert slurm.wait(job)["ExitCode"] == "2:0"
    assert "make one with the axis seed" in (here / f"hpcfl-{job}_0.out").read_text()


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
    assert f"3/4 run {words} --out runs/quick --continue" in (here / "starts").read_text()


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
        ("No space left on device", 9, "74:0", "exit code 74, not requeued"),
        ("Stale file handle", 9, "1:0", "staging failed with exit code 1, not requeued: 1 starts"),
    ],
)
def test_staging_that_fails_is_told(slurm, here, photos, fault, failures, code, line):
    """Twice it is tried again at once; what another start made and left is removed."""
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


@pytest.mark.parametrize(
    ("signal", "chain", "restarts"), [("USR1", "", "1"), ("TERM", "", "1"), ("USR1", "mine", "0")]
)
def test_staging_is_cut_short_by_a_signal(slurm, here, signal, chain, restarts):
    """While it copies from a pipe that nobody writes to."""
    (here / "plan").write_text("0")
    (here / "data").mkdir()
    data = here / "data/landmarks-256.h5"
    os.mkfifo(data)
    scratch = here / "scratch"
    job = slurm.sbatch(
        str(SLURM / "landmarks.sh"), cwd=here,
        HPCFL_SCRATCH=str(scratch), HPCFL_CHAIN=chain, SLURM_TMPDIR="",
    )  # fmt: skip
    slurm.until(scratch.exists)
    slurm.call("scancel", "--batch", f"--signal={signal}", job)
    slurm.until(lambda: slurm.show(job)["JobState"] != "RUNNING")
    data.unlink()
    data.write_text("images")
    ended = slurm.wait(job)
    assert ended["Restarts"] == restarts
    assert ended["ExitCode"] == ("75:0" if chain else "0:0")


@pytest.mark.parametrize("script", sorted(SLURM.glob("*.sh")), ids=lambda path: path.name)
def test_slurm_takes_the_script(slurm, here, script):
    if script.name not in ("chain.sh", "staged.sh"):  # which are no jobs
        slurm.call("sbatch", "--test-only", str(script), "job.yaml", cwd=here)
