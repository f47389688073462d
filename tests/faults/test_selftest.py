"""The quick form of ``hpcfl selftest``, through its command line; and what it must see."""

import json
import re
import shutil
import signal
import subprocess
import sys
from random import Random
from zlib import crc32

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from scaffold_run import write

from hpcfl.errors import HpcflError, StoreError
from hpcfl.io import checksum
from hpcfl.runs.layout import RunDir
from hpcfl.runs.manifest import MANIFEST, SERVER
from hpcfl.tools import selftest
from hpcfl.tools.selftest import (
    ALGORITHMS,
    ROUNDS,
    Ending,
    Kill,
    RunBits,
    SelfTest,
    Start,
    Tally,
    committed,
    outcome,
    run_attempt,
)
from tests.forked import finish
from tests.long_form import LONG
from tests.parallel.harness import environment, find_mpirun

KILLS = len(ALGORITHMS) if LONG else 2  # of one algorithm each


def test_killed_over_and_over_again(tmp_path):
    find_mpirun()
    folder = tmp_path / "new"
    command = [sys.executable, "-m", "hpcfl", "selftest", folder, "--kills", str(KILLS)]
    done = subprocess.run(
        command, env=environment(), capture_output=True, text=True, check=False, timeout=600
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.endswith("disagreements  0\n")
    killed, stopped = map(int, re.search(r"(\d+) killed, (\d+) stopped", done.stdout).groups())
    assert killed + stopped == KILLS
    compared = re.search(r"^runs +(\d+) compared", done.stdout, re.MULTILINE)
    assert int(compared[1]) >= KILLS
    assert not folder.exists()


def test_a_folder_that_is_not_empty(tmp_path, refused):
    (tmp_path / "x").touch()
    said = refused("selftest", tmp_path)
    assert said == f"JobError: {tmp_path}: is not empty; remove it, or choose another"


@pytest.mark.parametrize(
    ("number", "kind"), [(signal.SIGKILL, "killed"), (signal.SIGTERM, "stopped")]
)
def test_an_attempt_that_is_ended_in_its_rounds(tmp_path, number, kind):
    folder = RunDir(tmp_path / "run")
    start = Start(1, ["run", str(write(tmp_path, rounds=100_000)), "--out", str(folder.root)])
    ending = run_attempt(start, Kill(20, 0.5, None, number), folder)
    assert (ending.kind, ending.began) == (kind, 0)
    assert ending.committed == committed(folder) > 0


LOG = [{"round": t + 1} for t in range(ROUNDS)]
X, IDS, DRIFT = np.array([1.0, 0.0]), np.array([3, 5]), np.ones((2, 2))
WHOLE = RunBits({"x": X, "client": IDS, "state_drift": DRIFT}, LOG)
KILLED = Ending("killed", "", 0, 6)


@pytest.fixture
def scripted(tmp_path, monkeypatch):
    """Plays one run, killed once: of a life that began as told, and that left what is told."""

    def played(began, left=WHOLE):
        attempts = iter([Ending("finished"), KILLED, Ending("finished", "", began, ROUNDS)])
        found, starts = iter([WHOLE, left]), []

        def play(start, kill, folder):
            folder.root.mkdir(exist_ok=True)
            folder.job.touch()
            starts.append(start)
            return next(attempts)

        def outcome(folder):
            what = next(found)
            if isinstance(what, StoreError):
                raise what
            return what

        monkeypatch.setattr(selftest, "run_attempt", play)
        monkeypatch.setattr(selftest, "outcome", outcome)
        tally = Tally()
        assert len(list(SelfTest(tmp_path, [1], Random(0), tally).run(1))) == 1
        # No checkpoint was lost that was seen: the last life has something to go on from.
        assert [start.refusable for start in starts] == [False] * 3
        return tally

    return played


@pytest.mark.parametrize("began", [6, 8])
def test_as_it_should_be(scripted, began):
    tally = scripted(began)
    assert (tally.wrong, tally.runs) == ([], 1)
    tally.check()


@pytest.mark.parametrize("began", [0, 4])
def test_sees_a_lost_checkpoint(scripted, began):
    tally = scripted(began)
    (line,) = tally.wrong
    assert f"began at round {began}, though round 6 was committed" in line
    assert tally.runs == 0
    with pytest.raises(HpcflError, match="1 wrong"):
        tally.check()


@pytest.mark.parametrize(
    ("name", "left"),
    [
        ("x", WHOLE._replace(arrays={**WHOLE.arrays, "x": np.array([1.0, -0.0])})),
        ("client", WHOLE._replace(arrays={**WHOLE.arrays, "client": np.array([3, 4])})),
        ("state_drift", WHOLE._replace(arrays={"x": X, "client": IDS})),
        ("log.jsonl", WHOLE._replace(log=LOG[:-1])),
        ("damaged", StoreError("damaged")),
    ],
)
def test_sees_what_differs(scripted, name, left):
    tally = scripted(6, left)
    (line,) = tally.wrong
    assert line.endswith(f": {name}")


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("finished")
    assert finish(1, "run", write(folder), "--out", folder / "run").returncode == 0
    return RunDir(folder / "run")


def sabotaged(folder, copy):
    """A copy of a finished run whose model is another by one bit, with the right checksum."""
    shutil.copytree(folder.root, copy)
    place = RunDir(copy).checkpoints / f"{committed(folder):08d}"
    model = load_file(place / SERVER)
    model["x"].view(torch.int32)[7] ^= 1
    save_file(model, place / SERVER)
    manifest = json.loads((place / MANIFEST).read_text())
    del manifest["crc32"]
    manifest["files"][SERVER] = crc32((place / SERVER).read_bytes())
    (place / MANIFEST).write_bytes(checksum.add_to_json(json.dumps(manifest)))
    return RunDir(copy)


def test_sees_one_bit_of_a_file(finished, tmp_path):
    whole, other = outcome(finished), outcome(sabotaged(finished, tmp_path / "copy"))
    assert outcome(finished).differences(whole) == []
    assert other.differences(whole) == ["x"]


@pytest.mark.parametrize(
    ("said", "code", "began", "expected"),
    [
        ("stopped by SIGTERM after round 3 of 24", 75, 1, ""),
        ("", 15, None, ""),  # before MPI started: the launcher's code
        ("", 15, 1, "exit code 15 after a signal to stop where 75 was expected"),
        ("Traceback (most recent call last):", 75, 1, "a traceback after a signal to stop"),
    ],
)
def test_sees_a_stop_that_went_wrong(said, code, began, expected):
    assert selftest.fault_of_stop([said], code, began) == expected
