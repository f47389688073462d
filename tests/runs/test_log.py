"""The log on a disk that is full or fails: one line, whenever it happens."""

import errno
import os
from pathlib import Path

import pytest

from hpcfl.errors import DiskError, StoreError
from hpcfl.io import atomic
from hpcfl.runs import manifest
from hpcfl.runs.log import NOTHING, LogReader, RunLog, of_ranks, require_log_prefix, truncate_log
from hpcfl.runs.manifest import Checkpoint, prune, read_files
from tests.rundirs import log_of


def test_a_disk_that_is_full_from_some_line_on(job, tmp_path, hpcfl, monkeypatch):
    """The line that could not be written is not tried again when the log is closed."""
    write = RunLog.write

    def full_from_the_third(log, record):
        if record["round"] == 3:
            full = os.open("/dev/full", os.O_WRONLY)
            os.dup2(full, log._file.fileno())
            os.close(full)
        write(log, record)

    monkeypatch.setattr(RunLog, "write", full_from_the_third)
    done = hpcfl("run", job, "checkpoint.every=100", "--out", tmp_path / "run")
    assert done.code == 74
    (line,) = [line for line in done.err if "Error" in line]
    assert f"{tmp_path}/run/log.jsonl: cannot be written: No space left on device; the " in line
    assert len((tmp_path / "run/log.jsonl").read_text().splitlines()) == 3


@pytest.mark.parametrize("ranks", [0, 2, 64, 65, 1024])
def test_a_line_of_many_ranks_has_quartiles(tmp_path, ranks):
    """The numbers of 1024 ranks would be 9 KB in every line."""
    busy = [float(rank * 7 % ranks) for rank in range(ranks)]
    said = of_ranks(busy)
    path = tmp_path / "log.jsonl"
    log = RunLog(path)
    log.write({"round": 1} | said)
    log.close()
    assert LogReader(path).read() == ({"round": 1, **said},)
    if ranks <= 64:
        assert said == ({"busy_s": busy} if ranks else {})
        return
    assert path.stat().st_size < 150
    slowest = max(range(ranks), key=busy.__getitem__)
    quartiles = [0.0, *(round(part * (ranks - 1) / 4) for part in (1, 2, 3)), ranks - 1.0]
    assert said == {"busy_quantiles_s": quartiles, "slowest_rank": slowest}


def test_a_write_that_is_cut_short_goes_on(tmp_path):
    log = RunLog(tmp_path / "log.jsonl")

    class Bit:
        name = log._file.name

        def write(self, content):
            return whole.write(content[:5])

    whole, log._file = log._file, Bit()
    log.write({"round": 1, "train_loss": 0.5})
    whole.close()
    assert (tmp_path / "log.jsonl").read_bytes() == log_of([{"round": 1, "train_loss": 0.5}])
    assert log.position == NOTHING.after((tmp_path / "log.jsonl").read_bytes())


def fail(*_, **__):
    raise OSError(errno.EROFS, os.strerror(errno.EROFS))


def test_a_log_that_cannot_be_opened_read_or_cut(tmp_path, monkeypatch):
    path = tmp_path / "log.jsonl"
    assert require_log_prefix(path, NOTHING) == b""
    truncate_log(path, b"")  # there is none yet
    path.mkdir()
    with pytest.raises(
        StoreError, match=r"log\.jsonl: cannot be written: it is a directory, expected a file"
    ):
        RunLog(path)
    with pytest.raises(
        StoreError, match=r"log\.jsonl: cannot be read: it is a directory, expected a file; put"
    ):
        require_log_prefix(path, NOTHING)
    path.rmdir()
    path.write_text("{}\n")
    monkeypatch.setattr(atomic.os, "fsync", fail)
    with pytest.raises(DiskError, match=r"log\.jsonl: cannot write 0 bytes: Read-only file system"):
        truncate_log(path, b"")


def test_a_checkpoint_that_cannot_be_removed_or_read(tmp_path, monkeypatch):
    (tmp_path / "00000004").mkdir()
    (tmp_path / "00000004" / manifest.SERVER).touch()
    monkeypatch.setattr(Path, "unlink", fail)
    with pytest.raises(DiskError, match=r"cannot be written: Read-only file system; the last"):
        prune(tmp_path)
    found = Checkpoint(tmp_path / "00000004", 4, 1, "", NOTHING, {manifest.BEST: 0}, {}, {})
    with pytest.raises(StoreError, match=r"best\.safetensors: cannot be read: No such .*older"):
        dict(read_files(found))
