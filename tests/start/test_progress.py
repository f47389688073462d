import io
import os
from pathlib import Path

import pytest

from hpcfl.start.progress import open_progress


class Clock:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


def record(round, **more):
    return {"round": round, "wall_s": 0.1, "clients": 2, "train_loss": 0.5, **more}


def lines_of(clock, records, seconds, *, rounds=1000, start=0):
    out = io.StringIO()
    with open_progress("digits", rounds, start, 0, stream=out, clock=clock) as progress:
        for entry in records:
            clock.now += seconds
            progress.round(entry)
    return out.getvalue().splitlines()


def test_a_line_a_round_when_rounds_are_slow():
    lines = lines_of(Clock(), [record(t) for t in range(1, 6)], seconds=1.5)
    assert len(lines) == 5
    assert lines[0].startswith("digits round    1/1000   0.6667 rounds/s  eta 0:24:58")
    assert lines[0].endswith("train_loss 0.5")
    assert len({line.index("train_loss") for line in lines}) == 1  # aligned


def test_forced_colours_draw_no_bar_into_a_file(monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert len(lines_of(Clock(), [record(t) for t in range(1, 6)], seconds=1.5)) == 5


class NoTerminal:
    """A stream with the methods that a program needs to print, and no more."""

    def __init__(self):
        self.text = ""

    def write(self, text):
        self.text += text
        return len(text)

    def flush(self):
        """There is no buffer."""


def test_a_stream_need_not_say_whether_it_is_a_terminal():
    stream = NoTerminal()
    with open_progress("digits", 2, 0, 0, stream=stream, clock=Clock()) as progress:
        progress.round(record(1))
    assert stream.text.startswith("digits round 1/2")


def test_about_one_line_a_second_when_rounds_are_quick():
    lines = lines_of(Clock(), [record(t) for t in range(1, 501)], seconds=1 / 128)
    assert [int(line.split()[2].split("/")[0]) for line in lines] == [1, 129, 257, 385]


def test_evaluations_are_no_flood():
    """All are evaluated: as many lines as of rounds that are not, and the final one."""
    records = [record(t, train_objective=0.25) for t in range(1, 501)]
    lines = lines_of(Clock(), records, seconds=1 / 128, rounds=500)
    assert [int(line.split()[2].split("/")[0]) for line in lines] == [1, 129, 257, 385, 500]
    assert all(line.endswith("train_objective 0.25") for line in lines)


def test_rare_evaluations_are_shown_among_quick_rounds():
    """Every 100 rounds at 128 a second: a line of theirs whenever a second has passed."""
    records = [record(t, **({} if t % 100 else {"test_loss": 1.0})) for t in range(1, 501)]
    lines = lines_of(Clock(), records, seconds=1 / 128)
    shown = [int(line.split()[2].split("/")[0]) for line in lines if "test_loss" in line]
    assert shown == [100, 300, 500]
    assert len(lines) <= 1 + 2 * 500 / 128


def test_rare_evaluations_and_final_rounds_are_always_shown():
    records = [record(t) for t in range(1, 11)]
    records[4] = record(5, test_loss=0.25, test_accuracy=0.875)
    lines = lines_of(Clock(), records, seconds=0.001, rounds=10)
    assert [line.split()[2] for line in lines] == ["1/10", "5/10", "10/10"]
    assert lines[1].split()[-4:] == ["test_loss", "0.25", "test_accuracy", "0.875"]


def test_pace_counts_from_where_the_process_started():
    (line,) = lines_of(Clock(), [record(910)], seconds=5, start=900)
    assert "      2 rounds/s  eta 0:00:45" in line


def test_the_initial_model_has_no_pace():
    (line,) = lines_of(Clock(), [{"round": 0, "test_loss": 2.3}], seconds=1)
    assert "eta -" in line


def test_notes_are_lines_of_their_own():
    out = io.StringIO()
    with open_progress("digits", 10, 0, 0, stream=out) as progress:
        progress.note("signal USR1: checkpoint at round 7")
    assert out.getvalue() == "signal USR1: checkpoint at round 7\n"


def kept(log):
    out = io.StringIO()
    with open_progress("digits", 10, 8, 0, stream=out) as progress:
        progress.kept(log)
    return out.getvalue().splitlines()


def test_the_last_rounds_before_a_resume():
    """And the one before them that was evaluated, if none of them was."""
    log = [record(t) for t in range(1, 9)]
    log[2] = record(3, test_loss=0.25)
    log[7]["train_loss"] = None  # it was not finite
    assert kept(log) == [
        "digits round  3/10  kept  train_loss 0.5        test_loss 0.25",
        "digits round  6/10  kept  train_loss 0.5",
        "digits round  7/10  kept  train_loss 0.5",
        "digits round  8/10  kept  train_loss null",
    ]
    log[6] = record(7, test_loss=0.125)
    assert [line.split()[2] for line in kept(log)] == ["6/10", "7/10", "8/10"]
    assert [line.split()[2] for line in kept(log[:2])] == ["1/10", "2/10"]
    assert kept([]) == []


def test_other_ranks_are_silent():
    out = io.StringIO()
    with open_progress("digits", 10, 0, 3, stream=out) as progress:
        progress.round(record(10, test_loss=0.1))
        progress.note("for rank 0 only")
        progress.kept([record(9, test_loss=0.1)])
    assert out.getvalue() == ""


@pytest.fixture
def terminal(monkeypatch):
    """A stream that rich takes for an interactive terminal of 80 columns."""
    for name, value in {"TERM": "xterm", "COLUMNS": "80", "LINES": "24"}.items():
        monkeypatch.setenv(name, value)
    for name in ("TTY_COMPATIBLE", "TTY_INTERACTIVE", "FORCE_COLOR", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)

    class Terminal(io.StringIO):
        def isatty(self):
            return True

    return Terminal()


def test_a_terminal_shows_one_bar(terminal):
    clock = Clock()
    with open_progress("digits [a]", 10, 0, 0, stream=terminal, clock=clock) as progress:
        clock.now = 1.0
        progress.round(record(3, test_loss=1.0, test_accuracy=0.75))
        clock.now = 2.0
        progress.round(record(4))
        progress.note("a note")
    shown = terminal.getvalue()
    assert "digits [a]" in shown
    assert "4/10" in shown
    assert "loss 0.5  acc 0.7500  2 rounds/s  eta 0:00:03" in shown
    assert "a note" in shown


def test_the_bar_leaves_standard_output_alone(terminal, capsys):
    with open_progress("digits", 10, 0, 0, stream=terminal):
        print("a result")  # noqa: T201
    assert capsys.readouterr().out == "a result\n"


def test_the_bar_is_drawn_only_when_due(terminal):
    clock = Clock()
    with open_progress("digits", 10_000, 0, 0, stream=terminal, clock=clock) as progress:
        clock.now = 1.0
        progress.round(record(1))
        before = terminal.tell()
        clock.now = 1.05
        progress.round(record(2))
        assert terminal.tell() == before
        clock.now = 1.15
        progress.round(record(3))
        assert terminal.tell() > before


def test_ranks_under_mpirun_get_the_bar_when_the_environment_says_so(monkeypatch):
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    monkeypatch.setenv("TTY_INTERACTIVE", "1")
    monkeypatch.setenv("TERM", "xterm")
    pipe = io.StringIO()
    with open_progress("digits", 10, 0, 0, stream=pipe) as progress:
        progress.round(record(10))
    assert "\x1b[" in pipe.getvalue()
    assert "10/10" in pipe.getvalue()


def test_a_bar_has_the_accuracy_that_the_run_counts_by(monkeypatch):
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    monkeypatch.setenv("TTY_INTERACTIVE", "1")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "200")
    pipe = io.StringIO()
    with open_progress("digits", 10, 0, 0, stream=pipe, accuracy="personal_accuracy") as progress:
        progress.round(record(10, test_accuracy=0.1, personal_accuracy=0.9))
    assert "personal acc 0.9000" in pipe.getvalue()


@pytest.mark.parametrize("drawn", [True, False])
def test_a_notebook_has_a_bar_where_it_has_widgets(monkeypatch, drawn):
    monkeypatch.setattr("rich.console._is_jupyter", lambda: True)
    monkeypatch.setattr("hpcfl.start.progress.installed", lambda name: drawn)
    plain = io.StringIO()
    progress = open_progress("digits", 10, 0, 0, stream=plain)
    assert (type(progress).__name__ == "_Bar") == drawn
    if not drawn:
        with progress:
            progress.round(record(10))
        assert "digits round 10/10" in plain.getvalue()


@pytest.mark.parametrize("bar", [False, True])
def test_a_run_goes_on_where_nobody_reads(monkeypatch, bar):
    monkeypatch.setenv("TTY_COMPATIBLE", "1" if bar else "0")
    monkeypatch.setenv("TTY_INTERACTIVE", "1" if bar else "0")
    monkeypatch.setenv("TERM", "xterm")
    reader, writer = os.pipe()
    with (
        os.fdopen(writer, "w", encoding="utf-8") as stream,
        open_progress("digits", 10, 0, 0, stream=stream) as progress,
    ):
        assert (type(progress).__name__ == "_Bar") == bar
        progress.note("it is read")
        assert b"it is read" in os.read(reader, 4096)
        os.close(reader)
        progress.note("nobody reads")
        progress.round(record(10))
        stream.write("nor this")


def test_a_full_disk_is_not_taken_for_it():
    with pytest.raises(OSError, match="No space"), Path("/dev/full").open("w") as stream:
        open_progress("digits", 10, 0, 0, stream=stream).note("lost")
