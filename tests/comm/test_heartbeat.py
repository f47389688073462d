"""The file in which a rank says where it is, whole or damaged."""

import errno
import json
import os

import pytest

from hpcfl.errors import StoreError
from hpcfl.io import checksum, heartbeat
from hpcfl.io.heartbeat import (
    SIZE,
    Heartbeats,
    RankProgress,
    read,
    read_all,
    read_newest,
    read_report,
    round_and_phase,
)


@pytest.fixture
def files(tmp_path):
    """Rank 3's, in a fresh directory."""
    files = Heartbeats(tmp_path / "ranks", "0123abcd", 3)
    files.begin()
    return files


def test_a_heartbeat_says_where_the_rank_is(files):
    progress = RankProgress(12, "training", calls=7, waits=True)
    files.open(progress)
    first = read(files.folder / "0003.json")
    assert (first.rank, first.pid, first.beat) == (3, os.getpid(), 0)
    assert (first.round, first.phase, first.calls, first.waits) == (12, "training", 7, True)
    assert first.where == "in round 12, training"
    progress.round, progress.phase, progress.waits = 13, "evaluating", False
    files.beat(progress)
    second = read(files.folder / "0003.json")
    assert (second.beat, second.round, second.phase, second.waits) == (1, 13, "evaluating", False)
    assert second.time >= first.time


def test_before_the_first_round_the_phase_is_all():
    assert round_and_phase(0, "starting") == "starting"


def test_it_is_rewritten_in_place(files):
    """The same file of the same size, whatever it says: nothing to allocate on a full disk."""
    path = files.folder / "0003.json"
    files.open(RankProgress())
    before = path.stat()
    files.beat(RankProgress(10**9, "x" * 128, calls=10**12, waits=True))
    after = path.stat()
    assert (before.st_ino, before.st_size) == (after.st_ino, after.st_size) == (after.st_ino, SIZE)
    assert read(path).round == 10**9


def test_an_age_is_never_negative(files):
    files.open(RankProgress())
    found = read(files.folder / "0003.json")
    assert found.age(found.time + 5) == 5
    assert found.age(found.time - 5) == 0


DAMAGE = {
    "empty": lambda text: "",
    "cut": lambda text: text[:40],
    "zeros": lambda text: "\0" * SIZE,
    "no object": lambda text: "[1, 2]",
    "another type": lambda text: text.replace('"round":0', '"round":"0"'),
    "negative": lambda text: text.replace('"calls":0', '"calls":-1'),
    "not finite": lambda text: json.dumps({**json.loads(text), "time": float("nan")}),
    "a control character": lambda text: json.dumps({**json.loads(text), "host": "\x1b[2J"}),
    "two lines": lambda text: json.dumps({**json.loads(text), "phase": "a\nb"}),
    "another key": lambda text: json.dumps({**json.loads(text), "more": 1}),
    "too long": lambda text: " " * SIZE + text,
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_file_is_as_good_as_none_for_other_ranks(files, damage):
    path = files.folder / "0003.json"
    files.open(RankProgress())
    assert read(path) is not None
    text = json.loads(path.read_text())
    del text["crc32"]
    damaged = DAMAGE[damage](json.dumps(text, separators=(",", ":")))
    if damaged.startswith("{"):  # a right checksum saves none of them
        path.write_bytes(checksum.add_to_json(damaged))
        assert read(path) is None
    path.write_text(damaged)
    assert read(path) is None
    assert files.read(4) == {}


def test_a_person_is_told_of_what_is_damaged(files):
    """The other ranks go on without it."""
    files.open(RankProgress(1, "training"))
    path = files.folder / "0001.json"
    path.write_text("")  # its rank is about to write it
    assert [found.rank for found in read_all(files.folder)] == [3]
    path.write_bytes((files.folder / "0003.json").read_bytes().replace(b"training", b"draining"))
    with pytest.raises(StoreError, match=r"0001.json: found no heartbeat of a rank: checksum "):
        read_all(files.folder)
    path.unlink()
    path.mkdir()
    with pytest.raises(
        StoreError, match=r"0001.json: cannot be read: it is a directory, expected a file; repair"
    ):
        read_all(files.folder)
    assert list(files.read(4)) == [3]
    assert files.read(3) == {}
    assert read_all(files.folder / "absent") == []


def test_a_file_that_is_being_written_is_read_again(files, monkeypatch):
    files.open(RankProgress(1, "training"))
    whole, tries = heartbeat._read, []

    def torn(path):
        tries.append(path)
        if len(tries) < 3:
            raise ValueError("half of it")
        return whole(path)

    monkeypatch.setattr(heartbeat, "_read", torn)
    assert [found.rank for found in read_all(files.folder)] == [3]
    assert len(tries) == 3


def test_one_rank_tells(files):
    other = Heartbeats(files.folder.parent, files.folder.name, 0)
    assert not files.report_has_code()
    assert other.claim_report("rank 2 is gone", 74)
    assert not files.claim_report("rank 2 is gone, I say", 1)
    assert files.report_has_code()
    assert files.reported_code() == 74
    assert read_report(files.folder.parent) == "rank 2 is gone"


@pytest.mark.parametrize("text", ["", "half of a li", "exit code 74", "exit code 74 or so\n"])
def test_a_report_without_a_code_is_that_of_a_lost_rank(files, monkeypatch, text):
    monkeypatch.setattr(heartbeat, "POLL_S", 0.0)
    (files.folder / "report").write_text(text)
    assert files.reported_code() == 1


def test_a_report_that_cannot_be_looked_for_is_none(files, monkeypatch):
    """A network's file system fails for a moment, and the watchdog goes on."""

    def stale(*args):
        raise OSError(errno.ESTALE, "Stale file handle")

    assert files.claim_report("rank 2 is gone", 1)
    with monkeypatch.context() as failing:
        failing.setattr(heartbeat.regular, "read", stale)
        assert not files.report_has_code()
    assert files.report_has_code()


def test_a_rank_that_cannot_leave_word_tells_all_the_same(tmp_path):
    """The directory is gone: silence would be worse than two lines."""
    assert Heartbeats(tmp_path / "gone", "0123abcd", 0).claim_report("why", 1)


def test_a_new_session_and_a_process_of_the_last_do_not_meet(files):
    """The old rank was stopped, and goes on when its run was taken up again without it."""
    files.open(RankProgress(9, "training"))
    new = Heartbeats(files.folder.parent, "4567cdef", 3)
    new.begin()
    new.open(RankProgress(2, "training"))
    assert list(files.folder.parent.iterdir()) == [new.folder]
    with pytest.raises(FileNotFoundError):
        files.beat(RankProgress(9, "training"))
    assert files.claim_report("connection closed", 1)
    files.close()
    assert not new.report_has_code()
    assert read(new.folder / "0003.json").round == 2


def test_the_newest_session_is_read(files):
    """An old one is there while a stopped process holds its files, as on NFS."""
    assert read_newest(files.folder.parent) == read_newest(files.folder / "absent") == []
    old = Heartbeats(files.folder.parent, "4567cdef", 0)
    old.folder.mkdir()
    for rank, written in ((3, files), (0, old)):
        written.open(RankProgress())
        assert [found.rank for found in read_newest(files.folder.parent)] == [rank]
    files.beat(RankProgress())
    assert [found.rank for found in read_newest(files.folder.parent)] == [3]


def test_a_rank_that_leaves_takes_its_file_along(files):
    files.open(RankProgress())
    files.close()
    assert list(files.folder.parent.iterdir()) == []
    files.close()  # it may be gone already


def test_a_place_that_cannot_be_written_is_one_line(tmp_path):
    (tmp_path / "ranks").write_text("a file")
    with pytest.raises(StoreError, match=r"ranks/0123abcd: cannot be written"):
        Heartbeats(tmp_path / "ranks", "0123abcd", 0).begin()
    with pytest.raises(StoreError, match=r"0000\.json.*cannot be written"):
        Heartbeats(tmp_path / "absent", "0123abcd", 0).open(RankProgress())
