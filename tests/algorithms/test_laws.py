"""What stays true in every round, the papers' lemmas, and where methods come to rest."""

from pathlib import Path

import numpy as np
import pytest
import torch

from hpcfl.algorithms.base import Message
from hpcfl.algorithms.facts import Client
from hpcfl.algorithms.fedswa import FedSWA
from hpcfl.algorithms.qsgd import QSGD
from hpcfl.algorithms.randk import RandK
from hpcfl.algorithms.topk import TopK
from hpcfl.clients.draws import drawn
from hpcfl.job.load import load
from tests.algorithms.play import Problem, softmax_problem, tree
from tests.algorithms.settings import (
    CLIENTS,
    LR,
    STEPS,
    Method,
    a,
    cohorts,
    job,
    setting,
    within,
    without,
)
from tests.algorithms.trace import trace

ROOT = Path(__file__).parents[2]

# ------------------------------------------------------------------ 8: invariants


@pytest.mark.parametrize(
    ("method", "server", "own"),
    [
        (a("scaffold", option=1), "c", "c"),
        (a("scaffold", option=2), "c", "c"),
        (a("feddyn", alpha=0.5), "h", "l"),
        (a("fedgamma", rho=0.1), "c", "c"),
        (a("fedlesam_s", rho=0.1), "c", "c"),
        (a("fedlesam_d", rho=0.1, alpha=0.5), "h", "l"),
        (a("fedsmoo", rho=0.1, alpha=0.5), "h", "l"),
        (a("fedspeed", rho=0.1, mu=0.5), "h", "l"),
        (a("fedvarp"), "u", "u"),
        (a("ef21", ratio=0.3), "g", "g"),
    ],
    ids=str,
)
def test_the_server_keeps_the_mean_of_all_clients(folder, method, server, own):
    """After every round, over the whole population, absent clients counting zero."""
    for at in within({}):
        found, seen = trace(job(folder, method, at)), set()
        for t, cohort in enumerate(cohorts(at)):
            seen |= set(cohort)
            states = found.states[t]
            assert {i for i, state in enumerate(states) if state is not None} == seen
            mean = sum(getattr(states[i], own).numpy() for i in seen) / CLIENTS
            kept = getattr(found.servers[t + 1], server).numpy()
            np.testing.assert_allclose(kept, mean, rtol=0, atol=1e-12, err_msg=f"{t}, {at}")
        assert np.abs(kept).max() > 1e-2


def test_fedexp_never_steps_less_than_fedavg(folder):
    """And in some rounds further, where all take part."""
    for at in within({"server_lr": 1.0}):
        found = trace(job(folder, a("fedexp", eps=0.01), at))
        rates = [float(server.rate) for server in found.servers]
        assert min(rates) >= 1
        assert max(rates) > 1 or at["cohort"] != "full", at


def test_dpfedavg_moves_no_further_than_its_clip(folder):
    """Where cohorts are of one size."""
    for at in within({"cohort": "cyclic"}):
        path = trace(job(folder, a("dpfedavg", clip=0.2, noise=0.0), at)).xs
        steps = np.linalg.norm(np.diff(path, axis=0), axis=1)
        assert steps.max() <= at["server_lr"] * 0.2 * (1 + 1e-12)
        assert steps.max() > at["server_lr"] * 0.05


def uploads(method, v, seeds=range(1)):
    """[seeds, P]: what a client that moved by -v sends."""
    zero = torch.zeros_like(v)
    client = Client(*[zero[:0]] * 5)
    return torch.stack(
        [
            method.finish(
                -v,
                None,
                Message(zero),
                None,
                client._replace(draws=drawn(method.client_draws, v, seed, 0, 0)),
            )[0].delta
            for seed in seeds
        ]
    )


V = torch.randn(40, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


@pytest.mark.parametrize("ratio", [0.1, 0.5, 0.9])
def test_topk_leaves_less_than_its_share(ratio):
    k = 40 * ratio
    left = (uploads(TopK(ratio=ratio), V)[0] - V).norm() ** 2
    assert 0 < left <= (1 - k / 40) * V.norm() ** 2


@pytest.mark.parametrize("method", [QSGD(levels=1), QSGD(levels=4), RandK(ratio=0.25)], ids=str)
def test_random_compression_is_right_in_the_mean(method):
    """And of QSGD the error is bounded: min(P / levels^2, sqrt(P) / levels) norm(v)^2."""
    sent = uploads(method, V, range(4000))
    spread = sent.std(0) / 4000**0.5
    assert ((sent.mean(0) - V).abs() <= 5 * spread + 1e-12).all()
    if isinstance(method, QSGD):
        error = ((sent - V) ** 2).sum(1).mean()
        bound = min(40 / method.levels**2, 40**0.5 / method.levels)
        assert 0 < error <= bound * V.norm() ** 2


@pytest.mark.parametrize("rho", [0.0, 0.3, 1.0])
def test_fedswa_s_rates_add_up(rho):
    """To eta ((K + 1) + rho (K - 1)) / 2, from eta on."""
    zero = torch.zeros((), dtype=torch.float64)
    for K in range(1, 8):
        client = Client(zero, zero, zero + K, zero + LR, zero)
        scales = [
            float(FedSWA(rho=rho).step_scale(zero[None], None, client._replace(step=zero + k)))
            for k in range(K)
        ]
        assert scales[0] == 1
        assert sum(scales) == pytest.approx(((K + 1) + rho * (K - 1)) / 2, rel=1e-14)


@pytest.mark.parametrize("option", [1, 2])
def test_the_server_keeps_the_mean_of_all_clients_from_a_warm_start_on(folder, option):
    """Absent clients count with their gradients at the initial model."""
    method = a("scaffold", option=option, first="gradient")
    for at in within({}):
        found = trace(job(folder, method, at))
        s = setting(at, found.xs[0])
        for t, states in enumerate(found.states):
            mean = sum(state.c.numpy() for state in states) / CLIENTS
            kept = found.servers[t + 1].c.numpy()
            np.testing.assert_allclose(kept, mean, rtol=0, atol=1e-12, err_msg=f"{t}, {at}")
            for i in set(range(CLIENTS)).difference(*cohorts(at)[: t + 1]):
                full = s.full(i, found.xs[0])
                np.testing.assert_allclose(states[i].c, full, rtol=0, atol=1e-12)


# Of four clients in groups of two and of three; in the first round there is no client.
@pytest.mark.parametrize("cohort", [[0, 3], [0, 1, 3]])
def test_a_warm_start_takes_the_gradients_at_the_initial_model(folder, cohort):
    at = within({})[0]
    replay = {"kind": "replay", "rounds": [[], *[cohort] * 9]}
    method = a("scaffold", first="gradient")
    found = trace(job(folder, method, at, cohort=replay, rounds=1))
    s = setting(at, found.xs[0])
    gradients = [s.full(i, found.xs[0]) for i in range(CLIENTS)]
    assert (found.xs[1] == found.xs[0]).all()
    for state, gradient in zip(found.states[0], gradients, strict=True):
        np.testing.assert_allclose(state.c, gradient, rtol=0, atol=1e-12)
    c = found.servers[1].c.numpy()
    np.testing.assert_allclose(c, np.mean(gradients, axis=0), rtol=0, atol=1e-12)
    assert np.abs(c).max() > 0.05


def test_a_warm_start_on_equal_clients_begins_as_fedavg(tmp_path):
    """Every correction is c - c_i = 0 in the first round; clients that differ are corrected."""
    one = softmax_problem(sizes=(9,))
    equal = Problem(np.tile(one.x, (3, 1)), np.tile(one.y, 3), np.repeat(np.arange(3), 9))
    local = {"steps": 3, "batch_size": "full", "lr": 0.3}
    warm, fedavg = {"name": "scaffold", "first": "gradient"}, {"name": "fedavg"}
    for name, problem in {"equal": equal, "unequal": softmax_problem(sizes=(9, 9, 9))}.items():
        folder = tmp_path / name
        folder.mkdir()
        ends = [
            trace(tree(folder, problem, method, local=local, rounds=1)).xs[1]
            for method in (warm, fedavg)
        ]
        gap = np.abs(ends[0] - ends[1]).max()
        assert gap < 1e-12 if name == "equal" else gap > 1e-3


def quadratic_rounds(folder, first, heterogeneity):
    """Rounds until SCAFFOLD with K = 10 stays within 0.01 of the optimum of two quadratics."""
    demo = load(
        ROOT / "jobs/quadratics/fedavg.yaml",
        [f"algorithm={{name: scaffold, first: {first}}}", f"data.heterogeneity={heterogeneity}"],
    )
    return int(np.flatnonzero(np.abs(trace(demo.tree).xs[:, 0]) > 0.01)[-1]) + 1


def test_heterogeneity_costs_no_round_after_a_warm_start(folder):
    """The slides' "SCAFFOLD is unaffected by G"; control variates that start at zero are."""
    levels = (1.0, 10.0, 100.0)
    assert [quadratic_rounds(folder, "gradient", level) for level in levels] == [3, 3, 3]
    assert [quadratic_rounds(folder, "zero", level) for level in levels] == [5, 7, 10]


# ------------------------------------------------------------------ 9: lemmas


def local_gradients(found, at):
    """(t, {client: [K, P], what its steps took}) of every round with clients."""
    s = setting(at, found.xs[0])
    for t, cohort in enumerate(cohorts(at)):
        if cohort:
            members = sorted(cohort)
            ends = np.cumsum([s.K(i) for i in members])
            parts = np.split(np.stack(found.gradients[t]), ends)
            assert len(parts.pop()) == 0
            yield t, dict(zip(members, parts, strict=True))


def fedcm_4_1(found, at):
    """Delta <- alpha mean_i mean_k g + (1 - alpha) Delta, mean_i weighted by p_i."""
    alpha, s = 0.3, setting(at, found.xs[0])
    for t, gradients in local_gradients(found, at):
        mean = s.mean({i: g.mean(axis=0) for i, g in gradients.items()})
        before, after = (found.servers[k].momentum.numpy() for k in (t, t + 1))
        yield after, alpha * mean + (1 - alpha) * before


ALPHA, BETA = [0.4, 0.2], [0.3, 0.1]


def differences(found, at):
    """[T + 1, P], [T + 1, J, P]: x_t and K d_t, K d_(t-1), ..., of the rounds with clients."""
    kept = [0] + [t + 1 for t, cohort in enumerate(cohorts(at)) if cohort]
    x = found.xs[kept]
    back = [np.concatenate([x[:1]] * j + [x])[: len(x)] for j in range(len(ALPHA) + 1)]
    return x, np.stack([back[j + 1] - back[j] for j in range(len(ALPHA))], axis=1)


def fedmim_5(found, at):
    """u <- u - (eta / |S|) sum_i sum_k g; in K d, K cancels and may differ between clients."""
    x, kd = differences(found, at)
    tail = np.cumsum(ALPHA[::-1])[::-1]
    u = x - np.einsum("j,tjp->tp", tail, kd) / (1 - sum(ALPHA))
    for n, (t, gradients) in enumerate(local_gradients(found, at)):
        total = np.mean([g.sum(axis=0) for g in gradients.values()], axis=0)
        yield u[n + 1], u[n] - setting(at, x[0]).eta(t) * total


def fedmim_6(found, at):
    """d_(t+1) = A mean(eta g) + sum_j alpha_j d_(t-j)."""
    x, kd = differences(found, at)
    d = kd / STEPS["equal"]["steps"]
    for n, (t, gradients) in enumerate(local_gradients(found, at)):
        mean = np.mean([g.mean(axis=0) for g in gradients.values()], axis=0)
        scaled = (1 - sum(ALPHA)) * setting(at, x[0]).eta(t) * mean
        yield d[n + 1, 0], scaled + np.einsum("j,jp->p", ALPHA, d[n])


SIMPLE = {"wd": 0.0, "weights": "uniform", "server_lr": 1.0}
FEDMIM = a("fedmim", alpha=ALPHA, beta=BETA)
LEMMAS = [
    (fedcm_4_1, a("fedcm", alpha=0.3), {"wd": 0.0}),
    (fedmim_5, FEDMIM, SIMPLE),
    (fedmim_6, FEDMIM, {**SIMPLE, "steps": "equal"}),
]


@pytest.mark.parametrize(("lemma", "method", "conditions"), LEMMAS)
def test_lemma(folder, lemma, method, conditions):
    for at in within(conditions):
        sides = list(lemma(trace(job(folder, method, at)), at))
        assert len(sides) >= 5
        for left, right in sides:
            np.testing.assert_allclose(left, right, rtol=0, atol=1e-12, err_msg=str(at))
        assert np.abs(left).max() > 1e-2


@pytest.mark.parametrize(
    ("lemma", "method", "conditions", "broken"),
    [(*rest, conditions, axis) for *rest, conditions in LEMMAS for axis in conditions],
)
def test_no_lemma_where_a_condition_is_broken(folder, lemma, method, conditions, broken):
    at = without(conditions, broken)
    sides = lemma(trace(job(folder, method, at)), at)
    assert max(np.abs(left - right).max() for left, right in sides) > 1e-3


# ------------------------------------------------------------------ 10: fixed points


def quadratics():
    """Four clients of 3, 4, 9 and 6 examples: mean((A w - b)^2) / 2, each with its own A and b."""
    draw, owner = np.random.default_rng(3), np.repeat(np.arange(4), (3, 4, 9, 6))
    x = draw.normal(size=(len(owner), 3)) + 0.5 * draw.normal(size=(4, 3))[owner]
    return Problem(x, x.sum(axis=1) + 2 * draw.normal(size=4)[owner], owner)


QUADRATICS = quadratics()


def optimum(weights):
    """Of the weighted mean of the clients' losses."""
    rows = [QUADRATICS.rows(i) for i in range(4)]
    terms = [
        (QUADRATICS.x[r], QUADRATICS.y[r], w / len(r)) for r, w in zip(rows, weights, strict=True)
    ]
    return np.linalg.solve(
        sum(w * x.T @ x for x, _, w in terms), sum(w * x.T @ y for x, y, w in terms)
    )


PLAIN, WEIGHTED = optimum([1, 1, 1, 1]), optimum([3, 4, 9, 6])


def rest(
    folder, method: Method, weights, *, start=(3.0, -1.0, 2.0), steps=3, rounds=120, **changes
):
    """[3]: where the method arrives, at full participation by itself, by full-batch steps."""
    np.save(folder / "start.npy", np.array(start))
    model = {"name": "linear", "bias": False, "init": str(folder / "start.npy")}
    local = {"steps": steps, "batch_size": "full", "lr": 0.2}
    changes |= {"model": model, "local": local, "rounds": rounds, "weights": weights}
    return trace(tree(folder, QUADRATICS, method.fields, **changes)).xs[-1]


@pytest.mark.slow
@pytest.mark.parametrize("weights", ["examples", "uniform"])
@pytest.mark.parametrize(
    "method",
    [
        a("scaffold", option=1),
        a("scaffold", option=2),
        a("feddyn", alpha=1.0),
        a("mimemvr", beta=1.0),
        a("fedspeed", rho=0.0, mu=1.0),
        a("fedgamma", rho=0.0),
        a("fedmoswa", rho=0.4, gamma=0.5),
    ],
    ids=str,
)
def test_corrected_clients_rest_at_the_optimum_of_the_plain_mean(tmp_path, method, weights):
    np.testing.assert_allclose(rest(tmp_path, method, weights), PLAIN, rtol=0, atol=1e-12)


def test_mimemvr_leaves_the_optimum_with_a_smaller_beta(tmp_path):
    """Its clients then follow a part of their own gradient that nothing corrects."""
    end = rest(tmp_path, a("mimemvr", beta=0.6), "uniform", start=PLAIN, rounds=20)
    assert np.linalg.norm(end - PLAIN) > 1e-2


@pytest.mark.parametrize(
    "method",
    [a("fedvarp"), a("fedinit", beta=0.1), a("fedswa"), a("fedacg", lam=0.6)],
    ids=str,
)
def test_others_leave_the_optimum(tmp_path, method):
    """With more than one local step, as FedAvg does."""
    end = rest(tmp_path, method, "uniform", start=PLAIN, rounds=20)
    assert np.linalg.norm(end - PLAIN) > 1e-2


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fedvarp", "fedavg"])
def test_fedvarp_rests_where_fedavg_does_at_full_participation(tmp_path, name):
    """Though two of four clients take turns; FedAvg then goes from one pair's model to another."""
    everyone = rest(tmp_path, a("fedavg"), "uniform")
    pairs = rest(tmp_path, a(name), "uniform", rounds=240, cohort={"kind": "cyclic", "size": 2})
    gap = np.linalg.norm(pairs - everyone)
    assert gap < 1e-10 if name == "fedvarp" else gap > 1e-2


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ef21", "topk"])
def test_ef21_rests_where_fedavg_does(tmp_path, name):
    """With one entry of three; what top-k leaves out is lost."""
    everyone = rest(tmp_path, a("fedavg"), "uniform")
    gap = np.linalg.norm(rest(tmp_path, a(name, ratio=0.3), "uniform") - everyone)
    assert gap < 1e-10 if name == "ef21" else gap > 1e-2


@pytest.mark.parametrize(("weights", "optimum"), [("uniform", PLAIN), ("examples", WEIGHTED)])
def test_fedavg_rests_at_the_optimum_of_its_weighted_mean_with_one_step(tmp_path, weights, optimum):
    end = rest(tmp_path, a("fedavg"), weights, steps=1, rounds=240)
    np.testing.assert_allclose(end, optimum, rtol=0, atol=1e-12)
    assert np.linalg.norm(PLAIN - WEIGHTED) > 0.1


@pytest.mark.parametrize("steps", [1, 2, 5])
def test_fedavg_leaves_the_optimum_with_more_steps(tmp_path, steps):
    end = rest(tmp_path, a("fedavg"), "uniform", start=PLAIN, steps=steps, rounds=20)
    moved = np.linalg.norm(end - PLAIN)
    assert moved > 1e-2 if steps > 1 else moved < 1e-12
