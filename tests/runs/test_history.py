"""How a start of a run ended: what the history, `hpcfl status` and `hpcfl report` say of it."""

import os
import shutil
import signal

import pytest

import hpcfl as program
from hpcfl.runs.history import Outcome, last_outcome, recorded_machines, state_of
from hpcfl.runs.layout import RunDir
from hpcfl.start.session import RankSession
from tests.rundirs import cut_log, starts

pytestmark = pytest.mark.usefixtures("own_process")


def lines(done):
    assert (done.code, done.err) == (0, [])
    return {line[:11].strip(): line[12:] for line in done.out}


def at_round(monkeypatch, round, act):
    """Do something when a round has been written to the log."""
    record = RankSession.record

    def play(self, line, *more):
        record(self, line, *more)
        if line["round"] == round:
            act()

    monkeypatch.setattr(RankSession, "record", play)


def fail():
    raise RuntimeError("no such\nmatrix")


def test_a_run_that_diverged(job, tmp_path, hpcfl):
    run = tmp_path / "runs" / "run"
    done = hpcfl("run", job, "local.lr=3.0e+38", "--out", run)
    assert done.code == 3
    said = lines(hpcfl("status", run))
    assert said["run"].endswith("fedhbm, diverged")
    assert said["ended"] == done.err[-1].removeprefix("DivergedError: ")
    assert "resume" not in said  # it would diverge again
    (start,) = starts(run)
    assert (start["outcome"]["ending"], start["outcome"]["round"]) == ("diverged", 1)
    assert start["ended"] >= start["time"]
    assert "| 0/4 diverged |" in hpcfl("report", run).text
    assert hpcfl("status", run.parent).out[-1] == "1 run: 1 diverged"


def test_a_run_that_was_stopped_and_went_on(job, tmp_path, hpcfl, monkeypatch):
    run = tmp_path / "run"
    with monkeypatch.context() as patched:
        at_round(patched, 2, lambda: os.kill(os.getpid(), signal.SIGTERM))
        assert hpcfl("run", job, "--out", run).code == 75
    said = lines(hpcfl("status", run))
    assert said["run"].endswith("fedhbm, stopped")
    assert said["ended"].startswith("stopped by SIGTERM after round 3 of 4, with a checkpoint")
    assert said["resume"] == f"hpcfl resume {run}"
    assert "| 3/4 stopped |" in hpcfl("report", run).text
    assert hpcfl("resume", run).code == 0
    said = lines(hpcfl("status", run))
    assert said["run"].endswith("fedhbm, finished")
    assert "ended" not in said
    assert [start["outcome"]["ending"] for start in starts(run)] == ["stopped", "finished"]


def test_a_start_that_ended_before_its_rounds(job, tmp_path, hpcfl, monkeypatch):
    """Such as by a kill while the states are verified; also while it is still alive."""
    run = tmp_path / "run"
    assert hpcfl("run", job, "--out", run).code == 0
    monkeypatch.setattr(RankSession, "open_store", lambda self: fail())
    with pytest.raises(RuntimeError):
        hpcfl("resume", run, "rounds=8")
    assert "opened" in starts(run)[-1]
    assert lines(hpcfl("status", run))["run"].endswith("fedhbm, finished")
    assert hpcfl("report", run).err == []


def test_a_resume_that_is_stopped_before_its_first_round(job, tmp_path, hpcfl, monkeypatch):
    run = tmp_path / "run"
    assert hpcfl("run", job, "--out", run).code == 0
    monkeypatch.setattr(
        RankSession, "start_callbacks", lambda self, done: os.kill(os.getpid(), signal.SIGTERM)
    )
    assert hpcfl("resume", run, "rounds=8").code == 75
    outcome = starts(run)[-1]["outcome"]
    assert (outcome["ending"], outcome["round"]) == ("stopped", 4)


def test_a_run_that_failed(job, tmp_path, hpcfl, monkeypatch):
    run = tmp_path / "run"
    at_round(monkeypatch, 2, fail)
    with pytest.raises(RuntimeError):
        program.run(job, out=run)
    said = lines(hpcfl("status", run))
    assert said["run"].endswith("fedhbm, failed")
    assert said["ended"] == "RuntimeError: no such matrix"
    assert said["resume"] == f"hpcfl resume {run}"


def test_a_run_that_was_killed(job, tmp_path, hpcfl, monkeypatch):
    """Nothing was written down: the process that begins and the one that is gone look alike."""
    run = tmp_path / "run"
    at_round(monkeypatch, 2, lambda: os._exit(9))
    child = os.fork()
    if not child:
        program.run(job, out=run)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
    said = lines(hpcfl("status", run))
    assert said["run"].endswith("fedhbm, not running")
    assert said["ended"].startswith(
        "without a message: it was killed, its node was lost, or its disk was full; see "
    )
    (session,) = (run / "ranks").iterdir()
    (session / "report").write_text("rank 1 of 2 is gone\n")  # as the rank that notices
    assert lines(hpcfl("status", run))["ended"] == "rank 1 of 2 is gone"


@pytest.mark.parametrize(
    "tail",
    [
        b'{"opened": "0123',
        b'\0\0\0on"}, "crc32": 1\n',
        b"\0" * 4096,
        bytes(range(256)),
        b"\n",
        b'{"settings": {}}\n{"round": 3, ',
    ],
)
def test_a_start_leaves_out_what_is_no_whole_line(job, tmp_path, hpcfl, tail):
    """Nobody needs it to resume.  A line that was whole once is not left out."""
    run, copy = tmp_path / "run", tmp_path / "copy"
    assert hpcfl("run", job, "--out", run).code == 0
    whole = starts(run)
    with (run / "history.jsonl").open("ab") as file:
        file.write(tail)
    for words in (("--out", copy), ()):
        done = hpcfl("resume", run, "rounds=5", *words)
        assert done.code == 0, done.err
        assert any(f"{run}/history.jsonl:2: is no whole line, and none" in s for s in done.err)
    assert starts(run)[0] == starts(copy)[0] == whole[0]
    assert len(starts(run)) == 2


def test_a_line_of_the_history_without_its_line_break_is_whole(job, tmp_path, hpcfl):
    run = tmp_path / "run"
    assert hpcfl("run", job, "--out", run).code == 0
    before, file = starts(run), run / "history.jsonl"
    file.write_bytes(file.read_bytes().removesuffix(b"\n"))
    assert lines(hpcfl("status", run))["run"].endswith("fedhbm, finished")
    assert hpcfl("resume", run, "rounds=5").code == 0
    assert starts(run)[:1] == before


def test_a_history_that_was_deleted_is_missed(job, tmp_path, hpcfl):
    run = tmp_path / "run"
    assert hpcfl("run", job, "rounds=2", "--out", run).code == 0
    (run / "history.jsonl").unlink()
    done = hpcfl("resume", run, "rounds=4")
    assert done.code == 0
    assert "holds no earlier start; expected one, as 2 rounds are done" in "\n".join(done.err)
    again = hpcfl("resume", run, "rounds=5")  # it has one now
    assert (again.code, "no earlier start" in "\n".join(again.err)) == (0, False)


@pytest.mark.parametrize(
    ("left", "said"), [(2, "the newest checkpoint is of round 2"), (0, "no checkpoint is left")]
)
def test_a_finished_run_whose_checkpoints_were_deleted(job, tmp_path, hpcfl, left, said):
    run = tmp_path / "run"
    assert hpcfl("run", job, "--out", run).code == 0
    assert "warning" not in lines(hpcfl("status", run))
    for folder in (run / "checkpoints").iterdir():
        if int(folder.name) > left or not left:
            shutil.rmtree(folder)
    warning = lines(hpcfl("status", run))["warning"]
    assert warning == f"the log has 4 rounds, but {said}: later ones were deleted"


def test_a_run_that_was_interrupted_before_its_first_checkpoint(job, tmp_path, hpcfl):
    run = tmp_path / "run"
    assert hpcfl("run", job, "--out", run).code == 0
    for name in ("checkpoints", "log.jsonl", "history.jsonl"):
        path = run / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    said = lines(hpcfl("status", run))
    assert said["resume"] == f"no checkpoint: hpcfl run JOB --out {run}"


def test_an_unfinished_run_whose_checkpoints_were_deleted(job, tmp_path, hpcfl):
    """`hpcfl run` would refuse its log."""
    run = tmp_path / "run"
    assert hpcfl("run", job, "--out", run).code == 0
    shutil.rmtree(run / "checkpoints")
    cut_log(run, 2)
    said = lines(hpcfl("status", run))
    assert said["resume"] == "no checkpoint: put one back, or remove the directory to start again"


@pytest.mark.parametrize("rounds", [4, 2])
def test_a_record_is_told_as_one(job, tmp_path, hpcfl, rounds):
    run, copy = tmp_path / "run", tmp_path / "copy"
    assert hpcfl("run", job, "--out", run).code == 0
    assert hpcfl("export", run, "--record", copy).code == 0
    cut_log(copy, rounds)
    said = lines(hpcfl("status", copy))
    assert said["record"] == "without its models: it can be shown, not resumed"
    assert not {"resume", "ended", "warning"} & said.keys()


def test_a_start_that_is_refused_leaves_the_outcome_alone(job, tmp_path, hpcfl, refused):
    run = tmp_path / "run"
    assert hpcfl("run", job, "--out", run).code == 0
    before = (run / "history.jsonl").read_bytes()
    refused("run", job, "--out", run)
    assert (run / "history.jsonl").read_bytes() == before


def test_a_history_that_cannot_be_written_changes_no_exit_code(job, tmp_path, hpcfl, monkeypatch):
    run = tmp_path / "run"
    at_round(monkeypatch, 4, lambda: (run / "history.jsonl").write_text("{\n"))
    done = hpcfl("run", job, "--out", run)
    assert done.code == 0
    assert done.err[-1].startswith("the history does not say how this start ended: ")
    assert "history.jsonl:1: " in done.err[-1]


def test_a_copy_has_not_ended_yet():
    """What it has of the history is of the run that it was copied from."""
    start = {"session": "a", "round": 0, "outcome": Outcome("stopped", 3, "x")._asdict()}
    assert last_outcome([start]) == Outcome("stopped", 3, "x")
    assert last_outcome([start, {"branch_of": "r", "round": 2}]) is None
    assert last_outcome([start, {"session": "b", "round": 3}]) is None  # alive, or killed


@pytest.mark.parametrize("outcome", ["diverged", {"ending": "lost"}, {"ending": []}, 3, None])
def test_what_is_no_outcome(outcome):
    assert last_outcome([{"session": "a", "outcome": outcome}]) is None


def test_a_damaged_history_does_not_keep_numbers_back(job, tmp_path, hpcfl):
    run = tmp_path / "run"
    assert hpcfl("run", job, "--out", run).code == 0
    RunDir(run).history.write_text("{\n")
    done = hpcfl("report", run, "--format", "csv")
    assert (done.code, len(done.out)) == (0, 2)
    assert "history.jsonl:1: is damaged: " in done.err[0]


GPU = {"session": "a", "ranks": 2, "device": "cuda", "gpu": "NVIDIA H100", "processor": "EPYC"}
CPU = {"session": "b", "ranks": 1, "device": "cpu", "processor": "EPYC"}


def test_the_machines_of_all_starts():
    """Each once and in order; of a copy, also those of the run that it was copied from."""
    branch = {"branch_of": "runs/other", "round": 5}
    assert recorded_machines([GPU, CPU, branch, CPU, GPU]) == (
        "2 ranks on cuda (NVIDIA H100)",
        "1 rank on cpu (EPYC)",
    )
    assert recorded_machines([{"session": "a", "ranks": 2}, {"session": "b"}]) == ()


@pytest.mark.parametrize(
    ("done", "ending", "alive", "failed", "state"),
    [
        (2, "stopped", True, True, "alive"),
        (4, None, True, False, "alive"),
        (4, "failed", None, True, "finished"),  # by a later start, without a history
        (2, "stopped", None, False, "unfinished"),
        (2, "stopped", None, True, "failed"),
        (2, "diverged", None, True, "diverged"),
        (2, None, False, True, "failed"),
        (2, None, False, False, "not running"),
        (2, "finished", False, False, "not running"),  # the log was cut, or has to go on
        (2, "stopped", False, False, "stopped"),
        (2, "failed", False, False, "failed"),
    ],
)
def test_the_state_of_a_run(done, ending, alive, failed, state):
    outcome = None if ending is None else Outcome(ending, done, "")
    assert state_of(done, 4, outcome, alive=alive, failed=failed) == state
