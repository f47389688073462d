"""What must be equal, what must stay true, and what must differ once a condition is broken."""

import numpy as np
import pytest

from tests.algorithms.play import (
    Problem,
    kept,
    parts,
    play,
    servers,
    softmax_problem,
    states,
    tree,
    xs,
)
from tests.algorithms.reference import Setting
from tests.algorithms.zoo import ALL

PROBLEM = softmax_problem()
PARTIAL = {"kind": "replay", "rounds": [[1, 4], [0, 1, 2, 3, 4, 5], [5], [2, 4], [0, 1], [1, 3]]}
ONE_STEP = {"steps": 1, "batch_size": "full", "lr": 0.3, "weight_decay": 0.1}

# Client i's loss is h_i (w - m_i)^2 / 2, from one example or from three equal ones.
H, M = np.array([1.0, 4.0, 0.25, 2.25]), np.array([2.0, -1.0, 5.0, 0.0])
OWNERS = np.array([0, 0, 0, 1, 2, 2, 2, 3])
QUADRATICS = Problem(np.sqrt(H)[OWNERS, None], (np.sqrt(H) * M)[OWNERS], OWNERS)
PLAIN_OPTIMUM = (H * M).sum() / H.sum()


def far(a, b):
    return np.abs(a - b).max() > 1e-3


@pytest.mark.parametrize("name", [name for name in ALL if name.startswith("fedhbm")])
def test_fedhbm_without_momentum_is_fedavg_bit_for_bit(tmp_path, name):
    local = {"epochs": 2, "batch_size": 4, "lr": 0.3, "lr_decay": 0.9, "weight_decay": 0.1}
    rest = {"local": local, "cohort": PARTIAL}
    rate = ALL[name].get("server_lr", 1.0)
    fedavg = xs(tmp_path, tree(tmp_path, PROBLEM, {"name": "fedavg", "server_lr": rate}, **rest))
    for precision in ("float64", "float32"):
        zero = tree(tmp_path, PROBLEM, {**ALL[name], "beta": 0.0}, **rest, precision=precision)
        if precision == "float32":
            plain = {"name": "fedavg", "server_lr": rate}
            fedavg = xs(tmp_path, tree(tmp_path, PROBLEM, plain, **rest, precision=precision))
        assert (xs(tmp_path, zero) == fedavg).all()
    assert far(xs(tmp_path, tree(tmp_path, PROBLEM, ALL[name], **rest)), fedavg)


@pytest.mark.parametrize("nesterov", [False, True])
def test_fedhbm_is_fedavg_until_clients_come_back(tmp_path, nesterov):
    """Cyclic groups of 2 of 6: C = 1/3, so 3 rounds; with ``first: shared`` only one."""
    cyclic = {"cohort": {"kind": "cyclic", "size": 2}}
    fedavg = xs(tmp_path, tree(tmp_path, PROBLEM, {"name": "fedavg"}, **cyclic))
    hbm = {"name": "fedhbm", "nesterov": nesterov}
    zero = xs(tmp_path, tree(tmp_path, PROBLEM, hbm, **cyclic))
    assert (zero[:4] == fedavg[:4]).all()
    assert far(zero[4], fedavg[4])
    shared = xs(tmp_path, tree(tmp_path, PROBLEM, {**hbm, "first": "shared"}, **cyclic))
    assert (shared[:2] == fedavg[:2]).all()
    assert far(shared[2], fedavg[2])


def test_fedhbm_differs_earlier_where_participation_is_not_cyclic(tmp_path):
    cohort = {"kind": "replay", "rounds": [[0, 1], [0, 2], [3, 4]]}
    rest = {"cohort": cohort, "rounds": 3}
    fedavg = xs(tmp_path, tree(tmp_path, PROBLEM, {"name": "fedavg"}, **rest))
    hbm = xs(tmp_path, tree(tmp_path, PROBLEM, {"name": "fedhbm"}, **rest))
    assert far(hbm[2], fedavg[2])


def sgd(x0, rounds, weights):
    """SGD on sum p_i f_i, by numpy."""
    setting, x = Setting(PROBLEM, x0, [], 1.0), x0
    for _ in range(rounds):
        g = sum(p * setting.full(i, x) for i, p in enumerate(weights / weights.sum()))
        x = x - 0.3 * (g + 0.1 * x)
    return x


def test_fedavg_with_one_step_is_sgd_on_the_weighted_objective(tmp_path):
    sizes = np.bincount(PROBLEM.client)
    job = tree(tmp_path, PROBLEM, {"name": "fedavg"}, local=ONE_STEP)
    found = xs(tmp_path, job)
    np.testing.assert_allclose(found[-1], sgd(found[0], 6, sizes), rtol=0, atol=1e-12)
    assert far(found[-1], sgd(found[0], 6, np.ones(6)))
    two = xs(tmp_path, {**job, "local": {**ONE_STEP, "steps": 2, "lr": 0.15}})
    assert far(two[-1], sgd(found[0], 6, sizes))
    partial = xs(tmp_path, {**job, "cohort": {"kind": "cyclic", "size": 3}})
    assert far(partial[-1], sgd(found[0], 6, sizes))


@pytest.mark.parametrize("option", [1, 2])
def test_scaffold_with_one_step_is_sgd_on_the_mean(tmp_path, option):
    """Only at wd = 0 for option 1 as well as 2: what c holds of the decay cancels in the mean."""
    job = tree(
        tmp_path,
        PROBLEM,
        {"name": "scaffold", "option": option},
        local=ONE_STEP,
        weights="uniform",
    )
    found = xs(tmp_path, job)
    np.testing.assert_allclose(found[-1], sgd(found[0], 6, np.ones(6)), rtol=0, atol=1e-12)
    weighted = xs(tmp_path, {**job, "weights": "examples"})
    assert far(weighted[-1], sgd(found[0], 6, np.ones(6)))
    assert far(xs(tmp_path, {**job, "local": {**ONE_STEP, "steps": 3}})[-1], found[-1])


@pytest.mark.parametrize("option", [1, 2])
@pytest.mark.parametrize("weights", ["examples", "uniform"])
def test_scaffold_keeps_c_the_mean_of_all_clients(tmp_path, option, weights):
    """After every round, over the whole population, absent clients counting zero."""
    local = {"epochs": 2, "batch_size": 4, "lr": 0.3, "lr_decay": 0.8, "weight_decay": 0.1}
    job = tree(
        tmp_path,
        PROBLEM,
        {"name": "scaffold", "option": option},
        local=local,
        weights=weights,
        cohort=PARTIAL,
    )
    run = play(tmp_path, kept(job)).path
    described = parts(tmp_path, job)
    for t, server in enumerate(servers(run)):
        found = states(run, described, t)
        own = [np.zeros(15) if state is None else state.c.numpy() for state in found]
        np.testing.assert_allclose(server["c"], np.mean(own, axis=0), rtol=0, atol=1e-14)
        seen = {i for cohort in PARTIAL["rounds"][:t] for i in cohort}
        assert {i for i, state in enumerate(found) if state is not None} == seen
    assert np.abs(server["c"]).max() > 1e-2


def quadratic(folder, algorithm, start, *, steps, rounds, weights, lr=0.1):
    """The model after ``rounds`` rounds at full participation."""
    np.save(folder / "start.npy", np.array([start]))
    model = {"name": "linear", "bias": False, "init": str(folder / "start.npy")}
    local = {"steps": steps, "batch_size": "full", "lr": lr}
    changes = {"model": model, "local": local, "weights": weights, "rounds": rounds}
    return float(play(folder, tree(folder, QUADRATICS, algorithm, **changes)).x)


@pytest.mark.parametrize("option", [1, 2])
@pytest.mark.parametrize("weights", ["examples", "uniform"])
def test_scaffold_arrives_at_the_optimum_of_the_unweighted_mean(tmp_path, option, weights):
    algorithm = {"name": "scaffold", "option": option}
    end = quadratic(tmp_path, algorithm, 7.0, steps=3, rounds=200, weights=weights)
    assert end == pytest.approx(PLAIN_OPTIMUM, abs=1e-9)


def test_fedavg_leaves_the_optimum(tmp_path):
    """With more than one local step; with one it stays, and weights move its optimum."""
    fedavg = {"name": "fedavg"}
    begin = {"start": PLAIN_OPTIMUM, "weights": "uniform"}
    one = quadratic(tmp_path, fedavg, steps=1, rounds=20, **begin)
    assert one == pytest.approx(PLAIN_OPTIMUM, abs=1e-12)
    for steps in (2, 5):
        moved = quadratic(tmp_path, fedavg, steps=steps, rounds=20, **begin)
        assert abs(moved - PLAIN_OPTIMUM) > 1e-2
    n = np.bincount(OWNERS)
    weighted = quadratic(tmp_path, fedavg, 7.0, steps=1, rounds=300, weights="examples")
    assert weighted == pytest.approx((n * H * M).sum() / (n * H).sum(), abs=1e-9)
    assert abs(weighted - PLAIN_OPTIMUM) > 1e-2
