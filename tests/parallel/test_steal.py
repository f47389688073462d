"""Clients that another rank than their owner trains: the same bits, and less for the busiest."""

import json
from collections import Counter
from functools import partial

import numpy as np
import pytest
import yaml

from hpcfl.clients.assignment import Balance, assign_owners
from hpcfl.clients.sampling import Bernoulli, Uniform
from tests.long_form import long_form
from tests.parallel.harness import mpirun, play_all
from tests.parallel.outcome import outcome

SIZES = [8, 10, 13, 16, 20, 24, 29, 35]
JOB = {
    "model": {"name": "logistic"},
    "cohort": {"kind": "bernoulli", "p": 0.5},
    "local": {"epochs": 2, "batch_size": 8, "lr": 0.1, "weight_decay": 1.0e-4},
    "rounds": 16,
    "balance": "steal",
    "checkpoint": {"every": 5},
    "evaluate": {"every": 4},
    "device": "cpu",
    "seed": 5,
}
METHODS = {
    "fedavg": {"algorithm": {"name": "fedavg"}},  # nothing to ship
    "fedhbm": {
        "algorithm": {"name": "fedhbm", "first": "random"},
        "evaluate": {"every": 4, "local_models": True, "clients": True},
        "diagnostics": {"consistency": True, "dissimilarity": True},
        "executor": "block",
        "block_size": 3,
    },
    "scaffold": {"algorithm": {"name": "scaffold", "option": 1}, "store": {"dtype": "bfloat16"}},
    "localghb": {"algorithm": {"name": "localghb"}, "store": {"cache_gib": 0.0}},
    "adabest": {"algorithm": {"name": "adabest"}},
}


def arrays(file, sizes):
    """Random examples in three classes, of clients of these sizes."""
    draw = np.random.default_rng(0)
    client = np.repeat(np.arange(len(sizes)), sizes)
    y = draw.integers(0, 3, len(client))
    np.savez(file, x=draw.normal(size=(len(client), 6)) + y[:, None], y=y, client=client)
    return {"kind": "arrays", "path": str(file)}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return arrays(tmp_path_factory.mktemp("data") / "skewed.npz", SIZES)


@pytest.fixture(scope="module")
def play(data, tmp_path_factory):
    """Plays every method (or resumes them, where ``folder`` is given) on so many ranks."""

    def go(ranks, names=METHODS, stop=0, folder=None, **changes):
        root = folder or tmp_path_factory.mktemp(f"on{ranks}")
        jobs = {name: {**JOB, "data": data, **METHODS[name], **changes} for name in names}
        play_all(root, jobs, ranks, stop=stop)
        return {name: outcome(root / name) for name in names}, root

    return go


@pytest.fixture(scope="module")
def alone(play):
    """Every method on one rank, by owners."""
    return play(1, balance="owner")[0]


@pytest.mark.parametrize(
    ("ranks", "backend"), [(1, "auto"), pytest.param(2, "mpi", marks=long_form), (3, "gloo")]
)
def test_the_same_bits_as_by_owners(alone, play, ranks, backend):
    assert play(ranks, comm={"backend": backend})[0] == alone
    draw = partial(Bernoulli(p=0.5).draw, population=len(SIZES), seed=JOB["seed"])
    owner, sizes = assign_owners(SIZES, ranks), np.array(SIZES)
    balance = Balance(draw, JOB["rounds"], owner, lambda t: sizes[draw(t)], 0, ranks)
    moves = sum(len(balance.assignment(t).transfers) for t in range(JOB["rounds"]))
    assert (moves >= 10) == (ranks > 1)


@long_form
def test_stopped_and_resumed_on_other_numbers_of_ranks(alone, play):
    names = ["fedhbm", "localghb"]
    _, folder = play(3, names, stop=7)
    assert play(2, names, folder=folder)[0] == {name: alone[name] for name in names}


COUNTING = """
import json, os, sys
from collections import Counter
from pathlib import Path
from hpcfl.clients.client_pool import ClientPool
from tests.parallel import runs

counted, tasks = Counter(), ClientPool.tasks

def counting(self, clients, round, steps):
    def batches(made):
        for batch in made:
            counted[f"{len(self)} steps {round}"] += 1
            counted[f"{len(self)} examples {round}"] += len(batch.labels)
            yield batch
    made = tasks(self, clients, round, steps)
    return [task._replace(batches=batches(task.batches)) for task in made]

ClientPool.tasks = counting
runs.main(json.loads(Path(sys.argv[1]).read_text()))
Path(sys.argv[2], f"{os.getpid()}.counted").write_text(json.dumps(counted))
"""


def test_what_the_busiest_of_four_ranks_trains(tmp_path):
    """Counted at the batches: 10 of 100 clients of one size; 10 of 90 of lognormal sizes."""
    ranks, rounds = 4, 8
    skewed = np.maximum(1, np.random.default_rng(1).lognormal(3, 1, 90)).astype(int).tolist()
    plan = []
    for sizes in ([10] * 100, skewed):
        job = {**JOB, "data": arrays(tmp_path / f"{len(sizes)}.npz", sizes), "rounds": rounds}
        job |= {"algorithm": {"name": "fedhbm"}, "cohort": {"kind": "uniform", "size": 10}}
        file = tmp_path / f"{len(sizes)}.yaml"
        file.write_text(yaml.safe_dump(job))
        plan.append({"job": str(file), "out": str(tmp_path / file.stem), "stop": 0})
    (tmp_path / "plan.json").write_text(json.dumps(plan))
    (tmp_path / "counting.py").write_text(COUNTING)
    done = mpirun(ranks, tmp_path / "counting.py", tmp_path / "plan.json", tmp_path)
    assert done.returncode == 0, done.stderr
    counted = [Counter(json.loads(file.read_text())) for file in tmp_path.glob("*.counted")]
    assert len(counted) == ranks
    for t in range(rounds):
        assert max(rank[f"100 steps {t}"] for rank in counted) == 3 * 4  # 2 epochs of 8 and 2
        assert sum(rank[f"100 steps {t}"] for rank in counted) == 10 * 4
        work = [2 * skewed[i] for i in Uniform(size=10).draw(t, 90, JOB["seed"])]
        best = np.bincount(assign_owners(work, ranks), work).max()
        assert max(rank[f"90 examples {t}"] for rank in counted) <= 1.05 * best
        assert sum(rank[f"90 examples {t}"] for rank in counted) == sum(work)
