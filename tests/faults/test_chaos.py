"""The quick form of ``hpcfl bench chaos``, through its command line; and what it must see."""

import json
import os
import re
import shutil
import subprocess
import sys
from random import Random
from types import SimpleNamespace
from zlib import crc32

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from scaffold_run import write

from hpcfl.bench import chaos
from hpcfl.bench.chaos import ALGORITHMS, Chaos, attempt_outcome
from hpcfl.bench.chaos.attempt_outcome import Ending
from hpcfl.bench.chaos.run_outcome import RunBits, committed, outcome
from hpcfl.bench.chaos.settings import ROUNDS
from hpcfl.bench.chaos.summary import Summary
from hpcfl.bench.chaos.watch import AttemptMonitor, PhaseDurations, RoundsSeen
from hpcfl.errors import HpcflError, StoreError
from hpcfl.io import checksum
from hpcfl.run_dir.layout import RunDir
from hpcfl.run_dir.manifest import MANIFEST, SERVER
from tests.forked import finish
from tests.parallel.harness import environment, find_mpirun

KILLS, STOPS = 3, 1


def test_killed_over_and_over_again(tmp_path):
    find_mpirun()
    folder = tmp_path / "chaos"
    command = [sys.executable, "-m", "hpcfl", "bench", "chaos", "--kills", str(KILLS)]
    done = subprocess.run(
        [*command, "--stops", str(STOPS), "--dir", folder],
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "disagreements  0\n" in done.stdout
    assert f"{KILLS} killed" in done.stdout
    assert f"{STOPS} stopped" in done.stdout
    assert not folder.exists()
    compared = re.search(r"^runs +(\d+) compared", done.stdout, re.MULTILINE)
    assert compared and int(compared[1]) >= len(ALGORITHMS)
    assert all(f"on {n} rank" in done.stdout for n in (1, 2, 3))
    assert "at a random instant" in done.stdout
    if "no kill exactly at a system call" in done.stdout:
        assert os.environ.get("HPCFL_REQUIRE_STRACE") != "1", done.stdout
    else:
        assert "at a call of" in done.stdout


LOG = [{"round": t + 1} for t in range(ROUNDS)]
X, IDS, DRIFT = np.array([1.0, 0.0]), np.array([3, 5]), np.ones((2, 2))
WHOLE = RunBits({"x": X, "client": IDS, "state_drift": DRIFT}, LOG)
KILLED = Ending("killed", "all ranks", "round", RoundsSeen(7, 0, 6))


@pytest.fixture
def scripted(tmp_path, monkeypatch):
    """Plays one run, killed once: of a life that began as told, and that left what is told."""

    def played(began, left=WHOLE):
        attempts = iter(
            [Ending("finished"), KILLED, Ending("finished", seen=RoundsSeen(4, began, ROUNDS))]
        )
        found, starts = iter([WHOLE, left]), []

        def play(start, kill, folder, durations, keep):
            folder.root.mkdir(exist_ok=True)
            folder.job.touch()
            starts.append(start)
            return next(attempts)

        def outcome(folder):
            what = next(found)
            if isinstance(what, StoreError):
                raise what
            return what

        monkeypatch.setattr(chaos, "run_attempt", play)
        monkeypatch.setattr(chaos, "outcome", outcome)
        bench = Chaos(tmp_path, [1], Random(0), Summary([]), exact=False)
        assert len(list(bench.run(1))) == 1
        # No checkpoint was lost that was seen: the last life has something to go on from.
        assert [start.refusable for start in starts] == [False] * 3
        return bench.tally

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


def test_remembers_what_was_committed(finished, tmp_path):
    """Also when it is gone by the end of the life."""
    folder = RunDir(tmp_path / "run")
    shutil.copytree(finished.root, folder.root)
    newest = committed(folder)
    watch = AttemptMonitor(SimpleNamespace(has_open=lambda file: False), folder, PhaseDurations())
    assert watch.seen == RoundsSeen(0, None, newest)
    shutil.rmtree(folder.checkpoints / f"{newest:08d}")
    folder.add_to_history({"session": "next", "round": committed(folder)})
    watch.end()
    assert 0 < committed(folder) < newest
    assert watch.seen == RoundsSeen(0, committed(folder), newest)


@pytest.mark.parametrize(
    ("said", "code", "began", "expected"),
    [
        ("stopped by SIGTERM after round 3 of 24", 75, 1, ""),
        ("", 15, None, ""),  # before MPI started: the launcher's code
        ("", 15, 1, "exit code 15 where 75 was expected"),
        ("Traceback (most recent call last):", 75, 1, "a traceback"),
    ],
)
def test_sees_a_stop_that_went_wrong(said, code, began, expected):
    life = SimpleNamespace(output_lines=lambda: [said], code=code)
    assert attempt_outcome.fault_of_stop(life, RoundsSeen(3, began, 2)) == expected
