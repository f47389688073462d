"""A sweep that is stopped in the middle and taken up again ends as one that never was."""

import signal
import subprocess
import sys
import time

import pytest
import yaml

from tests.parallel.background import PATIENCE_S, held, rounds, write
from tests.parallel.harness import environment, play_all
from tests.parallel.outcome import outcome
from tests.signals import not_ignored

NAMES = ["seed0", "seed1", "seed2"]


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    """Three runs of 60 rounds, two ranks each, never checkpointed but at the end."""
    folder = tmp_path_factory.mktemp("sweep")
    job = write(folder, checkpoint={"every": 100_000}).name
    sweep = {"job": job, "grid": {"seed": [0, 1, 2]}, "ranks": 2}
    (folder / "sweep.yaml").write_text(yaml.safe_dump(sweep))
    return folder / "sweep.yaml"


def begin(file, root, **changes):
    """The sweep, two runs at once, in the background."""
    with not_ignored():
        return subprocess.Popen(
            [sys.executable, "-m", "hpcfl", "sweep", file, "--out", root, "--parallel", "2"],
            env=environment(**changes),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )


def end(process):
    out, err = process.communicate(timeout=PATIENCE_S)
    return process.returncode, out, err


def wait_for(process, ready):
    deadline = time.monotonic() + PATIENCE_S
    while not ready():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline, "the sweep does not get so far"
        time.sleep(0.005)


@pytest.fixture(scope="module")
def whole(file, tmp_path_factory):
    """The outcomes of the sweep's runs, which nobody stopped."""
    root = tmp_path_factory.mktemp("whole")
    job = yaml.safe_load((file.parent / yaml.safe_load(file.read_text())["job"]).read_text())
    play_all(root, {name: {**job, "seed": seed} for seed, name in enumerate(NAMES)}, 2)
    return [outcome(root / name) for name in NAMES]


def test_stopped_and_taken_up_again_with_the_same_bits(file, whole, tmp_path):
    sweep = begin(file, tmp_path, **held(30))
    wait_for(sweep, lambda: rounds(tmp_path / NAMES[1]) >= 10)
    sweep.send_signal(signal.SIGTERM)
    code, out, err = end(sweep)
    assert (code, out) == (75, ""), err
    assert "Stopped: stopped by SIGTERM; the same command resumes" in err
    assert " stopped  seed1: Stopped: " in err
    assert "failed" not in err
    code, out, err = end(begin(file, tmp_path))
    assert code == 0, err
    assert "+- " in out
    assert " resumed  seed1: from round " in err
    assert [outcome(tmp_path / name) for name in NAMES] == whole


def test_stopped_before_its_runs_listen(file, tmp_path):
    sweep = begin(file, tmp_path, **held(30))
    wait_for(sweep, (tmp_path / f"{NAMES[0]}.log").exists)
    sweep.send_signal(signal.SIGTERM)
    code, out, err = end(sweep)
    assert (code, out) == (75, ""), err
    assert " stopped  seed0: " in err
    assert "failed" not in err
