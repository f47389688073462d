"""DiLoCo and Streaming DiLoCo with their workers' optimisers: against torch's, and each other.

``test_reference.py`` compares them, and SlowMo, with plain numpy where clients take plain SGD.
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from math import cos, pi
from typing import Any

import numpy as np
import pytest
import torch

from hpcfl.algorithms.diloco import DiLoCo
from hpcfl.algorithms.facts import Facts
from hpcfl.errors import JobError
from tests.algorithms.play import ROUNDS, Array, parts, softmax_problem, tree
from tests.algorithms.reference import Setting
from tests.algorithms.reference.local_sgd import PARTS
from tests.algorithms.test_kept_optimizer import CASES
from tests.algorithms.trace import Trace, trace

PROBLEM = softmax_problem()
CLIENTS = PROBLEM.population
PARTIAL = [[1, 4], [0, 1, 2, 3, 4, 5], [], [2, 4], [5], [1, 3, 4]]
WHOLE = [list(range(CLIENTS))] * ROUNDS
STEPS, LR, DECAY = 3, 0.05, 0.8


def cosine(n: int) -> float:
    """Two steps of warm-up, then half a cosine to 0.1."""
    q = (n - 2) / (STEPS * ROUNDS - 2)
    return (n + 1) / 2 if n < 2 else 0.1 + 0.9 * (1 + cos(pi * q)) / 2


SCHEDULES: Mapping[str, tuple[dict[str, Any] | None, Callable[[int], float]]] = {
    "one rate a round": (None, lambda n: 1.0),
    "cosine": ({"kind": "cosine", "warmup": 2, "floor": 0.1}, cosine),
}
KEPT = [False, True]


class Worker:
    """A client with torch's optimiser of its own, which goes on or begins afresh in each round."""

    def __init__(self, s: Setting, client: int, made: Any, *, kept: bool) -> None:
        self.s, self.client, self.made, self.kept = s, client, made, kept
        self.y = torch.nn.Parameter(torch.from_numpy(s.x0.copy()))
        self.optimizer: Any = None

    def train(self, t: int, factor: Callable[[int], float], mix: Any = None) -> Array:
        """The model after the steps of round ``t``; ``mix(k, y)`` changes it before step k."""
        if self.optimizer is None or not self.kept:
            self.optimizer = self.made([self.y], lr=1.0, weight_decay=self.s.wd)
        for k, gradient in enumerate(self.s.batches(self.client, t)):
            if mix:
                mix(k, self.y.data.numpy())
            self.y.grad = torch.from_numpy(gradient(self.y.detach().numpy()))
            self.optimizer.param_groups[0]["lr"] = self.s.eta(t) * factor(t * STEPS + k)
            self.optimizer.step()
        return self.y.detach().numpy().copy()


class Outer:
    """torch.optim.SGD with Nesterov's momentum, on a part of the server's model."""

    def __init__(self, x: Array, lr: float, beta: float) -> None:
        self.x = torch.nn.Parameter(torch.from_numpy(x.copy()))
        self.sgd = torch.optim.SGD([self.x], lr=lr, momentum=beta, nesterov=beta > 0)

    def step(self, gradient: Array) -> Array:
        self.x.grad = torch.from_numpy(gradient)
        self.sgd.step()
        return self.x.detach().numpy().copy()


def torch_workers(
    s: Setting, made: Any, factor: Any, server: Callable[[int, Array, Array], Array], *, kept: bool
) -> Array:
    """[rounds + 1, P]; ``server(t, x, D)`` is the next model."""
    workers = [Worker(s, i, made, kept=kept) for i in range(CLIENTS)]

    def after(t: int, cohort: Sequence[int], x: Array) -> Array:
        for i in cohort:
            workers[i].y.data.copy_(torch.from_numpy(x))
        return server(t, x, s.delta(x, {i: workers[i].train(t, factor) for i in cohort}))

    return s.play(after)


def torch_streaming(
    s: Setting,
    made: Any,
    factor: Any,
    *,
    kept: bool,
    fragments: Sequence[Sequence[str]],
    delay: int = 1,
    alpha: float = 0.5,
    beta: float = 0.9,
    server_lr: float = 0.7,
) -> Array:
    """[rounds + 1, P]"""
    places = [np.concatenate([np.r_[PARTS[name]] for name in names]) for names in fragments]
    workers = [Worker(s, i, made, kept=kept) for i in range(CLIENTS)]
    outers = [Outer(s.x0[f], server_lr, beta) for f in places]

    def after(t: int, cohort: Sequence[int], x: Array) -> Array:
        def mix(k: int, y: Array) -> None:
            if t > 0 and k == delay:
                f = places[(t - 1) % len(places)]
                y[f] = alpha * y[f] + (1 - alpha) * x[f]

        d, f = s.delta(x, {i: workers[i].train(t, factor, mix) for i in cohort}), t % len(places)
        new = x.copy()
        new[places[f]] = outers[f].step(d[places[f]])
        return new

    return s.play(after)


def played(folder, keys, cohorts, optimizer=None, schedule=None, **changes) -> Trace:
    """A job of these cohorts, with clients that keep nothing unless ``changes`` say so."""
    local = {"steps": STEPS, "batch_size": 4, "lr": LR, "lr_decay": DECAY, "weight_decay": 0.1}
    local |= (optimizer or {}) | ({"step_schedule": schedule} if schedule else {})
    local |= changes.pop("local", {})
    cohort = {"kind": "replay", "rounds": cohorts}
    return trace(tree(folder, PROBLEM, keys, cohort=cohort, local=local, **changes))


def setting(x0: Array, cohorts, *, uniform: bool) -> Setting:
    words = {"epochs": None, "steps": STEPS, "lr": LR, "lr_decay": DECAY, "wd": 0.1}
    return Setting(
        problem=PROBLEM, x0=x0, cohorts=cohorts, participation=1.0, uniform=uniform, **words
    )


@pytest.mark.parametrize("kept", KEPT)
@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("optimizer", CASES)
@pytest.mark.parametrize(
    ("cohorts", "weights"), [(PARTIAL, "examples"), (WHOLE, "uniform")], ids=["partial", "whole"]
)
def test_diloco_is_torch_s(folder, cohorts, weights, optimizer, schedule, kept):
    """An optimiser of torch for each worker, and torch.optim.SGD(nesterov=True) at the server."""
    (keys, made), (section, factor) = CASES[optimizer], SCHEDULES[schedule]
    keep = {"keep_optimizer": kept}
    found = played(folder, {"name": "diloco"}, cohorts, keys | keep, section, weights=weights).xs
    s = setting(found[0], cohorts, uniform=weights == "uniform")
    outer = Outer(s.x0, 0.7, 0.9)
    expected = torch_workers(s, made, factor, lambda t, x, d: outer.step(d), kept=kept)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)
    assert np.abs(found[-1] - found[0]).max() > 0.05


@pytest.mark.parametrize("kept", KEPT)
@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("optimizer", ["momentum", "adamw"])
def test_slowmo_of_torch_s_optimizers(folder, optimizer, schedule, kept):
    (keys, made), (section, factor) = CASES[optimizer], SCHEDULES[schedule]
    own = keys | {"keep_optimizer": kept}
    found = played(folder, {"name": "slowmo", "server_lr": 0.8}, PARTIAL, own, section).xs
    s, u = setting(found[0], PARTIAL, uniform=False), np.zeros(15)

    def server(t: int, x: Array, d: Array) -> Array:
        nonlocal u
        last = s.eta(t) * factor(t * STEPS + STEPS - 1)
        u = 0.7 * u + d / last
        return x - 0.8 * last * u

    expected = torch_workers(s, made, factor, server, kept=kept)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    "keys",
    [
        {"name": "diloco"},
        {"name": "slowmo"},
        {"name": "streaming_diloco", "fragments": 2, "delay": 2},
    ],
    ids=lambda keys: keys["name"],
)
@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_blocks_of_workers_that_keep_their_optimizers(folder, keys, optimizer):
    """Blocks of four, of which the second is not full."""
    own, schedule = CASES[optimizer].keys | {"keep_optimizer": True}, SCHEDULES["cosine"][0]
    one, many = (
        played(folder, keys, WHOLE, own, schedule, **how)
        for how in ({}, {"executor": "block", "block_size": 4})
    )
    np.testing.assert_allclose(many.xs, one.xs, rtol=0, atol=1e-12)
    for states, others in zip(one.states, many.states, strict=True):
        for state, other in zip(states, others, strict=True):
            torch.testing.assert_close([*other], [*state], rtol=0, atol=1e-12)


FRAGMENTS = [[["1.bias"], ["1.weight"]], [["1.weight", "1.bias"]]]


@pytest.mark.parametrize("kept", KEPT)
@pytest.mark.parametrize(
    ("optimizer", "schedule"),
    [("momentum", "one rate a round"), ("adamw", "cosine"), ("muon", "cosine")],
)
@pytest.mark.parametrize("fragments", FRAGMENTS, ids=["two", "one"])
def test_streaming_diloco_is_torch_s(folder, fragments, optimizer, schedule, kept):
    """Workers that never start again, whose optimisers do not notice what they receive."""
    (keys, made), (section, factor) = CASES[optimizer], SCHEDULES[schedule]
    method = {"name": "streaming_diloco", "fragments": fragments}
    found = played(folder, method, WHOLE, keys | {"keep_optimizer": kept}, section).xs
    s = setting(found[0], WHOLE, uniform=False)
    expected = torch_streaming(s, made, factor, kept=kept, fragments=fragments)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)
    assert np.abs(found[-1] - found[0]).max() > 0.05


# ------------------------------------------------------------------ streaming and others


def streaming(**keys) -> dict[str, Any]:
    return {"name": "streaming_diloco", "fragments": 1, "delay": 0, "alpha": 0.0, **keys}


@pytest.mark.parametrize("kept", KEPT)
@pytest.mark.parametrize("optimizer", ["momentum", "adamw"])
def test_one_fragment_at_once_is_diloco(folder, optimizer, kept):
    """Bit for bit; and with a delay, two fragments, or a part of its own, it is not."""
    own = CASES[optimizer].keys | {"keep_optimizer": kept}
    diloco = played(folder, {"name": "diloco"}, WHOLE, own).xs
    assert (played(folder, streaming(), WHOLE, own).xs == diloco).all()
    for changed in ({"delay": 1}, {"fragments": 2}, {"alpha": 0.5}):
        other = played(folder, streaming(**changed), WHOLE, own).xs
        assert np.abs(other - diloco).max() > 1e-3


@pytest.mark.parametrize("kept", KEPT)
@pytest.mark.parametrize("delay", [0, 2])
@pytest.mark.parametrize("fragments", [1, 2])
def test_with_alpha_1_every_worker_is_alone(folder, fragments, delay, kept):
    """As the clients of FedPer that keep all parameters for themselves; with less it is not."""
    own = CASES["adamw"].keys | {"keep_optimizer": kept}
    alone = played(folder, {"name": "fedper", "personal": "all"}, WHOLE, own)
    keys = streaming(fragments=fragments, delay=delay, alpha=1.0)
    found = played(folder, keys, WHOLE, own)
    for states, others in zip(found.states, alone.states, strict=True):
        for state, other in zip(states, others, strict=True):
            assert torch.equal(state.y, other.own)
    less = played(folder, {**keys, "alpha": 0.9}, WHOLE, own)
    assert (less.states[-1][0].y - alone.states[-1][0].own).abs().max() > 1e-3


@pytest.mark.parametrize("kept", KEPT)
@pytest.mark.parametrize("fragments", [1, 2])
def test_the_server_has_the_model_of_its_only_worker(folder, fragments, kept):
    """x[f] of a round is the worker's after it, where beta is 0 and eta_g 1.

    Without delay the worker is alone; DiLoCo's then is too.
    """
    local = {"steps": STEPS, "batch_size": 4, "lr": LR, "keep_optimizer": kept}
    local |= CASES["adamw"].keys

    def go(keys):
        return trace(tree(folder, softmax_problem(sizes=(9,)), keys, local=local))

    server = {"beta": 0.0, "server_lr": 1.0}
    alone = go({"name": "fedper", "personal": "all"})
    path = np.stack([state.own.numpy() for (state,) in alone.states])
    diloco = go({"name": "diloco", **server}).xs[1:]
    np.testing.assert_allclose(diloco, path, rtol=0, atol=1e-12)
    for delay in (0, 1):
        found = go(streaming(fragments=fragments, delay=delay, **server))
        ys = np.stack([state.y.numpy() for (state,) in found.states])
        places = list(PARTS.values()) if fragments == 2 else [slice(None)]
        for t, (x, y) in enumerate(zip(found.xs[1:], ys, strict=True)):
            part = places[t % len(places)]
            np.testing.assert_allclose(x[part], y[part], rtol=0, atol=1e-12)
        gap = np.abs(ys - path).max()
        assert gap < 1e-12 if delay == 0 else gap > 1e-3


@pytest.mark.parametrize("name", ["diloco", "slowmo"])
@pytest.mark.parametrize("optimizer", CASES)
def test_without_momentum_at_the_server_it_is_fedavg(folder, name, optimizer):
    """With any optimiser that is kept; and what is kept counts from the second round on."""
    own = CASES[optimizer].keys | {"keep_optimizer": True}
    schedule = SCHEDULES["cosine"][0]
    keys = {"name": name, "beta": 0.0, "server_lr": 0.7}
    found = played(folder, keys, PARTIAL, own, schedule).xs
    fedavg = played(folder, {"name": "fedavg", "server_lr": 0.7}, PARTIAL, own, schedule).xs
    np.testing.assert_allclose(found, fedavg, rtol=0, atol=1e-12)
    fresh = played(folder, keys, PARTIAL, own | {"keep_optimizer": False}, schedule).xs
    assert (fresh[1] == found[1]).all()
    assert np.abs(fresh[-1] - found[-1]).max() > 1e-3


def test_a_round_moves_its_fragment_alone(folder):
    """The model and the momentum of the server."""
    servers = played(folder, {"name": "streaming_diloco", "fragments": 2}, WHOLE).servers
    for t, (before, after) in enumerate(pairwise(servers)):
        moved = np.zeros(15, bool)
        moved[list(PARTS.values())[t % 2]] = True
        for one, other in zip(before, after, strict=True):
            assert ((one != other).numpy() == moved).all()


# ------------------------------------------------------------------ what is refused


def refused(folder, keys, **changes) -> str:
    """The line."""
    job = tree(folder, PROBLEM, keys, local={"steps": STEPS, "lr": 0.1}) | changes
    with pytest.raises(JobError) as error:
        parts(folder, job)
    line = str(error.value)
    assert "\n" not in line
    return line


@pytest.mark.parametrize("name", ["diloco", "streaming_diloco"])
@pytest.mark.parametrize("local", [{"optimizer": "adamw"}, {"momentum": 0.9}], ids=str)
def test_a_job_says_whether_workers_keep_their_optimizer(folder, name, local):
    keys = {"name": name} | ({"fragments": 1} if name == "streaming_diloco" else {})
    local = {"steps": STEPS, "lr": 0.1, **local}
    line = refused(folder, keys, local=local)
    assert line.startswith(f"algorithm.name: {name} needs to know whether the clients' ")
    assert line.endswith("set local.keep_optimizer=true, or false")
    parts(folder, tree(folder, PROBLEM, keys, local=local | {"keep_optimizer": False}))
    parts(folder, tree(folder, PROBLEM, {"name": "slowmo"}, local=local))


def test_both_words_will_do():
    for said in (True, False):
        assert DiLoCo().resolve(Facts(optimizer="adamw", keep_optimizer=said)) == DiLoCo()
    assert DiLoCo().resolve(Facts()) == DiLoCo()  # plain SGD has nothing to keep


@pytest.mark.parametrize(
    "changes",
    [
        {"cohort": {"kind": "uniform", "size": CLIENTS - 1}},
        {"cohort": {"kind": "replay", "rounds": [*WHOLE[1:], [0]]}},
        {"cohort": {"kind": "bernoulli", "p": 0.9}},
        {"cohort": {"kind": "importance", "size": CLIENTS}},
        {"devices": {"available": 0.9}},
        {"devices": {"fails": 0.1}},
        {"devices": {"path": "trace.csv"}},
        {"devices": {"examples_per_s": 1.0, "deadline_s": 1.0, "late": "shorten"}},
    ],
    ids=str,
)
def test_a_worker_of_streaming_diloco_is_never_away(folder, changes):
    line = refused(folder, streaming(), **changes)
    assert "so that all take part in every round; set cohort={kind: cyclic, size: 6}" in line


@pytest.mark.parametrize(
    "changes",
    [
        {"cohort": {"kind": "uniform", "size": CLIENTS}},
        {"cohort": {"kind": "bernoulli", "p": 1.0}},
        {"devices": {"examples_per_s": 10.0, "jitter": 0.1}},
    ],
    ids=str,
)
def test_cohorts_of_all_clients_are_taken(folder, changes):
    parts(folder, tree(folder, PROBLEM, streaming(), local={"steps": 1, "lr": 0.1}) | changes)


WRONG = [
    ({"delay": STEPS}, "found algorithm.delay 3, expected less than the 3 local.steps"),
    ({"fragments": 3}, "found 3 algorithm.fragments, expected at most 2, which the model has"),
    ({"fragments": [["1.weight"]]}, "found 1.bias in 0 of them"),
    ({"fragments": [["1.weight", "1.bias"], ["1.bias"]]}, "found 1.bias in 2 of them"),
    ({"fragments": [["1.weight"], ["bias"]]}, "fragments: the model has no parameter 'bias'"),
    ({"fragments": []}, "fragments: found an empty list, expected names of parameters"),
    ({"fragments": [["1.weight", "1.bias"], []]}, "fragments: found an empty list"),
    ({"fragments": 0}, "algorithm.fragments: "),
    ({"alpha": 1.5}, "algorithm.alpha: found 1.5"),
]


@pytest.mark.parametrize(("keys", "said"), WRONG)
def test_wrong_keys_of_streaming_diloco(folder, keys, said):
    assert said in refused(folder, streaming(**keys))


def test_streaming_diloco_counts_steps(folder):
    line = refused(folder, streaming(), local={"epochs": 1, "lr": 0.1})
    assert line.endswith("sends after as many steps of every client; set local.steps")
