"""What is measured is what runs: the log of the first rounds of a job, and its processes' peak."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from hpcfl.errors import JobError
from hpcfl.io import memory as io_memory
from hpcfl.job.load import load
from hpcfl.start.short_run import ShortRun
from hpcfl.tools.plan import measure as module
from hpcfl.tools.plan.data import planned_job, read_sizes
from tests.parallel.harness import find_mpirun


@pytest.fixture
def quick(monkeypatch):
    """Rounds are enough without regard to their seconds."""
    monkeypatch.setattr(module, "SECONDS", 0.0)


def line(round, **more):
    """Of the log; each phase has a power of ten."""
    phases = ("sample", "read", "compute", "wait", "reduce", "update", "write", "evaluate")
    times = {f"{phase}_s": float(10**k) for k, phase in enumerate(phases)}
    return {"round": round, "clients": 2, "wall_s": sum(times.values()), **times, **more}


def test_the_parts_of_a_round(job, tmp_path, monkeypatch):
    """The first round warms up, and an empty one says nothing; round 5 is evaluated."""
    log = [
        {**line(0, evaluate_s=9e6, down_bytes=1), "clients": 0},
        line(1, compute_s=1e9),
        line(2, clients=0, compute_s=1e9),
        *(line(t, device_bytes=t) for t in (3, 4)),
        line(5, evaluate_s=3e7),
        line(6),
    ]
    told = ShortRun(log, [5, 7], "a machine", gpus=True)
    monkeypatch.setattr(module, "run_shortly", lambda *request: told)
    found = module.measure(load(job, []), tmp_path, 1)
    assert (found.ranks, found.memory, found.gpu_memory) == (2, 7, 4)
    assert found.rounds == [(t - 1, 1111.0) for t in (3, 4, 5, 6)]
    # Without an evaluation its phase is the candidates' losses.
    assert (found.mean_s, found.rest_s, found.evaluate_s) == (1e4, 1.1e6 + 1e7, 2e7)
    assert found.warm_start_s == log[0]["wall_s"] - 9e6
    told = told._replace(log=[line(1), line(2, clients=0)])
    with pytest.raises(JobError, match="found 4, expected 2 at least that have a client"):
        module.measure(load(job, []), tmp_path, 1)


def test_drawn_data_takes_the_memory_of_real_data(job, tmp_path):
    """More of it, more memory, though it is one example."""
    sizes = [read_sizes(f"train={count},classes=4,shape=1000") for count in (50_000, 100_000)]
    peaks = []
    for size in sizes:
        loaded, notes = planned_job(load(job, []), size, in_memory=True)
        assert "as --sizes says" in notes[0]
        data = loaded.job.data.load(0)
        peaks.append(data.train.inputs.untyped_storage().nbytes())
        planned, _ = planned_job(load(job, []), size)
        assert planned.job.data.load(0).train.inputs.untyped_storage().nbytes() == 4 * 1000
    assert peaks == [50_000 * 4000, 100_000 * 4000]


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize(
    ("job", "sizes"),
    [
        ("jobs/image_folder/fedavg.yaml", "clients=20,train=200,test=20,classes=5,shape=3x32x32"),
        ("jobs/shakespeare/fedavg_noniid.yaml", "clients=100,train=300,test=9,classes=80,words=8"),
        ("jobs/cifar10/fedhbm_noniid.yaml", "train=1000,test=100,classes=10,shape=3x32x32"),
    ],
)
def test_rounds_on_drawn_data(hpcfl, tmp_path, monkeypatch, job, sizes):
    path = Path(__file__).parents[2] / job
    monkeypatch.chdir(tmp_path)
    done = hpcfl("plan", path, "--measure", "--sizes", sizes, "local.epochs=null", "local.steps=1")
    assert done.code == 0, done.err
    assert re.search(r"\| time +\| [\d.]+ hours in all|\| time +\| [\d.]+ s in all", done.text)
    assert not [*tmp_path.iterdir()]


def test_a_plan_says_the_time_and_the_memory(job, hpcfl, refused):
    alone = hpcfl("plan", job)
    assert "| time    | not measured; --measure runs a few rounds" in alone.text
    assert "-t 24:00:00 slurm/run.sh" in alone.out[-1]
    planned = hpcfl("plan", job, "--measure")
    assert planned.code == 0, planned.err
    assert " in all: " in planned.text
    assert "| measured on 1 rank, " in planned.text
    assert re.search(r"\| memory +\| \d+\.\d [MG]B a rank: .* at the peak of 1 rank", planned.text)
    assert "-t 00:20:00 slurm/run.sh" in planned.out[-1]
    said = refused("plan", job, "--measure", "--ranks", 2)
    assert "found 2 ranks, but one that measures" in said
    few = hpcfl("plan", job, "--measure", "rounds=1", "checkpoint.every=1", "evaluate.every=1")
    assert few.code == 2
    assert few.err[-1].startswith("JobError: rounds: found 1, expected 2 at least that have a cl")


def test_memory_that_the_system_does_not_tell(job, hpcfl, tmp_path, monkeypatch):
    """As on macOS: then the sum stands, and twice as much is asked for."""
    monkeypatch.setattr(io_memory, "PROC", tmp_path / "nothing")
    assert io_memory.peak_memory() == 0
    done = hpcfl("plan", job, "--measure")
    assert done.code == 0, done.err
    assert "MB a rank or more: the program 250.0 MB" in done.text
    assert "--mem=1G" in done.out[-1]


@pytest.mark.usefixtures("forked_python")
def test_two_ranks_measure_and_one_prints(job, tmp_path):
    command = [find_mpirun(), "-n", "2", sys.executable, "-m", "hpcfl", "plan", str(job)]
    done = subprocess.run(
        [*command, "--measure"],
        capture_output=True, text=True, check=True, timeout=120, cwd=tmp_path,
    )  # fmt: skip
    assert done.stdout.count(" in all: ") == 1
    assert "measured on 2 ranks, " in done.stdout
    failed = subprocess.run(
        [*command, "--measure", "rounds=1", "checkpoint.every=1", "evaluate.every=1"],
        capture_output=True, text=True, timeout=120, cwd=tmp_path,
    )  # fmt: skip
    assert failed.returncode == 2
    assert failed.stderr.count("JobError: rounds: found 1, expected 2") == 1
    assert not [*tmp_path.glob("hpcfl-plan-*")]


def test_ranks_that_train_no_client_are_told(job, hpcfl):
    """Cohorts of 2 clients."""
    said = "a round has 2 clients on average: at least 1 of 3 ranks train none"
    assert said in hpcfl("plan", job, "--ranks", 3).out
    assert "on average" not in hpcfl("plan", job, "--ranks", 2).text
