"""Numbers of ranks side by side: which is the best, and which cost much more."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from hpcfl.job.load import load
from hpcfl.start.components.build import build_components
from hpcfl.tools.plan import rank_counts
from hpcfl.tools.plan.host_memory import computed_memory
from hpcfl.tools.plan.rank_counts import RankCount
from hpcfl.tools.plan.resources import plan
from hpcfl.tools.plan.slurm_request import slurm_request
from hpcfl.tools.plan.time import Prediction
from tests.parallel.harness import find_mpirun

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def counts():
    """Of numbers of ranks and their hours."""
    job = load(ROOT / "jobs/quickstart.yaml", ["data.clients=16", "cohort.size=8"])
    parts = build_components(job, torch.device("cpu"))

    def make(hours, *, gpus=True):
        made = []
        for ranks, known in hours.items():
            found = plan(parts, ranks)
            memory = computed_memory(found, gpus=gpus)
            request = slurm_request(parts, ranks, memory, hours=known, gpus=gpus, most=None)
            time = None if known is None else Prediction(0, 0, 0, 0, 1, known)
            made.append(RankCount(found, request, memory, time))
        return made

    return make


def cells(found):
    columns = [list(column.cells) for column in rank_counts.table(found).columns]
    return [[row[k] for k in (0, 1, 5, 6, 7)] for row in zip(*columns, strict=True)]


def test_hours_of_gpus_and_of_nodes(counts):
    found = counts({1: 6.0, 2: 3.5, 4: 2.5, 8: 2.25, 16: 2.0})
    assert cells(found) == [
        ["1", "1", "6", "6", "6"],
        ["2", "1", "3.5", "7", "3.5"],
        ["4", "1", "2.5", "10", "2.5"],
        ["8", "2", "2.25", "18", "4.5"],
        ["16", "4", "2", "32", "8"],
    ]
    assert rank_counts.best(found).ranks == 2
    assert rank_counts.advice(found) == [
        "best: 2 ranks, the fastest at no more than 1.5 times the fewest GPU-hours; where nodes "
        "are given whole, by node-hours: 4 ranks",
        "WARNING: 8 ranks take 2.57 times the GPU-hours of 2 ranks, for 0.64 of the time",
        "WARNING: 16 ranks take 4.57 times the GPU-hours of 2 ranks, for 0.57 of the time",
    ]


def test_without_hours_and_on_cpus(counts):
    unknown = counts({1: None, 4: None})
    assert [row[2:] for row in cells(unknown)] == [["-", "-", "-"]] * 2
    assert rank_counts.best(unknown).ranks == 1
    assert rank_counts.advice(unknown) == []
    (line,) = rank_counts.advice(counts({1: 1.0, 2: 0.5}, gpus=False))
    assert line == "best: 2 ranks, the fastest at no more than 1.5 times the fewest core-hours"


def test_the_command(job, hpcfl, refused):
    done = hpcfl("plan", job, "--ranks", "1,2,4,2")
    assert done.code == 0, done.err
    rows = [line.split() for line in done.out if line.startswith("| ")]
    assert [row[1] for row in rows if row[1].isdigit()] == ["1", "2", "4"]
    assert done.out[-1].startswith("sbatch -N 1 --ntasks-per-node=1 ")
    assert "24 hours, as nothing was measured" in done.text
    assert "5 ranks for 4 clients" in refused("plan", job, "--ranks", "5,6")
    with pytest.raises(SystemExit):
        hpcfl("plan", job, "--ranks", "1,,2")


def test_the_best_by_whole_nodes(counts):
    """A node has four GPUs, however many of them are used."""
    found = counts({1: 6.0, 2: 5.0, 4: 4.0})
    assert rank_counts.best(found).ranks == 1
    assert rank_counts.best(found, by_nodes=True).ranks == 4
    assert rank_counts.advice(found)[0] == (
        "best: 1 rank, the fastest at no more than 1.5 times the fewest GPU-hours; where nodes are "
        "given whole, by node-hours: 4 ranks"
    )


@pytest.mark.parametrize("ranks", ["1,5,2", "5,1,2"])
def test_too_many_ranks_are_told_beside_the_others(job, hpcfl, ranks):
    done = hpcfl("plan", job, "--ranks", ranks)
    assert done.code == 0, done.err
    rows = [line.split()[1::2] for line in done.out if line.startswith("| ")]
    assert [row[0] for row in rows if row[0].isdigit()] == ["1", "2", "5"]
    assert rows[-1] == ["5", *["-"] * 7]
    assert "5 ranks: more than the 4 clients" in done.out
    assert done.out[-1].startswith("sbatch -N 1 --ntasks-per-node=1 ")


@pytest.mark.usefixtures("forked_python")
def test_it_measures_once(job):
    command = [find_mpirun(), "-n", "2", sys.executable, "-m", "hpcfl", "plan", str(job)]
    done = subprocess.run(
        [*command, "--ranks", "1,2,4", "--measure"],
        capture_output=True, text=True, check=True, timeout=120,
    )  # fmt: skip
    assert done.stdout.count("measured on 2 ranks, ") == 1
    assert done.stdout.count("best: ") == 1
    rows = [line.split() for line in done.stdout.splitlines() if line.startswith("| ")]
    assert all(float(cell) for row in rows if row[1].isdigit() for cell in (row[-2], row[-4]))


@pytest.mark.parametrize("job", ["landmarks", "inaturalist", "stackoverflow"])
@pytest.mark.parametrize("form", ["papers/base/{}", "jobs/papers/base/{}.yaml"])
def test_a_job_with_a_script_of_its_own(counts, job, form):
    """Which names the job itself."""
    script = (ROOT / f"slurm/{job}.sh").read_text()
    assert f"jobs/papers/base/{job}.yaml" in script
    (found,) = counts({2: 1.0})
    said = found.request.command([form.format(job), "algorithm={name: fedhbm}"])
    assert said.endswith(f":00 slurm/{job}.sh 'algorithm={{name: fedhbm}}'")
    assert found.request.command(["mine.yaml"]).endswith(" slurm/run.sh mine.yaml")
