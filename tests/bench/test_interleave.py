"""Sides run alternately; progress is printed between them, without a thread of its own."""

import io
import sys
import threading

import pytest

from hpcfl.bench.interleave import take_turns
from hpcfl.io import progress


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def sides():
    """Two sides that record their calls; each returns the number of calls so far."""
    calls = []

    def side(name):
        def run():
            calls.append((name, set(threading.enumerate())))
            return float(len(calls))

        return run

    return {"a": side("a"), "b": side("b")}, calls


def test_every_side_runs_once_a_turn_and_warmup_turns_do_not_count(sides, capsys, monkeypatch):
    monkeypatch.setattr(progress, "TRACK_S", 1e9)
    functions, calls = sides
    found = take_turns(functions, 2, "bench x", warmup=2)
    assert [name for name, _ in calls] == ["a", "b"] * 4
    assert found == {"a": [5.0, 7.0], "b": [6.0, 8.0]}
    assert capsys.readouterr().err == ""  # too quick for a progress line


def test_progress_lines_without_a_terminal(sides, capsys, monkeypatch):
    monkeypatch.setattr(progress, "TRACK_S", 0.0)
    take_turns(sides[0], 1, "bench x")
    assert capsys.readouterr().err.splitlines() == [f"bench x: {k} of 4" for k in range(4)]
    take_turns(sides[0], 1, "bench x", show_progress=False)
    assert capsys.readouterr().err == ""


def test_a_bar_on_a_terminal_and_no_thread(sides, monkeypatch):
    """rich's own thread would draw while a side is measured."""
    functions, calls = sides
    monkeypatch.setenv("TERM", "xterm")  # rich draws nothing on a dumb one
    monkeypatch.setattr(sys, "stderr", Terminal())
    before = set(threading.enumerate())
    take_turns(functions, 1, "bench x")
    assert "bench x" in sys.stderr.getvalue()
    assert "100%" in sys.stderr.getvalue()
    assert all(threads <= before for _, threads in calls)
