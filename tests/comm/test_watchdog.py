"""Who is named when ranks wait in vain, and a watchdog that ends a process of its own."""

import subprocess
import sys
from itertools import count
from pathlib import Path
from threading import Event

import numpy as np
import pytest

from hpcfl.comm import watchdog
from hpcfl.comm.failure import group
from hpcfl.comm.solo import Solo
from hpcfl.comm.watchdog import Wait, Watchdog
from hpcfl.comm.watched import WatchedComm
from hpcfl.errors import DiskError, RankError
from hpcfl.io.heartbeat import Heartbeat, Heartbeats, RankProgress, read, read_report

NOW = 1000.0


def beat(rank, *, at=NOW, number=5, round=12, phase="training", calls=40, waits=True):
    return Heartbeat(
        rank=rank, host=f"node{rank}", pid=100 + rank, beat=number, time=at,
        round=round, phase=phase, calls=calls, waits=waits,
    )  # fmt: skip


def asked(before, now, size=4, calls=40):
    """What rank 0, which waits in its 40th collective, says."""
    progress = RankProgress(12, "training", calls=calls, waits=True)
    by_rank = [{found.rank: found for found in look} for look in (before, now)]
    return Wait(progress, 0, size, *by_rank).explain(Path("RUN/ranks"))


@pytest.fixture(autouse=True)
def clock(monkeypatch):
    monkeypatch.setattr(watchdog.time, "time", lambda: NOW)


def test_a_silent_rank_is_named():
    silent = beat(2, at=NOW - 612, calls=39, waits=False)
    said = asked([beat(1, number=4), silent], [beat(1), silent], size=3)
    assert said == (
        "rank 2 (host node2, pid 102) was last heard of 612 s ago, in round 12, training; "
        "resume from the last checkpoint"
    )


def test_of_several_silent_ranks_the_stalest_is_named():
    one, two = beat(1, at=NOW - 50), beat(2, at=NOW - 70)
    said = asked([one, two, beat(3, number=4)], [one, two, beat(3)])
    assert said.startswith("rank 2 (host node2, pid 102) was last heard of 70 s ago")
    assert "(and 1 more likewise)" in said


def test_silence_is_told_by_beats_and_not_by_clocks():
    """Rank 1's clock is an hour behind, but it beats; rank 2's is ahead, and it does not."""
    ahead = beat(2, at=NOW + 3600)
    before = [beat(1, at=NOW - 3610, number=4), ahead]
    said = asked(before, [beat(1, at=NOW - 3600), ahead], size=3)
    assert said.startswith("rank 2 (host node2, pid 102) was last heard of 0 s ago")


def test_a_rank_without_a_heartbeat_is_named():
    said = asked([beat(1, number=4)], [beat(1), beat(3)])
    assert said.startswith("rank 2 has no readable heartbeat in RUN/ranks; resume")


def test_a_rank_that_lives_but_does_not_come_is_named():
    """It has begun fewer collectives; the remedy for a slow one is said."""
    late = beat(3, phase="evaluating", calls=38, waits=False)
    said = asked([beat(i, number=4) for i in (1, 2, 3)], [beat(1), beat(2), late])
    assert said == (
        "rank 3 (host node3, pid 103) is alive, in round 12, evaluating, but did not come; if it "
        "is not stuck but needs more time, raise comm.timeout_s; resume from the last checkpoint"
    )


@pytest.mark.parametrize("calls", [39, 40, 41])
def test_if_all_wait_it_is_the_network(calls):
    """In the same collective or not: a cut may come when one rank has left it already."""
    said = asked([beat(i, number=4) for i in (1, 2)], [beat(1), beat(2, calls=calls)], size=3)
    assert said.startswith("all of them are alive and wait too: is the network between them (node1")


PROGRAM = """
import sys, time
from pathlib import Path
from hpcfl.io.heartbeat import Heartbeats, RankProgress
from hpcfl.comm.watchdog import Watchdog
folder = Path(sys.argv[1])
files = Heartbeats(folder, "session", 0)
files.begin()
Heartbeats(folder, "session", 1).open(RankProgress(4, "training"))
dog = Watchdog(0, 2, 0.5)
dog.progress.calls, dog.progress.waits = 1, sys.argv[2] == "before"
if sys.argv[2] == "before":
    time.sleep(1.5)
    print("goes on", flush=True)
    dog.progress.waits = False
dog.watch_files(files)
dog.progress.round, dog.progress.phase = 4, "training"
print("waits", flush=True)
if sys.argv[2] == "report":
    files.claim_report("another rank's words", 74)
else:
    dog.progress.calls, dog.progress.waits = 1, True
time.sleep(600)
"""


def alone(folder, *args):
    command = [sys.executable, "-c", PROGRAM, str(folder), *args]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)


def test_a_rank_that_waits_too_long_says_so_and_ends(tmp_path):
    done = alone(tmp_path / "ranks", "waits")
    assert (done.returncode, done.stdout) == (1, "waits\n")
    (line,) = done.stderr.splitlines()
    assert line.startswith(
        "RankError: [rank 0 of 2] waited 0.5 s for the other ranks, in round 4, training: rank 1 "
        "(host "
    )
    assert "in round 4, training; resume from the last checkpoint" in line
    assert read_report(tmp_path / "ranks") == line


def test_nobody_waits_too_long_before_there_are_heartbeats(tmp_path):
    """Data may have to be fetched, for longer than any round takes."""
    done = alone(tmp_path / "ranks", "before")
    assert (done.returncode, done.stdout) == (1, "goes on\nwaits\n")


def test_before_the_first_round_a_rank_at_work_is_waited_for():
    """It reads a store; not so one that is silent, that waits too, or in the rounds."""
    progress, others = RankProgress(0, "starting", 3, waits=True), {2: beat(2)}
    at_work = beat(1, round=0, calls=2, waits=False)
    before, now = {1: beat(1, number=4), 2: beat(2, number=4)}, {1: at_work, **others}
    assert Wait(progress, 0, 3, before, now).is_for_preparation()
    assert not Wait(progress, 0, 3, {**before, 1: at_work}, now).is_for_preparation()
    assert not Wait(progress, 0, 3, before, {1: at_work}).is_for_preparation()
    assert not Wait(progress, 0, 3, before, {1: beat(1), **others}).is_for_preparation()
    training = RankProgress(1, "training", 3, waits=True)
    assert not Wait(training, 0, 3, before, now).is_for_preparation()


def test_a_rank_ends_in_silence_when_another_has_reported(tmp_path):
    done = alone(tmp_path / "ranks", "report")
    assert (done.returncode, done.stdout, done.stderr) == (74, "waits\n", "")


def test_heartbeats_that_cannot_be_written_are_missed_once(tmp_path, capfd, monkeypatch):
    files = Heartbeats(tmp_path, "session", 1)
    files.begin()
    tries, thrice = [], Event()

    def fail(progress):
        tries.append(progress)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files, "beat", fail)
    turns = count()
    monkeypatch.setattr(
        files, "report_has_code", lambda: thrice.set() if next(turns) == 2 else None
    )
    dog = Watchdog(1, 2, 0.12)
    dog.watch_files(files)
    assert thrice.wait(60)
    dog.close()
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith(f"[rank 1 of 2] no more heartbeats in {tmp_path}/session (No space left")
    assert len(tries) == 1


class Lost(Solo):
    """A group whose other ranks are gone, as of Gloo."""

    aborts_all = False

    def __init__(self):
        self.ended = []

    def barrier(self):
        raise RankError("gloo: connection closed")

    def abort(self, code, reason=""):
        self.ended.append(code)
        raise SystemExit(code)


@pytest.fixture
def lost():
    """Under a watchdog."""
    comm = WatchedComm(Lost(), 600.0)
    yield comm
    comm.close()


def test_a_lost_group_is_an_error_of_the_first_that_sees_it(lost, tmp_path):
    lost.start_heartbeats(tmp_path, "session")
    with pytest.raises(RankError, match="connection closed"):
        lost.barrier()
    assert read_report(tmp_path) == "gloo: connection closed"
    assert not lost.progress.waits


def test_the_others_say_nothing(lost, tmp_path):
    lost.start_heartbeats(tmp_path, "session")
    Heartbeats(tmp_path, "session", 1).claim_report("rank 1's words", 74)
    with pytest.raises(SystemExit):
        lost.barrier()
    assert lost._comm.ended == [74]


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (DiskError("x.h5: is full"), 74, "[rank 0 of 2] DiskError: x.h5: is full"),
        (TypeError("one\nline"), 1, "[rank 0 of 2] TypeError: one line"),
        (SystemExit(3), 1, "[rank 0 of 2] HookError: code of the job ended the program in "),
    ],
)
def test_a_rank_that_fails_alone_leaves_its_line_and_code(lost, tmp_path, error, code, said):
    """For those that wait in NCCL, whose collectives do not end when a rank has gone."""
    lost.start_heartbeats(tmp_path, "session")
    lost.size = 2
    with pytest.raises(SystemExit), group(lost):
        raise error
    assert lost._comm.ended == [code]
    assert read_report(tmp_path).startswith(said)
    assert Heartbeats(tmp_path, "session", 1).reported_code() == code


def test_a_rank_of_a_library_that_ends_all_leaves_its_line(lost, tmp_path, monkeypatch):
    """For `hpcfl status` alone: under Slurm the others wait for the message that ends them."""
    monkeypatch.setattr(Lost, "aborts_all", True)
    lost.start_heartbeats(tmp_path, "session")
    lost.size = 2
    with pytest.raises(SystemExit), group(lost):
        raise DiskError("x.h5: is full")
    assert lost._comm.ended == [74]
    assert read_report(tmp_path) == "[rank 0 of 2] DiskError: x.h5: is full"
    assert not Heartbeats(tmp_path, "session", 1).report_has_code()


def test_without_a_directory_every_rank_reports(lost):
    with pytest.raises(RankError, match="connection closed"):
        lost.barrier()


def test_a_watched_group_is_the_group(tmp_path):
    comm = WatchedComm(Solo(), 600.0)
    assert (comm.rank, comm.size, comm.local_rank, comm.backend) == (0, 1, 0, "solo")
    before = comm.progress.calls
    assert comm.allreduce_max(np.array([1.0, 2.0])).tolist() == [1.0, 2.0]
    assert comm.bcast("text") == "text"
    comm.barrier()
    assert comm.progress.calls - before == 3
    assert not comm.progress.waits
    comm.start_heartbeats(tmp_path / "ranks", "session")
    assert read(tmp_path / "ranks" / "session" / "0000.json").phase == "starting"
    comm.close()
    assert list((tmp_path / "ranks").iterdir()) == []
