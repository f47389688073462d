"""Nothing outside a directory of hpcfl's is written or deleted, and nothing in it that is not its.

Every name that ``hpcfl.runs.names`` lists in turn is that of something else, and every command
is tried.  Each is refused in one line, or reads what it found; what is foreign stays as it was.
"""

import os
import re
import shutil
import signal
import subprocess
from contextlib import contextmanager

import pytest
import yaml

import hpcfl as api
from hpcfl.cli.main import main
from hpcfl.runs.manifest import committed
from hpcfl.runs.names import NAMES
from tests.long_form import long_form
from tests.parallel.outcome import outcome
from tests.rundirs import segment

EXAMPLES = {
    "ROUND": "00000004",
    "RANK": "0000",
    "SESSION": "0123abcd",
    "DIGEST": "data-0123456789abcdef.npz",
    "EVENTS": "events.out.tfevents.1.host.2.0123abcd",
    "POINT": "seed0",
    "RUN": "seed0",
    "SUBMISSION": "12",
    "SECRET": 8 * "0123",
}


def names_of(kind):
    """The names in a kind of directory and below it, as paths."""
    folders = {folder: names for folder, names in NAMES.items() if f"{folder}/".startswith(kind)}
    paths = (f"{folder}/{name}".partition("/")[2] for folder in folders for name in folders[folder])
    return tuple(re.sub("|".join(EXAMPLES), lambda found: EXAMPLES[found[0]], p) for p in paths)


OF_RUN = (*names_of("run/"), "checkpoints/00000005")
PARTS = ("job.yaml.part", "log.jsonl.part", "history.jsonl.part", "initial.npy.part")
COMMANDS = {
    "run": ["run", "JOB", "--out", "RUN"],
    "continue": ["run", "JOB", "rounds=5", "--continue", "--out", "RUN"],
    "resume": ["resume", "RUN", "rounds=5"],
    "copy": ["resume", "RUN", "rounds=5", "--out", "COPY"],
    "status": ["status", "RUN"],
    "report": ["report", "RUN", "--format", "csv"],
    "export": ["export", "RUN", "--clients", "-o", "OUT"],
    "best": ["export", "RUN", "--best", "-o", "OUT"],
    "sweep": ["sweep", "SWEEP", "--out", "RUNS"],
}
LIMIT_S = 60  # for a command that takes less than one second


def link_to_file(path, foreign):
    path.symlink_to(foreign / "file")


def link_to_folder(path, foreign):
    path.symlink_to(foreign / "folder")


def hard_link(path, foreign):
    os.link(foreign / "file", path)


def fifo(path, foreign):
    os.mkfifo(path)


def device(path, foreign):
    path.symlink_to("/dev/zero")


def folder(path, foreign):
    path.mkdir()
    (path / "theirs").write_text("theirs")


def file(path, foreign):
    path.write_text("theirs")


def link_to_nothing(path, foreign):
    path.symlink_to(foreign / "nothing")


LINKS = (link_to_file, link_to_folder, link_to_nothing, hard_link, device)
KINDS = (*LINKS, fifo, folder, file)


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    """A sweep of one finished run, whose clients have states, and which keeps its best model."""
    root = tmp_path_factory.mktemp("original")
    job = {
        "data": {"kind": "quadratics"},
        "model": {"name": "point"},
        "algorithm": {"name": "fedhbm"},
        "local": {"steps": 1, "lr": 0.1},
        "rounds": 4,
        "evaluate": {"every": 1, "best": True},
        "checkpoint": {"every": 2, "keep": 2},
        "cohort": {"kind": "uniform", "size": 1},
    }
    (root / "job.yaml").write_text(yaml.safe_dump(job))
    (root / "sweep.yaml").write_text("job: job.yaml\ngrid: {seed: [0]}\n")
    api.run(root / "job.yaml", out=root / "runs/seed0")
    return root


@pytest.fixture(scope="module")
def swept(original, tmp_path_factory):
    """The same as a sweep has left it."""
    root = tmp_path_factory.mktemp("swept") / "swept"
    shutil.copytree(original, root)
    assert main(["sweep", str(root / "sweep.yaml"), "--out", str(root / "runs")]) == 0
    return root


@contextmanager
def limited():
    """Fail where the block waits for ever."""

    def expired(*_):
        raise TimeoutError(f"no end after {LIMIT_S} s")

    before = signal.signal(signal.SIGALRM, expired)
    signal.alarm(LIMIT_S)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def content(path):
    """All that is below a folder."""
    return {
        entry.relative_to(path).as_posix(): entry.read_bytes() if entry.is_file() else None
        for entry in sorted(path.rglob("*"))
    }


def kind_of(path):
    """What lies at a path: where its link leads, its content, or its kind."""
    found = path.lstat()
    if path.is_symlink():
        return str(path.readlink())
    if path.is_dir():
        return (path / "theirs").read_text()
    return path.read_bytes() if path.is_file() else found.st_mode


# Each kind and each command once, and all pairs in the long form.
PAIRS = [
    pytest.param(make, command, marks=() if k % len(KINDS) == n else long_form)
    for n, make in enumerate(KINDS)
    for k, command in enumerate(COMMANDS)
]


@pytest.mark.slow
@pytest.mark.parametrize(("make", "command"), PAIRS)
def test_what_is_foreign_stays_as_it_was(original, tmp_path, hpcfl, make, command, own_process):
    for name in OF_RUN + (PARTS if make in LINKS else ()):
        place = tmp_path / name.replace("/", "-")
        run, foreign = place / "runs/seed0", place / "foreign"
        shutil.copytree(original, place)
        (foreign / "folder").mkdir(parents=True)
        (foreign / "folder/file").write_text("theirs")
        (foreign / "file").write_text("theirs")
        path = run / name.replace("SEGMENT", segment(run).name)
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
        path.parent.mkdir(exist_ok=True, parents=True)
        make(path, foreign)
        before, placed = content(foreign), kind_of(path)

        words = {"RUN": run, "RUNS": run.parent, "JOB": place / "job.yaml", "OUT": place / "x.npz"}
        words |= {"SWEEP": place / "sweep.yaml", "COPY": place / "copy"}
        with limited():
            done = hpcfl(*(words.get(word, word) for word in COMMANDS[command]))

        assert content(foreign) == before, (name, done.err)
        if name not in PARTS:  # hpcfl's own names for files that it has not finished
            assert kind_of(path) == placed, (name, done.err)
        assert not any("Traceback" in line for line in done.err), (name, done.err)
        if done.code:
            assert "Error: " in done.err[-1], (name, done.err)
            assert str(place) in done.err[-1], (name, done.err)
        shutil.rmtree(place)


def test_two_directories_with_the_same_files(original, tmp_path, hpcfl):
    """After ``cp -al`` or ``rsync --link-dest``, each goes on without harm to the other."""
    run, copy = tmp_path / "run", tmp_path / "copy"
    shutil.copytree(original / "runs/seed0", run)
    expected = tmp_path / "expected"
    assert hpcfl("run", original / "job.yaml", "rounds=9", "--out", expected).code == 0
    subprocess.run(["cp", "-al", run, copy], check=True)
    kept = {found.round: outcome_at(run, found.round, hpcfl) for found in checkpoints(run)}

    for path in (copy, run):
        assert hpcfl("resume", path, "rounds=9", "checkpoint.keep=9").code == 0
        other = run if path == copy else copy
        assert {r: outcome_at(other, r, hpcfl) for r in kept} == kept
        assert outcome(path)[1:3] == outcome(expected)[1:3]


def checkpoints(run):
    return committed(run / "checkpoints")


def outcome_at(run, round, hpcfl):
    """The model and the client states of a checkpoint, as they are exported."""
    target = run.parent / "x.npz"
    assert hpcfl("export", run, "--round", round, "--clients", "-o", target).code == 0
    return target.read_bytes()


def test_a_copy_that_is_made_while_the_run_goes_on(original, tmp_path, hpcfl):
    """Rows that the copy needs are not written, also where the run no longer keeps them."""
    run, copy = tmp_path / "run", tmp_path / "copy"
    shutil.copytree(original / "runs/seed0", run)
    before = outcome_at(run, 4, hpcfl)
    callback = LinkCopy(run, copy, at=6)
    api.resume(run, ["rounds=20"], callbacks=[callback])
    assert callback.made
    assert 4 not in [found.round for found in checkpoints(run)]
    assert outcome_at(copy, 4, hpcfl) == before


class LinkCopy(api.Callback):
    """Copies a run by hard links after a round."""

    def __init__(self, run, copy, at):
        self.run, self.copy, self.at, self.made = run, copy, at, False

    def round(self, record, model):
        if record["round"] == self.at:
            subprocess.run(["cp", "-al", self.run, self.copy], check=True)
            self.made = True


@pytest.mark.slow
@pytest.mark.parametrize("make", KINDS)
def test_what_is_foreign_in_the_place_of_a_copy_that_is_made_stays(
    original, tmp_path, hpcfl, make, own_process
):
    place, foreign = tmp_path / ".copy.part", tmp_path / "foreign"
    (foreign / "folder").mkdir(parents=True)
    (foreign / "file").write_text("theirs")
    make(place, foreign)
    before, placed = content(foreign), kind_of(place)
    with limited():
        done = hpcfl("resume", original / "runs/seed0", "rounds=5", "--out", tmp_path / "copy")
    assert (done.code, len(done.err)) == (2, 1), done.err
    assert str(place) in done.err[0]
    assert (content(foreign), kind_of(place)) == (before, placed)
    assert not (tmp_path / "copy").exists()


def test_links_that_a_tracker_makes_lead_nowhere_else(original, tmp_path, hpcfl, refused):
    """wandb makes some between its own files."""
    run, foreign = tmp_path / "run", tmp_path / "foreign"
    shutil.copytree(original / "runs/seed0", run)
    (run / "wandb/offline-run-1/logs").mkdir(parents=True)
    (run / "wandb/latest-run").symlink_to("offline-run-1")
    (run / "wandb/debug.log").symlink_to(run / "wandb/offline-run-1/logs/not-there.log")
    assert hpcfl("resume", run, "rounds=5").code == 0
    foreign.mkdir()
    for name in ("mlruns/0", "wandb/other", "events/theirs"):
        (run / name).parent.mkdir(exist_ok=True)
        (run / name).symlink_to(foreign)
        line = refused("resume", run, "rounds=6")
        assert line.startswith(f"JobError: {run / name}: is a symbolic link, expected a file")
        (run / name).unlink()
    assert not list(foreign.iterdir())


@pytest.mark.slow
@pytest.mark.parametrize("make", KINDS)
@pytest.mark.parametrize("command", ["sweep", "--submit", "report"])
def test_what_is_foreign_among_the_runs_of_a_sweep_stays(
    swept, tmp_path, monkeypatch, hpcfl, make, command, own_process
):
    """Also where all runs are finished: the sweep would begin them, and replace its plot."""
    (tmp_path / "slurm").mkdir()
    (tmp_path / "slurm/array.sh").touch()
    monkeypatch.chdir(tmp_path)
    for name in ("report.png",) if command == "report" else names_of("sweep/"):
        if name == EXAMPLES["POINT"] and make == folder:  # as any folder in which a run begins
            continue
        place = tmp_path / name
        runs, foreign = place / "runs", place / "foreign"
        shutil.copytree(swept, place)
        (foreign / "folder").mkdir(parents=True)
        (foreign / "folder/file").write_text("theirs")
        (foreign / "file").write_text("theirs")
        path = runs / name
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
        make(path, foreign)
        before, placed = content(place), kind_of(path)

        words = ["sweep", place / "sweep.yaml", "--out", runs]
        words = ["report", runs, "--plot"] if command == "report" else words
        with limited():
            done = hpcfl(*words, *([command] if command.startswith("--") else []))

        assert kind_of(path) == placed, name
        if name != "lock" or make not in (hard_link, file):  # whose content nobody reads
            assert done.code == 2, (name, done.err)
            (line,) = done.err
            assert line.startswith(f"JobError: {path}: "), line
            assert content(place) == before, name
        shutil.rmtree(place)


@pytest.mark.parametrize("name", ["ranks/theirs", "checkpoints/00001000", "stores/theirs", "kept"])
def test_a_folder_of_the_users_is_no_run(original, tmp_path, refused, name):
    project = tmp_path / "project"
    (project / name).mkdir(parents=True)
    (project / name / "file").write_text("theirs")
    before = content(project)
    line = refused("run", original / "job.yaml", "--out", project)
    assert f"{project}: holds {name.partition('/')[0]}, but no job.yaml" in line
    assert content(project) == before


def test_only_what_the_run_made_is_deleted(original, tmp_path, hpcfl):
    run = tmp_path / "run"
    shutil.copytree(original / "runs/seed0", run)
    theirs = (
        *("ranks/theirs/file", "ranks/0123abcd/file", "stores/deadbeef-r0000-s0000.h5"),
        *("stores/shared/file", "checkpoints/00000001/file", "checkpoints/notes/file"),
    )
    for name in theirs:
        (run / name).parent.mkdir(exist_ok=True, parents=True)
        (run / name).write_text("theirs")
    (run / "ranks/0123abcd/0000.json").write_text("left by a start that was killed")
    assert hpcfl("resume", run, "rounds=9").code == 0
    assert {name: (run / name).read_text() for name in theirs} == dict.fromkeys(theirs, "theirs")
    assert not (run / "ranks/0123abcd/0000.json").exists()


@pytest.mark.usefixtures("forked_python")
def test_a_sweep_and_its_copy_by_hard_links(original, tmp_path, hpcfl):
    for name in ("job.yaml", "sweep.yaml"):
        shutil.copy(original / name, tmp_path / name)
    runs, copy = tmp_path / "runs", tmp_path / "copy"
    assert hpcfl("sweep", tmp_path / "sweep.yaml", "--out", runs).code == 0
    before = content(runs)
    subprocess.run(["cp", "-al", runs, copy], check=True)
    assert hpcfl("sweep", tmp_path / "sweep.yaml", "rounds=6", "--out", copy).code == 0
    assert content(runs) == before
