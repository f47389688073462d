"""Sweeps: what is run, resumed, skipped or refused, and what comes of it."""

import os
import shutil
import signal

import pytest

from hpcfl.data.base import DataConfig
from hpcfl.errors import Stopped, SweepError
from hpcfl.io import checksum
from hpcfl.io.signals import latch_early
from hpcfl.job.load import load
from hpcfl.models.base import ModelConfig
from hpcfl.runs.job_file.yaml_file import add_checksum
from hpcfl.runs.layout import RunDir
from hpcfl.start.components import choose_executor
from hpcfl.start.load_run import load_run
from hpcfl.start.resume_request import ResumeRequest
from hpcfl.tools.sweep import run_sweep
from hpcfl.tools.sweep.grid import read_sweep
from hpcfl.tools.sweep.pending import pending_runs
from hpcfl.tools.sweep.run_sweep import SweepOutcome
from tests.rundirs import cut_log, resolved

SWEEP = """\
job: job.yaml
grid:
  method:
    avg: {algorithm: {name: fedavg}}
    hbm: {algorithm: {name: fedhbm}}
  seed: [0, 1]
"""
NAMES = ["avg-seed0", "avg-seed1", "hbm-seed0", "hbm-seed1"]


@pytest.fixture
def file(job, tmp_path):
    path = tmp_path / "s.yaml"
    path.write_text(SWEEP)
    return path


def actions(path, root, *overrides):
    sweep = read_sweep(path, overrides)
    return [(run.point.name, run.action, run.done) for run in pending_runs(sweep, root)]


def events(root):
    """(event, run) of every line of the sweep's log."""
    lines = (root / "sweep.log").read_text().splitlines()
    return [(line.split()[2], line.split()[3].rstrip(":")) for line in lines]


def test_the_directory_of_a_run_is_none_of_runs(file, tmp_path, refused):
    run = tmp_path / "run"
    run.mkdir()
    (run / "job.yaml").write_bytes(resolved("rounds: 1\n"))
    line = refused("sweep", file, "--out", run)
    assert line == (
        f"JobError: {run}: has a job.yaml, as the directory of a run; choose one for runs by --out"
    )
    assert [path.name for path in run.iterdir()] == ["job.yaml"]


@pytest.mark.parametrize("more", ["", "--dry-run", "--submit"])
@pytest.mark.parametrize("below", ["", "below"])
def test_a_file_is_no_directory_of_runs(file, tmp_path, refused, more, below):
    (tmp_path / "user.txt").write_text("theirs")
    line = refused("sweep", file, "--out", tmp_path / "user.txt" / below, *more.split())
    assert line == (
        f"JobError: {tmp_path / 'user.txt'}: is a file, expected a directory; choose another with "
        "--out"
    )


@pytest.mark.slow
@pytest.mark.usefixtures("forked_python")
def test_a_sweep_whose_data_moved(file, job, tmp_path, hpcfl, refused):
    """Runs that go on take the new path; finished ones are told it by a resume."""
    root, there = tmp_path / "out", tmp_path / "there"
    assert hpcfl("sweep", file, "--out", root).code == 0
    there.mkdir()
    moved = (tmp_path / "data.npz").rename(there / "data.npz")
    shutil.rmtree(root / "avg-seed1/checkpoints/00000004")
    again = ("sweep", file, f"data.path={moved}", "--out", root)
    line = refused(*again)
    assert line == (
        f"JobError: command line: data.path is {tmp_path}/data.npz in {root}/avg-seed0, {moved} "
        f"here; if the data moved, say so to that run: `hpcfl resume {root}/avg-seed0 "
        f"data.path={moved}`"
    )
    for name in ("avg-seed0", "hbm-seed0", "hbm-seed1"):
        assert hpcfl("resume", root / name, f"data.path={moved}").code == 0
    assert hpcfl(*again).code == 0
    assert [action for _, action, _ in actions(file, root, f"data.path={moved}")] == ["skip"] * 4


@pytest.mark.slow
@pytest.mark.usefixtures("forked_python")
def test_all_runs_are_made_reported_and_skipped_the_next_time(file, tmp_path, hpcfl):
    root = tmp_path / "out"
    done = hpcfl("sweep", file, "--out", root, "--parallel", 2)
    assert done.code == 0, done.err
    assert "| avg-seed0 | fedavg " in done.text
    assert "+- " in done.text  # over the two seeds
    assert any(" finished hbm-seed1: 4 rounds, accuracy " in line for line in done.err)
    assert {event for event in events(root) if event[0] == "finished"} == {
        ("finished", name) for name in NAMES
    }
    before = {path: path.stat().st_mtime_ns for path in root.glob("*-seed*/**/*")}
    again = hpcfl("sweep", file, "--out", root)
    assert (again.code, again.out) == (0, done.out)
    assert sum("finished before" in line for line in again.err) == len(NAMES) + 1
    assert {path: path.stat().st_mtime_ns for path in root.glob("*-seed*/**/*")} == before
    assert hpcfl("report", root).out == done.out


def test_a_run_of_its_own_has_no_place_among_the_runs(file, job, tmp_path, refused):
    (tmp_path / "out").mkdir()
    (tmp_path / "out/sweep.log").touch()
    line = refused("run", job, "--out", tmp_path / "out")
    assert line == f"JobError: {tmp_path}/out: holds a sweep's runs; choose another with --out"
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["sweep.log"]


def test_where_the_runs_of_a_sweep_lie(file, tmp_path, hpcfl):
    """slurm/run.sh looks there for new checkpoints, and at nothing else of the sweep."""
    listed = hpcfl("sweep", file, "--where").out
    assert listed == [f"runs/{file.stem}/{name}" for name in NAMES]
    part = hpcfl("sweep", file, "--out", tmp_path / "out", "--points", "1-2", "--where").out
    assert part == [str(tmp_path / "out" / name) for name in NAMES[1:3]]
    assert not (tmp_path / "out").exists()


def test_a_sweep_called_as_its_job_has_a_directory_of_its_own(job, tmp_path, monkeypatch, hpcfl):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sweeps").mkdir()
    path = tmp_path / "sweeps/job.yaml"
    path.write_text("job: ../job.yaml\ngrid: {seed: [0]}\n")
    assert hpcfl("sweep", path, "--where").out == ["runs/job-sweep/seed0"]
    assert hpcfl("sweep", path, "--out", "x", "--where").out == ["x/seed0"]


def test_a_dry_run_starts_nothing(file, tmp_path, hpcfl):
    done = hpcfl("sweep", file, "--out", tmp_path / "out", "--dry-run", "rounds=3")
    assert done.code == 0
    assert "| hbm-seed1 | start | rounds=3  algorithm={name: fedhbm}  seed=1 |" in done.out
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
@pytest.mark.usefixtures("forked_python")
def test_only_some_labels_are_run(file, tmp_path, hpcfl):
    done = hpcfl("sweep", file, "--out", tmp_path / "out", "--only", "hbm,seed1", "rounds=2")
    assert done.code == 0, done.err
    assert [path.name for path in (tmp_path / "out").iterdir() if path.is_dir()] == ["hbm-seed1"]
    assert "| hbm-seed1 | fedhbm " in done.text
    assert not (tmp_path / "out/report.png").exists()  # which shows the whole sweep


def test_a_dry_run_shows_the_settings_of_each_run(file, job, tmp_path, hpcfl):
    """Other commands take them with the job: it is then the run of the sweep."""
    root = tmp_path / "out"
    asked = ("sweep", file, "--out", root, "--only", "hbm,seed0", "--dry-run", "rounds=2")
    (row,) = [line for line in hpcfl(*asked).out if line.startswith("| hbm-seed0 ")]
    settings = row.split("|")[3].strip().split("  ")
    assert hpcfl("run", job, *settings, "--out", root / "hbm-seed0").code == 0
    assert "1 run, 1 of them finished" in hpcfl(*asked).text


def test_scores_that_one_of_the_methods_lacks_are_refused_before_the_first_run(file, refused):
    line = refused("sweep", file, "--dry-run", "evaluate.personal=true")
    assert "evaluate.personal: fedavg makes no models of the clients' own" in line


def test_what_is_there_is_taken_into_account(file, job, tmp_path, hpcfl):
    root = tmp_path / "out"
    run = ("run", job, "algorithm={name: fedavg}")
    assert hpcfl(*run, "seed=0", "--out", root / "avg-seed0").code == 0
    assert hpcfl(*run, "seed=1", "--out", root / "avg-seed1").code == 0
    newest = root / "avg-seed1/checkpoints/00000004/manifest.json"
    newest.unlink()  # as a kill after round 2 leaves it
    assert actions(file, root) == [
        ("avg-seed0", "skip", 4), ("avg-seed1", "resume", 2), ("hbm-seed0", "start", 0),
        ("hbm-seed1", "start", 0),
    ]  # fmt: skip


@pytest.mark.usefixtures("forked_python")
def test_a_finished_run_without_checkpoints_is_finished(file, tmp_path, hpcfl, refused):
    """They may have been deleted to save space; a report reads the log alone."""
    root = tmp_path / "out"
    sweep = ("sweep", file, "--out", root, "--only", "avg,seed0")
    assert hpcfl(*sweep).code == 0
    for path in root.glob("avg-seed0/checkpoints/*/manifest.json"):
        path.unlink()
    assert actions(file, root)[0] == ("avg-seed0", "skip", 4)
    assert "| avg-seed0 | fedavg " in hpcfl(*sweep).text
    line = refused(*sweep, "rounds=6")
    assert f"{root}/avg-seed0: holds the log of a run, but none of its checkpoints" in line


@pytest.mark.usefixtures("forked_python")
def test_a_changed_number_is_written_as_yaml_reads_it(file, tmp_path, hpcfl):
    root = tmp_path / "out"
    sweep = ("sweep", file, "--out", root, "--only", "avg,seed0")
    assert hpcfl(*sweep).code == 0
    done = hpcfl(*sweep, "rounds=6", "store.cache_gib=5.0e-05")
    assert done.code == 0, done.err
    assert "cache_gib: 5.0e-05" in (root / "avg-seed0/job.yaml").read_text()


@pytest.mark.usefixtures("forked_python")
def test_a_free_key_may_change_before_the_first_checkpoint(file, tmp_path, hpcfl):
    """After a run that was refused because the disk is too small, say."""
    root = tmp_path / "out"
    sweep = ("sweep", file, "--out", root, "--only", "avg,seed0")
    assert hpcfl(*sweep, "checkpoint.keep=3").code == 0
    shutil.rmtree(root / "avg-seed0/checkpoints")
    (root / "avg-seed0/log.jsonl").unlink()
    done = hpcfl(*sweep, "checkpoint.keep=1")
    assert done.code == 0, done.err
    assert "keep: 1" in (root / "avg-seed0/job.yaml").read_text()


def test_a_run_of_another_job_is_told_with_the_key(file, job, tmp_path, hpcfl, refused):
    root = tmp_path / "out"
    run = ("run", job, "algorithm={name: fedavg}", "seed=0", "local.lr=0.2")
    assert hpcfl(*run, "--out", root / "avg-seed0").code == 0
    line = refused("sweep", file, "--out", root)
    assert f"job.yaml:5: {root}/avg-seed0 holds a run of another job: local.lr is 0.2 there" in line
    assert "command line: " in refused("sweep", file, "--out", root, "local.lr=0.3")
    file.write_text(SWEEP.replace("name: fedavg", "name: fedavg, server_lr: 0.5"))
    assert "s.yaml:4: " in refused("sweep", file, "--out", root, "local.lr=0.2")
    assert not (root / "sweep.log").exists()


@pytest.mark.usefixtures("forked_python")
def test_more_rounds_continue_finished_runs(file, job, tmp_path, hpcfl, refused):
    root = tmp_path / "out"
    sweep = ("sweep", file, "--out", root, "--only", "avg,seed0")
    assert hpcfl(*sweep).code == 0
    more = ("rounds=6", "evaluate.every=1")
    done = hpcfl(*sweep, *more)
    assert done.code == 0, done.err
    said = (root / "avg-seed0.log").read_text()
    assert "rounds was 4, is 6 after round 4" in said
    assert "evaluate.every was 2, is 1 after round 4" in said
    line = refused(*sweep, "rounds=5")
    assert f"rounds: found 5, but 6 are done in {root}/avg-seed0; give rounds=6 or more" in line


@pytest.mark.usefixtures("forked_python")
def test_more_rounds_with_a_callback(file, tmp_path, hpcfl):
    root = tmp_path / "out"
    called = "callbacks=[tensorboard]"
    sweep = ("sweep", file, "--out", root, "--only", "avg,seed0")
    assert hpcfl(*sweep).code == 0
    runs = pending_runs(read_sweep(file, ["rounds=6", called]), root)
    (changes,) = [run.changes for run in runs if run.action == "resume"]
    assert {"rounds=6", "callbacks=[tensorboard]"} <= {*changes}
    run = RunDir(root / "avg-seed0")
    request = ResumeRequest.of(run, changes, round=None, verify_states=True, copied=False)
    assert request.loaded.tree["callbacks"] == ["tensorboard"]


@pytest.mark.parametrize("executor", ["auto", "block"])
def test_a_run_that_chose_its_executor_is_the_sweeps(
    file, job, tmp_path, hpcfl, monkeypatch, executor
):
    monkeypatch.setattr(choose_executor, "MAX_BLOCK_SIZE", 1)
    monkeypatch.setattr("hpcfl.tools.sweep.pending.LEAST_EQUAL_SIZE", 1)
    root = tmp_path / "out"
    job.write_text(job.read_text() + f"executor: {executor}\n")
    run = ("run", job, "algorithm={name: fedavg}", "seed=0", "--out", root / "avg-seed0")
    assert hpcfl(*run).code == 0
    size = load_run(RunDir(root / "avg-seed0")).job.block_size
    assert size == (1 if executor == "block" else None)
    assert actions(file, root)[0] == ("avg-seed0", "skip", 4)


def test_status_has_a_line_for_every_run(job, tmp_path, hpcfl):
    root = tmp_path / "out"
    for name in ("a", "b", "c", "d"):
        assert hpcfl("run", job, "--out", root / name).code == 0
    cut_log(root / "b", 3)
    (root / "c/job.yaml").write_bytes(resolved("- 1\n"))
    with RunDir(root / "d") as held:
        held.lock()
        done = hpcfl("status", root)
    assert done.code == 0
    assert done.out[0] == "finished          4 of 4  a"
    assert done.out[1] == "not running       3 of 4  b"
    assert done.out[2].startswith(f"damaged      {root}/c/job.yaml: not the resolved job of a run")
    assert done.out[3] == "alive             4 of 4  d"


def test_a_damaged_job_is_told(file, tmp_path, refused):
    kept = tmp_path / "out/avg-seed1/job.yaml"
    kept.parent.mkdir(parents=True)
    for content in (b"{broken\n", b"- 1\n", b"\xff\n", b"\n"):
        kept.write_bytes(add_checksum(content))
        line = refused("sweep", file, "--out", tmp_path / "out")
        assert line.startswith(f"StoreError: {kept}: not the resolved job of a run")


def test_twice_at_once_is_refused(file, tmp_path, refused):
    """With the code of what is to be done again."""
    root = tmp_path / "out"
    root.mkdir()
    with RunDir(root) as held:
        held.lock("a sweep")
        assert "a sweep is alive in this directory" in refused(
            "sweep", file, "--out", root, code=75
        )


def test_a_live_run_is_refused(file, job, tmp_path, hpcfl, refused):
    root = tmp_path / "out"
    assert hpcfl("run", job, "algorithm={name: fedavg}", "seed=0",
                 "--out", root / "avg-seed0").code == 0  # fmt: skip
    with RunDir(root / "avg-seed0") as held:
        held.lock()
        line = refused("sweep", file, "--out", root, code=75)
        assert "a run is alive in this directory" in line


def test_under_mpirun_is_refused(file, tmp_path, monkeypatch, refused):
    monkeypatch.setenv("MPI_LOCALRANKID", "0")
    monkeypatch.setenv("PMI_RANK", "0")
    monkeypatch.setenv("PMI_SIZE", "1")
    assert "start a sweep without mpirun" in refused("sweep", file, "--out", tmp_path / "out")


@pytest.mark.slow
@pytest.mark.usefixtures("forked_python")
def test_a_failed_run_stops_no_other(job, tmp_path, hpcfl):
    path = tmp_path / "s.yaml"
    path.write_text(
        "job: job.yaml\ngrid:\n  lr: {wild: {local.lr: 1.0e+38}, tame: {local.lr: 0.1}}\n"
    )
    root = tmp_path / "out"
    done = hpcfl("sweep", path, "--out", root, "--parallel", 1)
    assert done.code == 3, done.err
    assert events(root)[2:] == [
        ("started", "wild"), ("failed", "wild"), ("started", "tame"), ("finished", "tame"),
    ]  # fmt: skip
    (line,) = [line for line in done.err if " failed " in line and "wild: " in line][:1]
    assert "exit code 3: DivergedError: " in line
    assert done.err[-1].startswith("SweepError: 1 of 2 runs failed: wild; ")
    assert "| tame" in done.text
    assert f"plot: {root / 'report.png'}" in done.err


@pytest.mark.parametrize(
    ("codes", "finished", "code"),
    [
        ([3, 3], [], 3), ([3, 1], [], 1), ([2], [], 2), ([2], ["a"], 1), ([-9], ["a"], 1),
        ([75, 3], [], 1), ([74, 1], ["a"], 74),
    ],
)  # fmt: skip
def test_exit_codes(tmp_path, codes, finished, code):
    failed = {f"r{index}": code for index, code in enumerate(codes)}
    with pytest.raises(SweepError, match="runs failed: r0") as caught:
        SweepOutcome(tmp_path, finished, failed).check()
    assert caught.value.exit_code == code


class Scripted:
    """A run that ends at the second look."""

    alive = 0
    most = 0
    begun = 0
    commands = ()
    words = "JobError: no"

    def __init__(self, command, folder, **_):
        Scripted.alive += 1
        Scripted.most = max(Scripted.most, Scripted.alive)
        Scripted.begun += 1
        Scripted.commands.append([str(word) for word in command])
        self.log = folder.log
        self._looks = 0

    def poll(self):
        self._looks += 1
        if self._looks < 2:
            return None
        Scripted.alive -= 1
        return 0 if Scripted.begun > 2 else 2

    def result(self):
        return "4 rounds"

    def last_message(self):
        return Scripted.words

    def kill(self):
        pass


@pytest.fixture
def scripted(monkeypatch):
    """Runs that are played, not started."""
    monkeypatch.setattr(run_sweep, "RunProcess", Scripted)
    monkeypatch.setattr(run_sweep, "POLL_S", 0)
    for name in ("alive", "most", "begun"):
        monkeypatch.setattr(Scripted, name, 0)
    monkeypatch.setattr(Scripted, "commands", [])
    return Scripted


@pytest.mark.parametrize(
    ("asked", "threads", "gpus", "most", "why"),
    [
        (None, 1, [], 4, "4 cores over 1 rank(s) of 1 thread(s)"),
        (None, 2, [], 2, "4 cores over 1 rank(s) of 2 thread(s)"),
        (None, 8, [], 1, "4 cores over 1 rank(s) of 8 thread(s)"),
        (3, 2, [], 3, "as asked"),
        (None, 1, ["0", "1"], 2, "2 GPUs over 1 rank(s)"),
    ],
)
def test_how_many_run_at_once(
    file, tmp_path, scripted, monkeypatch, asked, threads, gpus, most, why
):
    monkeypatch.setattr(run_sweep, "cores", lambda: 4)
    monkeypatch.setattr(run_sweep, "gpus", lambda: gpus)
    monkeypatch.setattr(run_sweep, "device_type", lambda _: "cuda" if gpus else "cpu")
    root = tmp_path / "out"
    run_sweep.run_sweep(read_sweep(file, [f"threads={threads}"]), root, asked)
    assert scripted.most == most
    assert (
        f"4 runs to do, 0 finished before, {most} at once: {why}; hpcfl status {root} --follow "
        "shows how far they are"
    ) in (root / "sweep.log").read_text()


def test_what_is_started_is_what_was_checked(file, job, tmp_path, scripted):
    sweep, root = read_sweep(file), tmp_path / "out"
    job.write_text(job.read_text().replace("rounds: 4", "rounds: 5"))
    run_sweep.run_sweep(sweep, root)
    assert scripted.commands[2] == ["run", f"{root}/hbm-seed0.yaml", "--out", f"{root}/hbm-seed0"]
    for point in sweep.points:
        assert load(root / f"{point.name}.yaml").tree == point.loaded.tree


def test_data_are_fetched_once_before_the_first_run(file, tmp_path, scripted, monkeypatch):
    fetched = []
    monkeypatch.setattr(
        DataConfig, "fetch", lambda data: fetched.append((data.clients, scripted.begun))
    )
    file.write_text(SWEEP + "  data.clients: [4, 5]\n")
    run_sweep.run_sweep(read_sweep(file), tmp_path / "out")
    assert fetched == [(4, 0), (5, 0)]
    assert scripted.begun == 8


def test_weights_are_fetched_once_before_the_first_run(file, tmp_path, scripted, monkeypatch):
    fetched = []
    monkeypatch.setattr(
        ModelConfig, "fetch", lambda model: fetched.append((model.bias, scripted.begun))
    )
    file.write_text(SWEEP + "  model.bias: [true, false]\n")
    run_sweep.run_sweep(read_sweep(file), tmp_path / "out")
    assert fetched == [(True, 0), (False, 0)]


def test_a_class_that_cannot_fetch_is_one_line(file, tmp_path, scripted, monkeypatch, refused):
    def fetch(_):
        raise RuntimeError("the mirror is gone")

    monkeypatch.setattr(DataConfig, "fetch", fetch)
    line = refused("sweep", file, "--out", tmp_path / "out")
    assert line.startswith("JobError: data.kind: ")
    assert ": cannot fetch its files in fetch (" in line
    assert "RuntimeError: the mirror is gone" in line
    assert scripted.begun == 0


def test_a_stop_while_files_are_fetched_is_heard_before_the_next(
    file, tmp_path, scripted, monkeypatch
):
    fetched = []

    def fetch(data):
        fetched.append(data.clients)
        os.kill(os.getpid(), signal.SIGTERM)

    latch_early()
    monkeypatch.setattr(DataConfig, "fetch", fetch)
    file.write_text(SWEEP + "  data.clients: [4, 5]\n")
    with pytest.raises(Stopped, match="stopped by SIGTERM; the same command resumes"):
        run_sweep.run_sweep(read_sweep(file), tmp_path / "out")
    assert (fetched, scripted.begun) == ([4], 0)
    assert not list((tmp_path / "out").glob("*.yaml"))


def test_a_silent_run_is_told(file, tmp_path, scripted, monkeypatch):
    monkeypatch.setattr(scripted, "words", "")
    run_sweep.run_sweep(read_sweep(file), tmp_path / "out")
    assert "failed   avg-seed0: exit code 2: no output" in (tmp_path / "out/sweep.log").read_text()


@pytest.fixture
def stopped(file, tmp_path, scripted, monkeypatch):
    """What the sweep writes of a run that ends as told, once it was told to stop itself."""

    def played(code, words, done=0):
        def poll(_):
            os.kill(os.getpid(), signal.SIGTERM)
            return code

        first, *others = pending_runs(read_sweep(file), tmp_path / "out")
        runs = [first._replace(done=done), *others]
        monkeypatch.setattr(run_sweep, "pending_runs", lambda *_: runs)
        monkeypatch.setattr(scripted, "words", words)
        monkeypatch.setattr(scripted, "poll", poll)
        with pytest.raises(Stopped):
            run_sweep.run_sweep(read_sweep(file), tmp_path / "out", 1)
        last = (tmp_path / "out/sweep.log").read_bytes().splitlines()[-1]
        return checksum.remove_from_line(last).decode()

    return played


@pytest.mark.parametrize(("done", "turn"), [(0, "first"), (2, "next")])
@pytest.mark.parametrize("code", [-15, 143, 15])
def test_a_run_stopped_before_it_listened_is_told(stopped, done, turn, code):
    said = stopped(code, "Please see the FAQ page", done)
    assert said.endswith(f"stopped  avg-seed0: before its {turn} round")


@pytest.mark.parametrize(
    ("code", "words", "told"),
    [
        (75, "Stopped: well", "Stopped: well"),
        (75, "", "with a checkpoint"),
        (255, "Stopped: well", "Stopped: well"),  # mpirun was about to end when it was told
    ],
)
def test_a_run_stopped_with_a_checkpoint_is_told(stopped, code, words, told):
    assert stopped(code, words).endswith(f"stopped  avg-seed0: {told}")


@pytest.mark.parametrize("code", [1, 2, 3, -9])
def test_a_run_that_fails_meanwhile_is_not_stopped(stopped, code):
    assert stopped(code, "no").endswith(f"failed   avg-seed0: exit code {code}: no")
