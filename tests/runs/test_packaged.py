"""Jobs that are installed with hpcfl, and how a command finds them."""

import subprocess
import sys
from pathlib import Path

import pytest

from hpcfl.errors import JobError
from hpcfl.runs.job_file.packaged import FOLDER, find_job, packaged_jobs, summary

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    """A current directory without jobs."""
    monkeypatch.chdir(tmp_path)


def refusal(job):
    with pytest.raises(JobError) as caught:
        find_job(job)
    (line,) = str(caught.value).splitlines()
    return line


def test_names_are_paths_below_jobs():
    known = packaged_jobs()
    assert {"quickstart", "cifar10/fedhbm_noniid", "papers/fedhbm_table3_cifar10"} < set(known)
    assert len(known) == len(list((ROOT / "jobs").rglob("*.yaml")))


@pytest.mark.parametrize(
    "job",
    [
        "quickstart",
        "quickstart.yaml",
        "jobs/quickstart",
        "jobs/quickstart.yaml",
        Path("quickstart"),
    ],
)
def test_a_name_in_every_form(job):
    assert find_job(job) == FOLDER / "quickstart.yaml"


def test_a_file_comes_first(tmp_path):
    for name in ("quickstart", "quickstart.yaml"):
        (tmp_path / name).write_text("")
        assert find_job(name) == Path(name)


def test_a_folder_hides_no_packaged_job(tmp_path):
    (tmp_path / "quickstart").mkdir()
    assert find_job("quickstart") == FOLDER / "quickstart.yaml"


def test_no_name_leads_out_of_the_folder():
    assert "cannot be read" in refusal("cifar10/../quickstart")
    assert "cannot be read" in refusal("../jobs/quickstart.yaml")


@pytest.mark.parametrize(
    "job, near",
    [
        ("quickstar", "quickstart or sweeps/quickstart"),
        ("jobs/fedhbm_noniid.yaml", "cifar10/fedhbm_noniid or shakespeare/fedhbm_noniid"),
    ],
)
def test_near_names_are_told(job, near):
    line = refusal(job)
    assert line.startswith(f"{job}: cannot be read: No such file or directory, and no packaged job")
    assert line.endswith(f"(hpcfl list jobs); did you mean {near}?")


def test_the_file_without_its_ending_is_told(tmp_path):
    (tmp_path / "d").mkdir()
    for name in ("quickstar", "d/fedvarp"):
        (tmp_path / f"{name}.yaml").write_text("")
        assert refusal(name).endswith(f"; did you mean {name}.yaml?")


def test_a_directory_is_no_job(tmp_path, refused):
    (tmp_path / "d").mkdir()
    for name in (".", "d"):
        line = refused("run", name)
        assert line.startswith(f"JobError: {name}: is a directory, expected the file of a job")


def test_commands_take_names(hpcfl, refused):
    assert "fedhbm" in hpcfl("check", "quickstart").text
    assert hpcfl("check", "jobs/quickstart", "--where").out == ["runs/quickstart"]
    assert "sbatch" in hpcfl("plan", "quickstart").text
    assert "did you mean quickstart" in refused("run", "quickstar")
    sweep = refused("check", "sweeps/quickstart")
    assert f"use `hpcfl sweep {FOLDER}/sweeps/quickstart.yaml`, which with --dry-run" in sweep
    assert len(hpcfl("sweep", "sweeps/quickstart", "--where").out) == 6


@pytest.mark.parametrize("columns", [None, 80, 100])
def test_the_list_has_a_line_for_each_job(columns, hpcfl, monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    if columns:
        monkeypatch.setenv("COLUMNS", str(columns))
    rows = [line for line in hpcfl("list", "jobs").out if line.startswith("| ")][1:]
    known = packaged_jobs()
    assert [row.split()[1] for row in rows] == list(known)
    assert max(map(len, rows)) <= (columns or 80)
    name = "cifar10/fedavg_published_split"
    alone = " ".join(" ".join(line.split("|")[2].split()) for line in hpcfl("list", name).out[3:-3])
    assert alone.strip() == summary(known[name])


def test_the_kind_of_an_argument(tmp_path, monkeypatch, hpcfl, refused):
    """What the scripts for Slurm ask before every start: a file, a name, or a run."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run").mkdir()
    (tmp_path / "run/job.yaml").touch()
    (tmp_path / "own.yaml").write_text("rounds: 3\ngrid: {seed: [0]}\n")
    (tmp_path / "bare.yaml").write_text("rounds: 3\n")  # the rest may be on the command line
    kinds = {
        "quickstart": "job", "jobs/sweeps/quickstart.yaml": "sweep", "run": "run",
        "own.yaml": "sweep", "bare.yaml": "job",
    }  # fmt: skip
    assert {name: hpcfl("check", name, "--kind").text.strip() for name in kinds} == kinds
    assert refused("check", "quickstar", "--kind").endswith(
        "did you mean quickstart or sweeps/quickstart?"
    )
    (tmp_path / "own.yaml").write_text("grid: [")
    assert "own.yaml:1: " in refused("check", "own.yaml", "--kind")


@pytest.mark.slow
@pytest.mark.parametrize(
    "module", ["runs.job_file.packaged", "runs.job_file.run_name", "cli.batch"]
)
def test_kinds_and_names_are_told_without_torch(module):
    """As slurm/run.sh asks for them before every start; and a start that takes signals soon."""
    code = f"import sys, hpcfl.{module}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_summaries(tmp_path):
    file = tmp_path / "job.yaml"
    file.write_text("# FedAvg vs. SGD,\n# on digits.  In\n# seconds.\nrounds: 1\n")
    assert summary(file) == "FedAvg vs. SGD, on digits"
    file.write_text("# A sweep:\n#   hpcfl sweep X\nrounds: 1\n")
    assert summary(file) == "A sweep"


def test_every_job_says_what_it_is(hpcfl):
    assert all(summary(file) for file in packaged_jobs().values())
