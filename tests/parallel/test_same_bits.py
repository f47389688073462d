"""A job and its seed determine every bit: on any number of ranks, stopped and resumed or not."""

from decimal import Decimal

import numpy as np
import pytest

from hpcfl.runs.log_keys import PHASES
from tests.long_form import LONG, long_form
from tests.parallel.harness import play_all
from tests.parallel.outcome import log, model, outcome

LENET = {
    "task": "cifar10-lenet",
    "cohort": {"kind": "uniform", "size": 4},
    "local": {"epochs": 1, "batch_size": 8, "lr": 0.05, "lr_decay": 0.9, "weight_decay": 1.0e-3},
    "rounds": 5,
    "evaluate": {"every": 4},
    "seed": 3,
}
# Of 9 clients at p = 0.15 a quarter of the rounds is empty.
DIGITS = {
    "task": "digits",
    "data": {"partition": {"kind": "dirichlet", "alpha": 0.1}, "clients": 9},
    "cohort": {"kind": "bernoulli", "p": 0.15},
    "algorithm": {"name": "fedhbm"},
    "local": {"epochs": 1, "batch_size": 16, "lr": 0.1, "weight_decay": 1.0e-4},
    "rounds": 40,
    "checkpoint": {"every": 7},
    "evaluate": {"every": 8, "last": 3},
    "seed": 11,
}
SCAFFOLD_1 = {"name": "scaffold", "option": 1, "server_lr": 0.5}
LOCALGHB = {"name": "localghb"}
BLOCK = {"executor": "block", "block_size": 3}
KEPT = {
    "steps": 3,
    "batch_size": 16,
    "lr": 0.01,
    "weight_decay": 0.1,
    "optimizer": "adamw",
    "keep_optimizer": True,
    "step_schedule": {"kind": "cosine", "warmup": 20, "floor": 0.1},
}
JOBS = {
    "lenet-fedavg": {**LENET, "algorithm": {"name": "fedavg"}},
    "lenet-scaffold": {**LENET, "algorithm": {"name": "scaffold"}},
    "lenet-fedhbm": {**LENET, "algorithm": {"name": "fedhbm", "first": "random"}},
    "lenet-block": {**LENET, "algorithm": {"name": "fedhbm"}, **BLOCK},
    "digits": DIGITS,
    "digits-block": {**DIGITS, "algorithm": {"name": "scaffold"}, **BLOCK},
    "digits-no-cache": {**DIGITS, "store": {"cache_gib": 0.0}},
    "digits-localghb": {**DIGITS, "algorithm": LOCALGHB},
    "digits-localghb-no-cache": {**DIGITS, "algorithm": LOCALGHB, "store": {"cache_gib": 0.0}},
    "digits-scaffold": {**DIGITS, "algorithm": SCAFFOLD_1, "weights": "uniform"},
    "digits-momentum": {
        **DIGITS,
        "algorithm": SCAFFOLD_1,
        "local": {**DIGITS["local"], "momentum": 0.9, "nesterov": True},
        **BLOCK,
    },
    "digits-kept": {**DIGITS, "algorithm": {"name": "feddyn"}, "local": KEPT, "balance": "steal"},
    "digits-kept-block": {
        **DIGITS,
        "algorithm": {"name": "fedavg"},
        "local": KEPT,
        "store": {"dtype": "bfloat16"},
        **BLOCK,
    },
    "digits-devices": {
        **DIGITS,
        "algorithm": SCAFFOLD_1,
        "cohort": {"kind": "uniform", "size": 2},
        "balance": "steal",
        "devices": {
            "examples_per_s": {"median": 200.0, "sigma": 1.0},
            "down_mbps": 0.1,
            "jitter": 0.3,
            "available": 0.6,
            "fails": 0.3,
            "deadline_s": 2.5,
            "late": "shorten",
            "over_select": 1.5,
        },
    },
    "digits-bf16": {**DIGITS, "precision": "bf16"},
    "digits-importance": {**DIGITS, "cohort": {"kind": "importance", "size": 4}},
    "digits-power-of-choice": {
        **DIGITS,
        "cohort": {"kind": "power_of_choice", "size": 3, "candidates": 6},
        "algorithm": SCAFFOLD_1,
        "balance": "steal",
        "devices": {"examples_per_s": {"median": 300.0, "sigma": 1.0}, "available": 0.7}
        | {"deadline_s": 2.0, "late": "shorten", "over_select": 1.5},
    },
    "digits-fast": {**DIGITS, "reduction": "fast"},
}
EXACT = [name for name in JOBS if name != "digits-fast"]
LEADING = ["lenet-fedavg", "lenet-scaffold", "lenet-fedhbm", "digits"]
STOPPED = [
    *LEADING,
    "digits-block",
    "digits-no-cache",
    "digits-scaffold",
    "digits-importance",
    "digits-power-of-choice",
    "digits-devices",
    "digits-kept",
    "digits-kept-block",
    *(n for n in JOBS if "localghb" in n),
]
# More ranks than cores wait for each other by spinning, so they play fewer jobs.  What is stopped
# and resumed on 3, 1 and 2 ranks is played on 2 without a stop in the long form alone.
ON_RANKS = {
    2: [name for name in EXACT if LONG or name not in STOPPED],
    3: [*LEADING, "digits-block", "digits-devices"],
    4: [*LEADING, "digits-kept"],
}
STAGES = {"2, 3": [(2, 3), (3, 0)], "3, 1, 2": [(3, 2), (1, 4), (2, 0)]}  # (ranks, stop)


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    """A folder with cifar10.npz: 120 random images, and shares of 8 clients of unequal sizes."""
    folder = tmp_path_factory.mktemp("images")
    draw = np.random.default_rng(0)

    def pixels(n):
        return draw.integers(0, 256, (n, 32, 32, 3), dtype=np.uint8)

    labels = {"y_train": draw.integers(0, 10, 120), "y_test": draw.integers(0, 10, 20)}
    np.savez(folder / "cifar10.npz", x_train=pixels(120), x_test=pixels(20), **labels)
    np.save(folder / "shares.npy", np.repeat(np.arange(8), [3, 7, 10, 12, 16, 20, 24, 28]))
    return folder


@pytest.fixture(scope="module")
def play(images, tmp_path_factory):
    """Starts jobs (or resumes, where ``folder`` is given) on so many ranks; returns the folder."""

    def go(ranks, names, *, stop=0, folder=None, backend="auto"):
        root = folder or tmp_path_factory.mktemp(f"on{ranks}")
        jobs = {}
        for name in names:
            job = {**JOBS[name], "comm": {"backend": backend}, "device": "cpu"}
            if "lenet" in name:
                shares = {"kind": "file", "path": str(images / "shares.npy")}
                job["data"] = {"root": str(images), "clients": 8, "partition": shares}
            jobs[name] = job
        play_all(root, jobs, ranks, stop=stop, mpi=backend != "gloo")
        return root

    return go


@pytest.fixture(scope="module")
def alone(play):
    """Every job, uninterrupted on one rank."""
    return play(1, JOBS)


def test_the_jobs_exercise_what_they_should(alone):
    for name in JOBS:
        found = outcome(alone / name)
        rounds = [record["round"] for record in found.log]
        assert rounds == list(range(JOBS[name]["rounds"] + 1))
        sizes = [record["clients"] for record in found.log[1:]]
        if "lenet" in name:
            assert sizes == [4] * 5
        elif "power" in name:
            assert {2, 3} <= set(sizes) <= {0, 1, 2, 3}
        elif "importance" in name:
            assert {2, 3, 4} <= set(sizes)
        else:
            assert {0, 1, 2} <= set(sizes)
        fields = {"fedavg": 0, "scaffold": 1, "feddyn": 1, "fedhbm": 2, "localghb": 2}
        # Of AdamW two moments and a count are kept.
        kept = fields[JOBS[name]["algorithm"]["name"]] + 3 * ("kept" in name)
        assert {len(state) for state in found.clients.values()} <= {kept}
        assert bool(found.clients) == bool(kept)


def test_the_store_does_not_show(alone):
    one = outcome(alone / "digits")
    assert one == outcome(alone / "digits-no-cache")
    assert outcome(alone / "digits-bf16").server != one.server
    one = outcome(alone / "digits-localghb")
    assert outcome(alone / "digits-localghb-no-cache") == one


@pytest.mark.parametrize("ranks", [2, *(pytest.param(ranks, marks=long_form) for ranks in (3, 4))])
def test_on_any_number_of_ranks(alone, play, ranks):
    many = play(ranks, ON_RANKS[ranks])
    for name in ON_RANKS[ranks]:
        assert outcome(many / name) == outcome(alone / name), name
        for line in log(many / name):
            assert_accounted(line, ranks)
    for line in log(alone / "digits"):
        assert_accounted(line, 1)


def assert_accounted(line, ranks):
    """The parts are all of the time; every rank that met the others said how busy it was."""
    parts = [Decimal(repr(line[f"{part}_s"])) for part in PHASES]
    assert sum(parts) == Decimal(repr(line["wall_s"]))
    assert min(parts) >= 0
    assert ("busy_s" in line) == ("imbalance" in line) == (ranks > 1 and line["round"] > 0)
    if "busy_s" in line:
        busy = line["busy_s"]
        assert len(busy) == ranks
        assert min(busy) > 0
        rounding = 0.01 + 1e-6 / min(busy)
        assert line["imbalance"] == pytest.approx(max(busy) * ranks / sum(busy), rel=rounding)


@pytest.mark.parametrize("ranks", [1, 2])
def test_the_fast_sum_is_near(alone, play, ranks):
    run = (alone if ranks == 1 else play(ranks, ["digits-fast"])) / "digits-fast"
    fast, exact = model(run), model(alone / "digits")
    assert 0 < (fast - exact).abs().max() <= 1e-5 * exact.abs().max()


@pytest.mark.parametrize("ranks", [3, *(pytest.param(ranks, marks=long_form) for ranks in (2, 4))])
def test_with_gloo(alone, play, ranks):
    many = play(ranks, LEADING, backend="gloo")
    for name in LEADING:
        assert outcome(many / name) == outcome(alone / name), name


@pytest.mark.parametrize("stages", [pytest.param("2, 3", marks=long_form), "3, 1, 2"])
def test_stopped_and_resumed_on_other_numbers_of_ranks(alone, play, stages):
    folder = None
    for ranks, stop in STAGES[stages]:
        folder = play(ranks, STOPPED, stop=stop, folder=folder)
        for name in STOPPED:
            found, whole = outcome(folder / name), outcome(alone / name)
            if stop:
                assert found.round == stop, name
                assert found.log == whole.log[: stop + 1], name
            else:
                assert found == whole, name
