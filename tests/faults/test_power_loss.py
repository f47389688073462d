"""A loss of power at any instant: a resume gives the bits of a run that nobody disturbed."""

import shutil
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from random import Random
from typing import NamedTuple

import numpy as np
import pytest
from power_loss import CALLS, Call, Disk, File, Folder, calls, put
from scaffold_run import die_after, write
from tracing import allow_tracing, traced

from hpcfl.cli.main import main
from hpcfl.runs.layout import RunDir
from hpcfl.runs.manifest import MANIFEST
from hpcfl.tools.selftest import committed
from tests.forked import CONTEXT
from tests.long_form import LONG
from tests.parallel.outcome import Outcome, outcome
from tests.rundirs import text

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("determinism")]

STATES = 500 if LONG else 25
ROUNDS = 8


class Recorded(NamedTuple):
    """A run whose first start is killed, and its second finishes."""

    root: Path
    job: Path
    calls: list[list[Call]]
    """Of each start."""
    whole: tuple[Outcome, bytes]


def begin(words: list[str], pipe, prepare) -> None:
    """``hpcfl WORDS`` as soon as it is told so."""
    allow_tracing()
    pipe.recv()
    prepare()
    main(words)


def recorded(strace, folder, words, prepare=bool) -> list[Call]:
    """The calls of a start of hpcfl."""
    trace = folder / "trace"
    ours, pipe = CONTEXT.Pipe()
    child = CONTEXT.Process(target=begin, args=([*map(str, words)], pipe, prepare))
    child.start()
    watch = ("-xx", "-s", "10000000", "-o", str(trace), "-e", f"trace={CALLS}")
    with traced(strace, child.pid, *watch):
        ours.send("go")
        child.join()
    return list(calls(trace))


def bits(run: Path) -> tuple[Outcome, bytes]:
    return outcome(run), (run / "clients.csv").read_bytes()


@pytest.fixture(scope="module")
def run(strace, tmp_path_factory) -> Recorded:
    """Its clients have rows of their own and share others; each is scored in every round."""
    folder = tmp_path_factory.mktemp("recorded")
    root = folder / "disk"
    root.mkdir()
    examples = np.random.default_rng(0).standard_normal((40, 3)), np.arange(40) % 4
    np.savez(folder / "data.npz", x=examples[0], y=examples[1], x_test=examples[0][:12],
             y_test=examples[1][:12])  # fmt: skip
    job = write(
        folder,
        data={"kind": "arrays", "path": str(folder / "data.npz"), "clients": 4},
        model={"name": "linear"},
        cohort={"kind": "uniform", "size": 2},
        algorithm={"name": "localghb"},
        local={"steps": 1, "batch_size": 4, "lr": 0.1},
        evaluate={"every": 1, "clients": "table", "best": True},
        checkpoint={"every": 2},
        rounds=ROUNDS,
    )
    words = ("run", job, "--out")
    assert main([*map(str, words), str(folder / "whole")]) == 0
    return Recorded(
        root,
        job,
        [
            recorded(strace, folder, (*words, root / "run"), partial(die_after, 5)),
            recorded(strace, folder, ("resume", root / "run")),
        ],
        bits(folder / "whole"),
    )


def committed_on_disk(run: Folder) -> int:
    """The newest round whose checkpoint a process has committed; -1 if there is none."""
    found = run.names.get(b"checkpoints", Folder()).names
    return max((int(name) for name in found if MANIFEST.encode() in found[name].names), default=-1)


def test_the_recorded_calls_are_all_that_changed_the_run(run, tmp_path):
    """What they make is what lies there."""
    disk = Disk(run.root)
    assert len(list(changes(disk, run))) > 100
    put(disk.top, tmp_path / "disk")
    assert text(tmp_path / "disk") == text(run.root)
    assert {path.relative_to(run.root) for path in run.root.rglob("*")} == {
        path.relative_to(tmp_path / "disk") for path in (tmp_path / "disk").rglob("*")
    }


def test_after_a_loss_of_power_at_any_instant(run, tmp_path, hpcfl):
    # Half of them after a file was appended to: it stays so until the next checkpoint.
    weights = [4 if call.name == "write" else 1 for call, _ in changes(Disk(run.root), run)]
    instants = Counter(Random(STATES).choices(range(len(weights)), weights, k=STATES))
    disk, promised, wrong = Disk(run.root), -1, []
    for at, (call, what) in enumerate(changes(disk, run)):
        folder = disk.top.names.get(b"run", Folder())
        if call.name == "fsync" and what is folder.names.get(b"checkpoints"):
            promised = committed_on_disk(folder)
        for state in range(instants[at]):
            draw = Random(f"{at} {state}")
            why = played(disk, draw, tmp_path / "disk", promised, run, hpcfl)
            if why:
                wrong.append(f"state {state} after change {at}, {call.name}: {why}")
    assert not wrong, "\n".join([f"{len(wrong)} of {STATES}", *wrong])


def changes(disk: Disk, run: Recorded) -> Iterator[tuple[Call, File | Folder]]:
    """Make the calls of both starts; those that changed the run, or synced something of it."""
    for start in run.calls:
        disk.begin_process()
        for call in start:
            what = disk.play(call)
            if what is not None:
                yield call, what


def played(disk, draw, place, promised, run, hpcfl) -> str:
    """What is wrong with a state of the disk; empty if nothing is."""
    shutil.rmtree(place, ignore_errors=True)
    put(disk.top, place, draw)
    folder = RunDir(place / "run")
    found = committed(folder)
    if found < promised:
        return f"round {found} is committed, expected {promised}"
    again = ("run", run.job, "--out") if found < 0 else ("resume",)
    done = hpcfl(*again, folder.root)
    if done.code:
        return f"exit code {done.code}: {done.err[-1]}"
    return "" if bits(folder.root) == run.whole else "other bits"
