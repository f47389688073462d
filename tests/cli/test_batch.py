"""Which command a start of a batch script runs, and whether another start follows."""

import json
import shutil
import subprocess

import pytest

from hpcfl.cli.batch import Start, begin, judge, next_start, read_submission
from hpcfl.errors import JobError

SWEEP = "job: quickstart\ngrid: {seed: [0, 1, 2, 3, 4, 5, 6, 7, 8]}\n"
STAGED = {"HPCFL_STAGE": "x.h5", "HPCFL_SCRATCH": "/disk"}


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    """An empty folder with a job and a sweep, and none of the variables."""
    monkeypatch.chdir(tmp_path)
    for name in ("OUT", "MAX_STARTS", "WAIT_S", "TASK", "SEED", "INDEX", "PACK", "STAGE"):
        monkeypatch.delenv(f"HPCFL_{name}", raising=False)
    (tmp_path / "a.yaml").write_text("rounds: 3\n")
    (tmp_path / "s.yaml").write_text(SWEEP)
    return tmp_path


def commit(run, *rounds):
    for round in rounds:
        (run / f"checkpoints/{round:08}").mkdir(parents=True)
        (run / f"checkpoints/{round:08}/manifest.json").touch()


# What is started


@pytest.mark.parametrize(
    ("words", "env", "out", "command"),
    [
        ("a.yaml seed=3", {}, "runs/a-seed3", "run a.yaml seed=3 --out runs/a-seed3 --continue"),
        ("a.yaml", {"HPCFL_OUT": "mine/"}, "mine", "run a.yaml --out mine --continue"),
        ("a.yaml --out mine", {}, "mine", "run a.yaml --out mine --out mine --continue"),
        (
            "a.yaml rounds=1",
            {"HPCFL_SEED": "5"},
            "runs/a-rounds1-seeds/seed5",
            "run a.yaml rounds=1 seed=5 --out runs/a-rounds1-seeds/seed5 --continue",
        ),
        (
            "a.yaml",
            {"HPCFL_INDEX": "0", "HPCFL_OUT": "mine"},
            "mine/seed0",
            "run a.yaml seed=0 --out mine/seed0 --continue",
        ),
        (
            "a.yaml seed=3",
            {**STAGED, "SLURM_TMPDIR": ""},
            "runs/a-seed3",
            "run a.yaml seed=3 data.root=/disk store.dir=/disk --out runs/a-seed3 --continue",
        ),
        (
            "a.yaml",
            {**STAGED, "SLURM_TMPDIR": "/job"},
            "runs/a",
            "run a.yaml data.root=/disk store.dir=/job --out runs/a --continue",
        ),
        (
            "a.yaml store={dir:/states}",
            {**STAGED, "HPCFL_OUT": "mine"},
            "mine",
            "run a.yaml store={dir:/states} data.root=/disk --out mine --continue",
        ),
        ("s.yaml", {}, "runs/s", "sweep s.yaml --out runs/s"),
        (
            "s.yaml --points 1-1",
            {"HPCFL_TASK": "sweep"},
            "runs/s",
            "sweep s.yaml --points 1-1 --out runs/s",
        ),
        (
            "s.yaml rounds=1",
            {"HPCFL_INDEX": "2", "HPCFL_PACK": "3", "HPCFL_OUT": "mine"},
            "mine",
            "sweep s.yaml rounds=1 --points 6-8 --parallel 3 --out mine",
        ),
    ],
)
def test_the_words_and_variables_of_a_job_or_a_sweep(words, env, out, command):
    found = read_submission(words.split(), env)
    assert (str(found.out), " ".join(found.words)) == (out, command)
    assert found.later is None
    names = [run.name for run in found.runs]
    if found.kind == "job":
        assert found.runs == (found.out,)
    elif "HPCFL_INDEX" in env:
        assert names == ["seed6", "seed7", "seed8"]
    else:
        assert names == (["seed1"] if "--points" in words else [f"seed{k}" for k in range(9)])


@pytest.mark.parametrize(
    ("words", "env", "line"),
    [
        ("", {}, "found no job"),
        ("a.yaml", {"HPCFL_TASK": "jobs"}, "HPCFL_TASK: found jobs, expected job, sweep or run"),
        ("a.yaml rounds", {}, "expected key.path=value"),
        ("unknown", {}, "no packaged job has this name"),
        ("a.yaml data.root=/mine", STAGED, "data.root=/mine: staged data are read from the nodes"),
        ("a.yaml", {"HPCFL_INDEX": "1", "HPCFL_PACK": "2"}, "make one with the axis seed"),
        ("s.yaml", {"HPCFL_SEED": "1"}, "HPCFL_STAGE and HPCFL_SEED are for a job"),
        ("s.yaml --only seed1", {"HPCFL_INDEX": "1"}, "--only: an array runs points of the whole"),
        ("s.yaml --points 1", {"HPCFL_INDEX": "1"}, "--points: an array runs points of the whole"),
        ("s.yaml", {"HPCFL_PACK": "none"}, "HPCFL_PACK: found none, expected a whole number"),
        ("old", {"HPCFL_OUT": "new"}, "old is the directory of a run, which is resumed there"),
        ("old", {"HPCFL_INDEX": "1"}, "old is the directory of a run, which is resumed there"),
        ("a.yaml --round 3", {}, "hpcfl run a.yaml --round 3: is no command"),
    ],
)
def test_what_cannot_be_started(here, words, env, line):
    (here / "old").mkdir()
    (here / "old/job.yaml").touch()
    with pytest.raises(JobError, match=line) as error:
        read_submission(words.split(), env)
    assert error.value.exit_code == 2


# How starts are counted


def test_starts_in_a_row_are_counted_until_a_higher_round_is_committed():
    start = next_start(None, {"a": 0, "b": 20})
    assert start == Start(1, {"a": 0, "b": 20})
    again = next_start(start, {"a": 0, "b": 20})
    assert again == Start(2, {"a": 0, "b": 20})
    # Rounds that were gone back to are no progress until the highest is passed.
    lower = next_start(again, {"a": 0, "b": 10})
    assert lower == Start(3, {"a": 0, "b": 20})
    assert next_start(lower, {"a": 5, "b": 10}) == Start(1, {"a": 5, "b": 20})


@pytest.mark.parametrize("text", ["", "2:123 4", "[]", "{}", '{"number": 2, "rounds": [3]}'])
def test_a_file_that_counts_nothing_is_not_replaced(tmp_path, text):
    counter, job = tmp_path / "run.12.starts", tmp_path / "job.yaml"
    job.write_text("rounds: 5\n")
    counter.write_text(text)
    for first in (True, False):
        with pytest.raises(JobError, match="holds no count of the starts") as error:
            begin("12", [str(job), "--out", str(tmp_path / "run")], {}, first=first)
        assert error.value.exit_code == 2
        assert counter.read_text() == text
    counter.unlink()
    counter.symlink_to(tmp_path / "theirs")
    with pytest.raises(JobError, match="is a symbolic link, expected a file of the submission"):
        Start.read(counter)


# Whether another start follows

FRESH, BEGUN = {"a": 0}, {"a": 20}


@pytest.mark.parametrize(
    ("status", "rounds", "moved", "asked", "again", "reason"),
    [
        (0, BEGUN, True, None, False, "exit code 0: finished"),
        (2, BEGUN, True, None, False, "exit code 2: the same command would end so again"),
        (3, BEGUN, True, 9, False, "exit code 3: the same command would end so again"),
        (74, BEGUN, True, None, False, "exit code 74: a disk is full"),
        (130, BEGUN, True, None, False, "exit code 130: interrupted by hand"),
        (75, FRESH, False, 9, True, "exit code 75"),
        (75, BEGUN, True, None, True, "exit code 75"),
        # A rank was killed, srun could not start one, or a signal came before it was known.
        (137, FRESH, False, None, True, "exit code 137 and no checkpoint since the start"),
        (140, BEGUN, False, None, True, "exit code 140 and no checkpoint since the start"),
        (138, FRESH, False, 9, True, "stopped by exit code 138"),
        (137, FRESH, True, None, True, "exit code 137 after new checkpoints"),
        # An error: of a run that has come somewhere it may be a lost rank.
        (1, FRESH, False, None, False, "exit code 1 and no checkpoint since the start"),
        (1, FRESH, False, 9, False, "exit code 1 and no checkpoint since the start"),
        (1, FRESH, True, None, True, "exit code 1 after new checkpoints"),
        (1, BEGUN, False, None, True, "exit code 1 and no checkpoint since the start"),
    ],
)
def test_what_an_exit_code_means(status, rounds, moved, asked, again, reason):
    found = judge(status, Start(1, rounds), moved=moved, most=3, asked_s=asked)
    assert found.again == again
    assert found.reason.startswith(reason)
    last = judge(status, Start(3, rounds), moved=moved, most=3, asked_s=asked)
    assert last.again == (again and moved)
    if again and not moved:
        assert "3 starts in a row came to no new checkpoint (HPCFL_MAX_STARTS)" in last.reason
        assert ("the signal to stop came 9 s after the start" in last.reason) == bool(asked)


def test_ranks_that_were_not_started():
    start = Start(1, FRESH)
    for status, again in ((75, True), (1, True), (2, False), (74, False)):
        found = judge(status, start, moved=False, most=3, because="staging failed")
        assert found.again == again
        assert not again or found.reason == "staging failed"


# The commands


def shell(text, *names):
    """What variables of bash have after an answer was evaluated; arrays by their words."""
    show = "".join(f'; echo "${{{name}[*]}}"' for name in names)
    done = subprocess.run(
        ["bash", "-c", f'eval "$1"{show}', "", text], capture_output=True, text=True, check=True
    )
    return done.stdout.splitlines()


@pytest.fixture
def batch(hpcfl):
    """`hpcfl batch`, and the words that the start runs, or whether another follows and why."""

    def call(*arguments):
        done = hpcfl("batch", *arguments)
        assert done.code == 0, done.err
        names = ("words",) if arguments[0] == "begin" else ("again", "reason")
        return shell(done.text, *names)

    return call


def test_a_submission_from_its_first_start_to_its_last(here, batch, hpcfl, monkeypatch):
    monkeypatch.setenv("HPCFL_MAX_STARTS", "2")
    counter, run = "runs/a.12.starts", here / "runs/a"
    begin, words = ("begin", "12", "a.yaml"), ["run a.yaml --out runs/a --continue"]
    assert batch("begin", "--first", "12", "a.yaml") == words
    commit(run, 0, 20)
    assert batch("end", "--asked", "7", counter, "75") == ["1", "exit code 75"]
    for expected in (["1", "exit code 1 and no checkpoint since the start"], None):
        assert batch(*begin) == words
        found = batch("end", counter, "1")
        assert found == expected or found[0] == ""
    done = hpcfl("batch", *begin)  # Slurm itself has requeued it
    assert done.code == 1
    assert done.err == [
        "JobError: start 3 is not begun: 2 starts in a row came to no new checkpoint "
        "(HPCFL_MAX_STARTS)"
    ]
    assert not (here / counter).exists()


def test_another_submission_of_the_same_number_is_counted_anew(here, batch):
    for _ in range(3):
        batch("begin", "12", "a.yaml")
    batch("begin", "--first", "12", "a.yaml")
    assert json.loads((here / "runs/a.12.starts").read_text())["number"] == 1
    for _ in range(2):
        batch("begin", "12", "a.yaml")
    batch("begin", "13", "a.yaml")
    assert json.loads((here / "runs/a.12.starts").read_text())["number"] == 3


def test_checkpoints_of_other_points_of_a_sweep_are_no_progress(here, batch):
    """Another task of the array may run them meanwhile."""
    batch("begin", "12_0", "s.yaml", "--points", "0-1")
    commit(here / "runs/s/seed2", 7)
    assert batch("end", "runs/s.12_0.starts", "1")[0] == ""
    commit(here / "runs/s/seed1", 7)
    assert batch("end", "runs/s.12_0.starts", "1") == ["1", "exit code 1 after new checkpoints"]


def test_names_of_files_are_quoted_for_the_shell(here, batch, hpcfl, monkeypatch):
    monkeypatch.setenv("HPCFL_OUT", "it's $(touch here)")
    done = hpcfl("batch", "begin", "12", "a.yaml", "data={path: a b}")
    found = shell(done.text, "out", "runs", "counter", "kind", "wait_s")
    assert found == [
        "it's $(touch here)", "it's $(touch here)", "it's $(touch here).12.starts", "job", "900",
    ]  # fmt: skip
    assert not (here / "here").exists()


# A run that is resumed


@pytest.fixture
def old(here):
    """The directory of a run of 60 rounds, which was started once."""
    run = here / "old"
    commit(run, 0, 20, 40, 60)
    (run / "job.yaml").touch()
    (run / "history.jsonl").write_text("{}\n")
    return run


def begun(run, **entry):
    with (run / "history.jsonl").open("a") as history:
        history.write(f"{json.dumps(entry)}\n")


def gone_back(run, round, **entry):
    """As a start leaves the run that has gone back."""
    for folder in (run / "checkpoints").iterdir():
        if int(folder.name) > round:
            shutil.rmtree(folder)
    begun(run, **entry)


def test_a_run_goes_back_once(old, batch):
    """From there on its rounds count, though they are below those before."""
    counter = "old.12.starts"
    words = ("12", "old", "--round", "20", "--no-verify", "rounds=90")
    assert batch("begin", "--first", *words) == [f"resume {' '.join(words[1:])}"]
    # Killed before it went back: the rounds before are no progress of this submission's.
    assert batch("end", counter, "137") == ["1", "exit code 137 and no checkpoint since the start"]
    assert batch("begin", *words) == [f"resume {' '.join(words[1:])}"]
    gone_back(old, 20)
    assert batch("end", counter, "137") == ["1", "exit code 137 and no checkpoint since the start"]
    assert batch("begin", *words) == ["resume old --no-verify"]
    commit(old, 40)
    assert batch("end", counter, "137") == ["1", "exit code 137 after new checkpoints"]
    assert batch("begin", *words) == ["resume old --no-verify"]
    assert json.loads((old.parent / counter).read_text()) == {
        "number": 1, "rounds": {"old": 40}, "history": 1,
    }  # fmt: skip


def test_a_run_goes_back_once_also_by_another_submission(old, batch):
    """The start that went back has said so in the history."""
    words = ("old", "--round", "20", "--no-verify", "rounds=90")
    gone_back(old, 20, request={"round": 20, "overrides": ["rounds=90"]})
    asked = [f"resume {' '.join(words)}"]
    assert batch("begin", "--first", "12", *words) == asked  # nothing is lost
    commit(old, 40)
    begun(old)
    for job in ("13", "14"):
        assert batch("begin", "--first", job, *words) == ["resume old --no-verify"]
        assert batch("end", f"old.{job}.starts", "75") == ["1", "exit code 75"]
    assert batch("begin", "--first", "15", *words, "rounds=80") == [f"{asked[0]} rounds=80"]


def test_a_copy_is_made_once(here, old, batch):
    counter, words = "new.12.starts", ("12", "old", "--out", "new", "--round", "40", "local.lr=0.1")
    for first in (["--first"], []):  # the first one is killed before the copy is there
        assert batch("begin", *first, *words) == [f"resume {' '.join(words[1:])}"]
    shutil.copytree(old, here / "new")
    gone_back(here / "new", 40)
    assert batch("begin", *words) == ["resume new"]
    # The copied rounds were none of its own.
    assert json.loads((here / counter).read_text())["number"] == 3
    commit(here / "new", 60)
    assert batch("end", counter, "75") == ["1", "exit code 75"]


def test_a_copy_that_was_there_before_is_refused_as_before(here, old, batch):
    shutil.copytree(old, here / "new")
    words = ("12", "old", "--out", "new")
    for first in (["--first"], []):
        assert batch("begin", *first, *words) == ["resume old --out new"]


def test_a_resume_without_options_is_the_same_in_every_start(old, batch):
    for first in (["--first"], []):
        assert batch("begin", *first, "12", "old/", "--no-verify") == ["resume old/ --no-verify"]
        begun(old)
    assert batch("end", "old.12.starts", "75") == ["1", "exit code 75"]
