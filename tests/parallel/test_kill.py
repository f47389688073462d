"""kill -9 at any instant, resumed on any number of ranks: as if nothing had happened."""

import random
import time

import pytest

from tests.forked import finish
from tests.long_form import long_form
from tests.parallel.background import Going, held, kill, rounds, write
from tests.parallel.outcome import outcome

# Clients that keep the states of AdamW, with a warm-up.
KEEPING = {
    "kept": {"algorithm": {"name": "fedavg"}},
    "diloco": {"algorithm": {"name": "diloco"}},
    "streaming_diloco": {
        "algorithm": {"name": "streaming_diloco", "fragments": 2},
        "cohort": {"kind": "uniform", "size": 9},
    },
}


def keys_of(name):
    """The keys of a run: a method by its name, or one of ``KEEPING``."""
    if name not in KEEPING:
        return {"algorithm": {"name": name}}
    schedule = {"kind": "cosine", "warmup": 30}
    local = {"steps": 2, "batch_size": 16, "lr": 0.01, "step_schedule": schedule}
    local |= {"optimizer": "adamw", "keep_optimizer": True}
    return {"local": local, **KEEPING[name]}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The uninterrupted runs, by their names."""
    folder = tmp_path_factory.mktemp("whole")
    found = {}
    for name in ("fedhbm", "localghb", "adabest", "fedmim", *KEEPING):
        job = write(folder, name, **keys_of(name))
        done = finish(1, "run", job, "--out", folder / name)
        assert done.returncode == 0, done.stderr
        found[name] = outcome(folder / name)
    return found


@pytest.mark.parametrize(
    ("seed", "victims", "ranks", "store", "name"),
    [
        (0, "one", [2, 3, 1], "hdf5", "fedhbm"),
        pytest.param(1, "all", [3, 2, 2], "hdf5", "adabest", marks=long_form),
        pytest.param(2, "one", [3, 3, 2], "hdf5", "fedhbm", marks=long_form),
        pytest.param(3, "all", [1, 2, 3], "hdf5", "fedmim", marks=long_form),
        pytest.param(4, "one", [2, 2, 3], "hdf5", "localghb", marks=long_form),
        (5, "all", [3, 1, 1], "hdf5", "localghb"),
        (6, "one", [2, 3, 1], "hdf5", "kept"),
        (7, "all", [4, 1, 2], "hdf5", "streaming_diloco"),
        (8, "one", [2, 4, 1], "hdf5", "diloco"),
    ],
)
def test_killed_and_resumed(whole, tmp_path, seed, victims, ranks, store, name):
    """Two kills, each on another number of ranks, and a last start that ends well."""
    draw = random.Random(seed)
    run = tmp_path / "run"
    states = {"kind": store}
    if seed in (0, 4):
        states["cache_gib"] = 0.0
    if seed == 4:
        states["dir"] = str(tmp_path / "near")
    job = write(tmp_path, store=states, **keys_of(name))
    command = ["run", job, "--out", run]
    for life, size in enumerate(ranks[:-1]):
        reached = draw.randint(20 * life + 3, 20 * life + 18)
        with Going(size, *command, env=held(50)) as going:
            going.wait_until(lambda goal=reached: rounds(run) >= goal)
            time.sleep(draw.random() * 0.02)
            pids = going.ranks()
            assert len(pids) == size
            for pid in pids if victims == "all" else [draw.choice(pids)]:
                kill(pid)
            code, _, _ = going.end()
            assert code != 0
        command = ["resume", run]
    done = finish(ranks[-1], *command)
    assert done.returncode == 0, done.stderr
    assert outcome(run) == whole[name]
    assert [record["round"] for record in whole[name].log] == list(range(1, 61))


def test_killed_before_the_first_checkpoint(tmp_path):
    """Nothing to resume from is said in one line, and nothing is invented."""
    run = tmp_path / "run"
    with Going(2, "run", write(tmp_path), "--out", run) as going:
        going.wait_until((run / "job.yaml").exists)
        for pid in going.ranks():
            kill(pid)
        going.end()
    for folder in (run / "checkpoints").glob("*/manifest.json"):
        folder.unlink()  # whether the kill came in time or not
    done = finish(2, "resume", run)
    assert done.returncode == 2
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("StoreError")]
    assert "holds no checkpoint" in line
    assert "Traceback" not in done.stderr


def test_two_runs_in_one_directory_are_refused(tmp_path):
    run = tmp_path / "run"
    with Going(1, "run", write(tmp_path, rounds=100_000), "--out", run) as going:
        going.wait_until(lambda: rounds(run) > 2)
        done = finish(2, "resume", run)
        assert done.returncode == 75
        assert "a run is alive in this directory" in done.stderr
        assert finish(2, "run", tmp_path / "job.yaml", "--out", run).returncode == 75
        assert [path.name for path in (run / "ranks").glob("*/*")] == ["0000.json"]
        assert going.alive
