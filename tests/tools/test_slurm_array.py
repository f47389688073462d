"""A sweep in parts, and as an array of Slurm's: what is submitted, and how far it is."""

import subprocess

import pytest

from hpcfl.errors import JobError
from hpcfl.runs.layout import RunDir
from hpcfl.runs.sweep_log import log_line
from hpcfl.start.start import start
from hpcfl.tools.report.collect import collect_runs
from hpcfl.tools.sweep.grid import read_sweep
from hpcfl.tools.sweep.pending import pending_runs
from hpcfl.tools.sweep.run_sweep import prepare
from hpcfl.tools.sweep.slurm import SlurmArray, ranges

SWEEP = """\
job: job.yaml
grid: {seed: [0, 1, 2, 3, 4]}
"""
SBATCH = """\
#!/bin/sh
[ "$HPCFL_FAIL" ] && { echo "sbatch: error: no such partition" >&2; exit 1; }
echo "$HPCFL_OUT $HPCFL_PACK $@" >submitted
echo "7;cluster"
"""


@pytest.fixture
def file(job, tmp_path):
    path = tmp_path / "s.yaml"
    path.write_text(SWEEP)
    return path


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A place to submit from, where sbatch notes what it was given."""
    (tmp_path / "slurm").mkdir()
    (tmp_path / "slurm/array.sh").touch()
    (tmp_path / "sbatch").write_text(SBATCH)
    (tmp_path / "sbatch").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def finish(file, root, numbers, *overrides):
    """Play some runs of the sweep, in this process."""
    sweep = read_sweep(file, overrides)
    for number in numbers:
        with RunDir(root) as folder:
            for each in prepare(sweep.part(number, number), folder, partly=True):
                start(each.point.loaded, each.folder.root)


@pytest.mark.parametrize(
    ("numbers", "text"),
    [([4], "4"), ([0, 1, 2], "0-2"), ([0, 2, 3, 5, 7, 8], "0,2-3,5,7-8")],
)
def test_ranges(numbers, text):
    assert ranges(numbers) == text


@pytest.mark.slow
@pytest.mark.usefixtures("forked_python")
def test_some_points_are_played(file, tmp_path, hpcfl):
    root = tmp_path / "out"
    done = hpcfl("sweep", file, "--out", root, "--points", "3-9", "rounds=2")
    assert (done.code, done.out) == (0, []), done.err
    assert sorted(path.name for path in root.iterdir() if path.is_dir()) == ["seed3", "seed4"]
    listed = hpcfl("sweep", file, "--out", root, "--points", "4", "--dry-run", "rounds=2").text
    assert "1 run, 1 of them finished" in listed


@pytest.mark.parametrize("points", ["5-6", "3-2"])
def test_points_that_are_not_there_are_refused(file, refused, points):
    line = refused("sweep", file, "--points", points)
    assert f"--points: found {points}, expected some of 0-4: {file} has 5 runs" in line


@pytest.mark.parametrize("points", ["a", "1-", "-1", "1-b", ""])
def test_words_that_are_no_points(file, hpcfl, points, capsys):
    with pytest.raises(SystemExit) as end:
        hpcfl("sweep", file, f"--points={points}")
    assert end.value.code == 2
    assert "expected A-B or A, counted from 0" in capsys.readouterr().err


def test_parts_go_together_but_not_with_a_whole(file, tmp_path):
    sweep, root = read_sweep(file), tmp_path / "out"
    with RunDir(root) as one, RunDir(root) as other:
        prepare(sweep.part(0, 1), one, partly=True)
        prepare(sweep.part(2, 3), other, partly=True)
        with RunDir(root) as whole, pytest.raises(JobError, match="a sweep is alive"):
            prepare(sweep, whole)


def test_what_is_not_finished_is_submitted(file, here, hpcfl, own_process):
    finish(file, here / "runs/s", (0, 2, 3), "rounds=2")
    submit = ("sweep", file, "--submit", "--parallel", 2, "--sbatch", "-p 'a b' -t 5")
    done = hpcfl(*submit, "rounds=2")
    assert (done.code, done.out) == (0, ["how far they are: hpcfl status runs/s"])
    assert (here / "submitted").read_text() == (
        f"runs/s 2 --parsable --array=0,2 --job-name=s -p a b -t 5 slurm/array.sh {file} rounds=2\n"
    )
    (line,) = done.err
    assert line.endswith("submitted sweep: Slurm job 7: 2 runs, 3 finished before")
    assert hpcfl("status", "runs/s").out == [
        "finished          2 of 2  seed0",
        "not started       -       seed1",
        "finished          2 of 2  seed2",
        "finished          2 of 2  seed3",
        "not started       -       seed4",
        "5 runs: 3 finished, 2 not started",
    ]
    left = pending_runs(read_sweep(file, ["rounds=2"]), here / "runs/s")
    assert [run.action for run in left] == [
        "skip", "start", "skip", "skip", "start",
    ]  # fmt: skip


def test_a_task_of_which_a_run_is_alive_is_left_out(file, here, hpcfl, own_process):
    """It runs the other points of the task, too."""
    root, submit = here / "runs/s", ("sweep", file, "--submit", "--parallel", 2, "rounds=1")
    (root / "seed3").mkdir(parents=True)
    with RunDir(root / "seed3") as run:
        run.lock()
        assert " --array=0,2 " in hpcfl(*submit, "--dry-run").text
        done = hpcfl(*submit)
        assert done.code == 0, done.err
        assert " --array=0,2 " in (here / "submitted").read_text()
        assert done.err[-1].endswith("Slurm job 7: 3 runs, 0 finished before")
        (here / "submitted").unlink()
        alone = ("sweep", file, "--submit", "--parallel", 5)
        said = "runs/s: nothing to submit: all runs are finished, or of tasks that run"
        assert hpcfl(*alone).out == hpcfl(*alone, "--dry-run").out == [said]
    assert not (here / "submitted").exists()


def test_nothing_is_left_to_submit(file, here, hpcfl, own_process):
    finish(file, here / "runs/s", range(5), "rounds=1")
    done = hpcfl("sweep", file, "--submit", "rounds=1")
    assert done.out == ["runs/s: nothing to submit: all runs are finished, or of tasks that run"]
    assert not (here / "submitted").exists()


def test_the_command_is_shown(file, here, hpcfl):
    done = hpcfl("sweep", file, "--submit", "--dry-run", "algorithm={name: fedavg}")
    assert done.out == [
        f"HPCFL_OUT=runs/s HPCFL_PACK=1 sbatch --array=0-4 --job-name=s slurm/array.sh {file} "
        "'algorithm={name: fedavg}'"
    ]
    assert not (here / "submitted").exists()
    assert not (here / "runs").exists()


def test_a_shell_takes_the_command_that_is_shown(file, here, hpcfl):
    """Also with names that need quotes."""
    spaced = file.rename(here / "my sweep.yaml")
    (shown,) = hpcfl("sweep", spaced, "--submit", "--dry-run").out
    subprocess.run(["bash", "-c", shown], check=True)
    assert (here / "submitted").read_text().startswith("runs/my sweep 1 --array=0-4 ")


def test_what_cannot_be_submitted(file, here, monkeypatch, refused):
    submit = ("sweep", file, "--submit")
    assert '--sbatch: found "\'": No closing quotation' in refused(*submit, "--sbatch", "'")
    assert "--sbatch is for --submit" in refused("sweep", file, "--sbatch", "-t 5")
    monkeypatch.setenv("HPCFL_FAIL", "1")
    assert refused(*submit) == "JobError: sbatch: error: no such partition"
    (here / "sbatch").unlink()
    monkeypatch.setenv("PATH", str(here))
    assert "sbatch: No such file or directory; submit where Slurm" in refused(*submit)
    (here / "slurm/array.sh").unlink()
    assert "slurm/array.sh: is not here; submit from" in refused(*submit)


@pytest.mark.slow
@pytest.mark.usefixtures("forked_python")
def test_a_failed_run_is_told_until_it_is_tried_again(job, here, hpcfl):
    (here / "s.yaml").write_text(
        "job: job.yaml\ngrid:\n  lr: {wild: {local.lr: 1.0e+38}, gone: {data.path: gone.npz}}\n"
    )
    assert hpcfl("sweep", "s.yaml").code == 1
    lines = hpcfl("status", "runs/s").out
    assert lines[0] == "failed            -       gone"
    assert lines[1].startswith("diverged   ")
    assert lines[2] == "2 runs: 1 failed, 1 diverged"
    told = collect_runs([here / "runs/s"]).notes
    wild = f"{here}/runs/s/wild: failed: exit code 3: DivergedError: "
    assert any(note.startswith(wild) for note in told)  # the two ran at the same time
    assert (
        "0-1" in SlurmArray(read_sweep(here / "s.yaml"), (), here / "runs/s", 1, "").command_line()
    )
    with (here / "runs/s/sweep.log").open("ab") as log:
        log.write(log_line("2026-01-02 03:04:05 resumed  wild: from round 0"))
    RunDir(here / "runs/s/wild").add_to_history({"session": "again", "round": 0, "ranks": 1})
    assert hpcfl("status", "runs/s").out[2] == "2 runs: 1 failed, 1 not running"
