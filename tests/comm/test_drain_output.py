"""A pipe is left once it is read; what is no pipe is not waited for."""

import os
import sys
import threading
import time

import pytest

from hpcfl.comm import drain_output
from hpcfl.comm.failure import group
from hpcfl.comm.solo import Solo
from hpcfl.errors import StoreError


@pytest.fixture
def pipe(monkeypatch):
    """A reader's and a writer's end, the latter being this process's output."""
    reader, writer = os.pipe()
    monkeypatch.setattr(drain_output, "OUTPUTS", (writer,))
    yield reader, writer
    os.close(reader)
    os.close(writer)


def test_waits_for_the_reader(pipe, monkeypatch):
    monkeypatch.setattr(drain_output, "PATIENCE_S", 600)
    reader, writer = pipe
    os.write(writer, b"why")
    waits = threading.Thread(target=drain_output.wait_until_read, daemon=True)
    waits.start()
    time.sleep(0.05)
    assert waits.is_alive()
    assert os.read(reader, 10) == b"why"
    waits.join(60)
    assert not waits.is_alive()


def test_waits_no_longer_than_it_is_patient(pipe, monkeypatch):
    naps = []
    monkeypatch.setattr(drain_output, "PATIENCE_S", 0.01)
    monkeypatch.setattr(drain_output.time, "monotonic", lambda: 0.004 * len(naps))
    monkeypatch.setattr(drain_output.time, "sleep", naps.append)
    os.write(pipe[1], b"why")
    drain_output.wait_until_read()
    assert len(naps) == 3


def test_a_closed_output_is_not_waited_for(monkeypatch):
    monkeypatch.setattr(drain_output, "OUTPUTS", (-1,))
    monkeypatch.setattr(drain_output.time, "sleep", pytest.fail)
    drain_output.wait_until_read()


def test_a_file_is_not_waited_for(tmp_path, monkeypatch):
    with (tmp_path / "log").open("w+") as file:
        file.write("why")
        file.seek(0)
        monkeypatch.setattr(drain_output, "OUTPUTS", (file.fileno(),))
        monkeypatch.setattr(drain_output.time, "sleep", pytest.fail)
        drain_output.wait_until_read()


class Gone:
    """A stream whose reader is gone."""

    def write(self, text):
        raise BrokenPipeError

    def flush(self):
        raise BrokenPipeError


class Ended(BaseException):
    """All ranks have been ended."""


class Two(Solo):
    size = 2

    def abort(self, code, reason=""):
        drain_output.wait_until_read()
        raise Ended


@pytest.mark.parametrize("stream", [None, Gone()])
@pytest.mark.parametrize("error", [StoreError("full"), ValueError("no")])
def test_a_rank_that_nobody_hears_still_ends_the_others(monkeypatch, stream, error):
    monkeypatch.setattr(drain_output, "OUTPUTS", ())
    for name in ("stdout", "stderr"):
        monkeypatch.setattr(sys, name, stream)
    with pytest.raises(Ended), group(Two()):
        raise error
