"""The quick form of ``hpcfl selftest``, through its command line; and what it must see."""

import json
import re
import shutil
import signal
import subprocess
import sys
from typing import NamedTuple
from zlib import crc32

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from scaffold_run import write

from hpcfl.errors import StoreError
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
    SelfTestError,
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
    command = ["run", str(write(tmp_path, rounds=100_000)), "--out", str(folder.root)]
    ending = run_attempt(1, command, Kill(20, 0.5, None, number), folder)
    assert (ending.kind, ending.began) == (kind, 0)
    assert ending.committed == committed(folder) > 0


def test_sees_a_run_that_fails(tmp_path):
    folder = RunDir(tmp_path / "run")
    with pytest.raises(SelfTestError, match=r"run\.log: exit code 2 of an attempt that nothing"):
        run_attempt(1, ["resume", str(folder.root)], None, folder)


LOG = [{"round": t + 1} for t in range(ROUNDS)]
X, IDS, DRIFT = np.array([1.0, 0.0]), np.array([3, 5]), np.ones((2, 2))
WHOLE = RunBits({"x": X, "client": IDS, "state_drift": DRIFT}, LOG)


@pytest.fixture
def scripted(tmp_path, monkeypatch):
    """Plays one run, killed once: of a life that began as told, and that left what is told."""

    def played(began, left=WHOLE):
        attempts = iter(
            [
                Ending("finished", 0, ROUNDS),
                Ending("killed", 0, 6),
                Ending("finished", began, ROUNDS),
            ]
        )
        found, commands = iter([WHOLE, left]), []

        def outcome(folder):
            if (bits := next(found)) is None:
                raise StoreError("F: is damaged")
            return bits

        def play(ranks, command, kill, folder):
            folder.root.mkdir(exist_ok=True)
            commands.append(command[0])
            return next(attempts)

        monkeypatch.setattr(selftest, "run_attempt", play)
        monkeypatch.setattr(selftest, "outcome", outcome)
        tester = SelfTest(tmp_path, [1])
        try:
            assert len(list(tester.run(1))) == 1
        finally:
            # A checkpoint was seen: the last life must go on from there.
            assert commands == ["run", "run", "resume"]
        return tester.tally

    return played


@pytest.mark.parametrize("began", [6, 8])
def test_as_it_should_be(scripted, began):
    tally = scripted(began)
    assert (tally.starts, tally.killed, tally.stopped, tally.runs) == (3, 1, 0, 1)


@pytest.mark.parametrize("began", [0, 4])
def test_sees_a_lost_checkpoint(scripted, tmp_path, began):
    where = f"{tmp_path}/001-fedhbm: an attempt began at round {began}, though round 6 was comm"
    with pytest.raises(SelfTestError, match=re.escape(where)):
        scripted(began)


@pytest.mark.parametrize(
    ("name", "left"),
    [
        ("x", WHOLE._replace(arrays={**WHOLE.arrays, "x": np.array([1.0, -0.0])})),
        ("client", WHOLE._replace(arrays={**WHOLE.arrays, "client": np.array([3, 4])})),
        ("state_drift", WHOLE._replace(arrays={"x": X, "client": IDS})),
        ("log.jsonl", WHOLE._replace(log=LOG[:-1])),
    ],
)
def test_sees_what_differs(scripted, tmp_path, name, left):
    with pytest.raises(SelfTestError, match=f": other bits: {re.escape(name)}$"):
        scripted(6, left)
    assert (tmp_path / "001-fedhbm").exists()


def test_sees_a_damaged_file(scripted, tmp_path):
    with pytest.raises(SelfTestError, match=re.escape(f"{tmp_path}/001-fedhbm: F: is damaged")):
        scripted(6, None)


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


class Stopping(NamedTuple):
    """An attempt that got a signal, as `selftest` sees it."""

    text: str
    code: int
    log: str = "run.log"

    def said(self, word):
        return word in self.text


def test_sees_a_stop_that_went_wrong():
    stopped = Stopping("stopped by SIGTERM after round 3 of 24", 75)
    assert selftest._kind(stopped, signal.SIGTERM, 1) == "stopped"
    before_mpi = Stopping("", 15)  # the launcher's code
    assert selftest._kind(before_mpi, signal.SIGTERM, None) == "stopped"
    with pytest.raises(SelfTestError, match="exit code 15 after SIGTERM, expected 75"):
        selftest._kind(before_mpi, signal.SIGTERM, 1)
    with pytest.raises(SelfTestError, match="a traceback after SIGTERM"):
        selftest._kind(Stopping("Traceback (most recent call last):", 75), signal.SIGTERM, 1)
