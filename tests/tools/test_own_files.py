"""A sweep tells its own files from the user's of the same names."""

import shutil

import pytest

from hpcfl.runs.sweep_log import PLACE
from hpcfl.tools.sweep.process import OUTPUT
from tests.rundirs import text

pytestmark = pytest.mark.usefixtures("own_process")


@pytest.fixture
def file(job, tmp_path):
    path = tmp_path / "s.yaml"
    path.write_text("job: job.yaml\ngrid: {seed: [0, 1]}\n")
    return path


@pytest.fixture
def root(file, job, tmp_path, hpcfl):
    """The directory of a finished sweep."""
    out = tmp_path / "out"
    for seed in (0, 1):
        assert hpcfl("run", job, f"seed={seed}", "--out", out / f"seed{seed}").code == 0
        (out / f"seed{seed}.log").write_bytes(OUTPUT + b"round 4/4\n")
    assert hpcfl("sweep", file, "--out", out).code == 0
    return out


@pytest.mark.parametrize(("base", "mine"), [("seed1.yaml", "seed1"), ("jobs/base.yaml", "s")])
def test_what_it_is_made_from_stays(job, tmp_path, refused, monkeypatch, base, mine):
    """Also where that was the job of a run of another sweep."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "jobs").mkdir()
    (tmp_path / base).write_text(f"{PLACE}0\n{job.read_text()}")
    job.unlink()
    (tmp_path / "s.yaml").write_text(f"{PLACE}0\njob: {base}\ngrid: {{point: {{{mine}: {{}}}}}}\n")
    before = text(tmp_path)
    line = refused("sweep", "s.yaml", "--out", ".")
    assert line.startswith(f"JobError: {mine}.yaml: is what the sweep is made from, and would ")
    assert text(tmp_path) == before


def test_a_job_of_the_users_stays(file, tmp_path, refused):
    """It has the name of a run."""
    out = tmp_path / "mine"
    out.mkdir()
    (out / "seed1.yaml").write_text("rounds: 5\n")
    line = refused("sweep", file, "--out", out)
    assert line.startswith(f"JobError: {out}/seed1.yaml: begins with b'rounds: 5")
    assert line.endswith("; move it elsewhere, or choose another directory with --out")
    assert text(out).keys() == {(out / "seed1.yaml").relative_to(out)}


@pytest.mark.parametrize("left", [b"", b"\0" * 40, b"2027-01-02 03:04:05 beg"])
def test_after_a_loss_of_power_at_its_first_line(root, file, hpcfl, left):
    (root / "sweep.log").write_bytes(left)
    (root / "seed0.log").write_bytes(OUTPUT[: len(left)])
    assert hpcfl("sweep", file, "--out", root).code == 0


def test_one_of_an_earlier_version_goes_on(root, file, hpcfl):
    """Its log does not say that it was begun, and its other files have no marks."""
    log = root / "sweep.log"
    log.write_bytes(log.read_bytes().partition(b"\n")[2])
    (root / "seed0.log").write_bytes(b"round 4/4\n")
    plot = root / "report.png"
    plot.write_bytes(plot.read_bytes().replace(b"tEXtSoftware\0hpcfl", b"tEXtSoftware\0other"))
    done = hpcfl("sweep", file, "--out", root)
    assert done.code == 0, done.err
    assert hpcfl("report", root, "--plot").code == 0
    assert b"hpcfl" in plot.read_bytes()


def test_a_run_on_another_disk_goes_on(root, file, tmp_path, hpcfl):
    shutil.move(root / "seed1", tmp_path / "disk")
    (root / "seed1").symlink_to(tmp_path / "disk")
    assert hpcfl("sweep", file, "--out", root).code == 0


def test_a_plot_of_the_users_stays(root, tmp_path, hpcfl, refused, monkeypatch):
    """Where its name was not given; else it is replaced, as any file that a command is given."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").mkdir()
    for path in (root / "report.png", tmp_path / "runs/report.png"):
        path.write_bytes(b"\x89PNG theirs")
    for folder in (root, root / "seed0"):
        line = refused("report", folder, "--plot")
        assert "report.png: is no plot that hpcfl has drawn, and would be replaced" in line
    assert (root / "report.png").read_bytes() == b"\x89PNG theirs"
    assert hpcfl("report", root, "--plot", root / "report.png").code == 0
    assert hpcfl("report", root, "--plot").code == 0
