"""What must be equal, under which conditions; and what must differ once one of them is broken."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pytest

from tests.algorithms.facts import COHORT
from tests.algorithms.methods import ENTRIES
from tests.algorithms.play import ROUNDS, Array
from tests.algorithms.reference import Setting
from tests.algorithms.settings import (
    CLIENTS,
    HARDEST,
    LR,
    Conditions,
    Method,
    Value,
    a,
    far,
    job,
    setting,
    within,
    without,
)
from tests.algorithms.trace import trace

Side = Method | Callable[[Setting, float], Array]


@pytest.fixture
def path(folder):
    """[rounds + 1, P] of a side, with the server's learning rate."""

    def play(side: Side, at: Conditions, **changes: Any) -> Array:
        if isinstance(side, Method):
            return trace(job(folder, side, at, **changes)).xs
        x0 = trace(job(folder, FEDAVG, at)).xs[0]
        return side(setting(at, x0), at["server_lr"])

    return play


# ------------------------------------------------------------------ SGD, by numpy


def everyone(s: Setting) -> Setting:
    return replace(s, cohorts=[list(range(CLIENTS))] * len(s.cohorts))


def sgd(s: Setting, server_lr: float) -> Array:
    """Its gradient is sum p_i g_i over ALL clients, of one batch each."""
    return momentum_sgd(0.0)(everyone(s), server_lr)


def momentum_sgd(beta: float, *, whole: bool = False) -> Callable[[Setting, float], Array]:
    """SGD on the cohort with momentum.

    ``whole``: on the plain mean over the cohort of the clients' full-batch gradients.
    """

    def side(s: Setting, server_lr: float) -> Array:
        v = np.zeros_like(s.x0)

        def after(t, cohort, x):
            nonlocal v
            if whole:
                g = np.mean([s.full(i, x) for i in cohort], axis=0)
            else:
                g = s.mean({i: next(s.batches(i, t))(x) for i in cohort})
            v = beta * v + g + s.wd * x
            return x - server_lr * s.eta(t) * v

        return s.play(after)

    side.__name__ = f"momentum_sgd({beta})" if beta else "cohort_sgd"
    return side


def mvr(beta: float, share: float) -> Callable[[Setting, float], Array]:
    """SGD along (1 - share) c + share m, where m <- c + beta (m - c'), m = c in the first round.

    c and c' are plain means over the cohort of full-batch gradients, at x and at the model before.
    """

    def side(s: Setting, server_lr: float) -> Array:
        m = past = None

        def after(t, cohort, x):
            nonlocal m, past
            c, before = (
                np.mean([s.full(i, y) for i in cohort], axis=0) if y is not None else None
                for y in (x, past)
            )
            m, past = c if before is None else c + beta * (m - before), x
            return x - server_lr * s.eta(t) * ((1 - share) * c + share * m + s.wd * x)

        return s.play(after)

    side.__name__ = f"mvr({beta}, {share})"
    return side


def adam(*, eps: float, old: bool = False) -> Callable[[Setting, float], Array]:
    """Adam of Kingma and Ba on the plain mean over the cohort of the clients' full gradients.

    ``old``: it divides by the second moment of before the step, and corrects neither moment.
    """

    def side(s: Setting, server_lr: float) -> Array:
        m, v = np.zeros_like(s.x0), np.zeros_like(s.x0)

        def after(t, cohort, x):
            nonlocal m, v
            g, before = np.mean([s.full(i, x) for i in cohort], axis=0), v
            m, v = 0.9 * m + 0.1 * g, 0.99 * v + 0.01 * g**2
            if old:
                d = m / (np.sqrt(before) + eps)
            else:
                d = m / (1 - 0.9 ** (t + 1)) / (np.sqrt(v / (1 - 0.99 ** (t + 1))) + eps)
            return x - server_lr * s.eta(t) * (d + s.wd * x)

        return s.play(after)

    side.__name__ = "adam_of_the_old_v" if old else "adam"
    return side


def saga(s: Setting, server_lr: float) -> Array:
    """SAGA over clients (Defazio et al., 2014): a table of the newest gradient of each client."""
    table = np.zeros((CLIENTS, len(s.x0)))

    def after(t, cohort, x):
        new = {i: next(s.batches(i, t))(x) + s.wd * x for i in cohort}
        step = np.mean([new[i] - table[i] for i in cohort], axis=0) + table.mean(axis=0)
        for i, gradient in new.items():
            table[i] = gradient
        return x - server_lr * s.eta(t) * step

    return s.play(after)


def newest(s: Setting, server_lr: float) -> Array:
    """Along the mean over all clients of each one's newest x - y."""
    table = np.zeros((CLIENTS, len(s.x0)))

    def after(t, cohort, x):
        for i in cohort:
            table[i] = x - s.descend(i, t, x)
        return x - server_lr * table.mean(axis=0)

    return s.play(after)


# ------------------------------------------------------------------ equal


class Line(NamedTuple):
    """Two sides that agree in every setting that the conditions allow."""

    left: Method
    right: Side
    conditions: Conditions
    tolerance: float
    rounds: int

    def __str__(self) -> str:
        right = self.right if isinstance(self.right, Method) else self.right.__name__
        told = ", ".join(f"{axis} {value}" for axis, value in self.conditions.items())
        return f"{self.left} = {right}" + (f" for {told}" if told else "")


def equal(
    left: Method,
    right: Side,
    *,
    tolerance: float = 1e-12,
    rounds: int = ROUNDS,
    **conditions: Value,
) -> Line:
    return Line(left, right, conditions, tolerance, rounds)


# Bit for bit.
identical = partial(equal, tolerance=0.0)

B = 0.6
FEDAVG = a("fedavg")
NESTEROV = (False, True)

LISTED = [
    (Method({**entry.keys, **entry.identity.changes}, LR), entry)
    for entry in ENTRIES.values()
    if entry.identity
]

EQUAL = [
    # 1: those of the list of methods, and more of the kind
    *(
        equal(changed, Method(entry.identity.other, LR), tolerance=entry.identity.tolerance)
        for changed, entry in LISTED
    ),
    *(identical(a("ghb", tau=ROUNDS, nesterov=n), FEDAVG) for n in NESTEROV),
    equal(a("fednova"), FEDAVG, steps="equal"),
    equal(a("fednova"), FEDAVG, cohort="alone"),
    identical(a("fedinit", beta=B), FEDAVG, rounds=1),
    equal(a("fedswa", rho=0.1), FEDAVG, steps="one"),
    equal(a("fedexp"), FEDAVG, cohort="alone", server_lr=1.0),
    equal(a("fedexp", eps=1e30), FEDAVG, server_lr=1.0),
    equal(a("fedvarp"), FEDAVG, cohort="full", weights="uniform"),
    equal(a("ef21", ratio=1.0), FEDAVG, cohort="full", weights="uniform"),
    equal(a("dpfedavg", clip=1e9, noise=0.0), FEDAVG, cohort="cyclic", weights="uniform"),
    *(identical(a("ditto", lam=lam), FEDAVG) for lam in (0.0, B)),
    identical(a("mimelite", beta=0.0), FEDAVG),
    identical(a("mimelite", beta=0.0, form="ema"), FEDAVG),
    *(identical(a("fedhbm", nesterov=n), FEDAVG, rounds=2, cohort="cyclic") for n in NESTEROV),
    # 2
    equal(a("fedacg", lam=0.0, beta=B), a("fedprox", mu=B)),
    equal(
        a("fedmim", alpha=[B], beta=[0.0]),
        a("fedcm", alpha=1 - B, norm="client"),
        server_lr=1.0,
        wd=0.0,
    ),
    # An eps far above sqrt(v) makes Adam momentum.
    *(
        equal(
            a(f"{name}adam", eps=1e9, lr=LR * 1e9),
            a(f"{name}mom", form="ema"),
            tolerance=1e-6,
            wd=0.0,
        )
        for name in ("mime", "mimelite")
    ),
    # Where all take part, beta 1 makes the momentum the gradient at this round's model.
    equal(a("mimemvr", beta=1.0), a("mime"), cohort="full"),
    # 3
    equal(a("ghb", tau=1, beta=B), a("fedmim", alpha=[B], beta=[0.0], lr=LR / (1 - B))),
    equal(
        a("ghb", tau=1, beta=B),
        a("fedcm", alpha=1 - B, norm="client", lr=LR / (1 - B)),
        server_lr=1.0,
        wd=0.0,
    ),
    equal(
        a("fedmim", alpha=[B], beta=[B], lr=LR / (1 - B)), a("ghb", tau=1, beta=B, nesterov=True)
    ),
    identical(a("diloco", beta=B), a("fedavgm", beta=B, nesterov=True)),
    equal(a("slowmo", beta=B), a("fedavgm", beta=B), lr_decay=1.0),
    identical(a("fedgamma", rho=0.0), a("scaffold")),
    identical(a("fedlesam_s", rho=0.0), a("scaffold")),
    identical(a("fedsmoo", rho=0.0, alpha=B), a("feddyn", alpha=B)),
    identical(a("fedlesam_d", rho=0.0, alpha=B), a("feddyn", alpha=B)),
    equal(a("fedspeed", rho=0.0, mu=B), a("feddyn", alpha=B)),
    equal(
        a("fedspeed", rho=0.0, mu=B, server="cohort"),
        a("feddyn", alpha=B),
        cohort="full",
        weights="uniform",
        server_lr=1.0,
    ),
    *(
        equal(a("fedspeed", alpha=0.0, mu=B, server=s), a("fedspeed", rho=0.0, mu=B, server=s))
        for s in ("all", "cohort")
    ),
    equal(a("fedmoswa", rho=1.0, gamma=1.0), a("scaffold"), cohort="full"),
    # 4
    equal(a("fedlesam", source="previous"), a("fedlesam"), cohort="full"),
    equal(
        a("fedinit", beta=B, delta="start"),
        a("fedinit", beta=B),
        cohort="full",
        server_lr=1.0,
    ),
    *(
        equal(
            a("fedadc", beta=B, beta_local=B, nesterov=n),
            a("ghb", tau=1, beta=B, nesterov=n),
            server_lr=1.0,
            lr_decay=1.0,
        )
        for n in NESTEROV
    ),
    # 5
    identical(a("mofedsam", rho=0.0, alpha=B), a("fedcm", alpha=B)),
    identical(a("mofedsam", alpha=1.0, rho=0.2), a("fedsam", rho=0.2)),
    # 6
    *(
        equal(a("localghb", nesterov=n), a("ghb", tau=1, nesterov=n), cohort="full")
        for n in NESTEROV
    ),
    *(
        equal(a("localghb", nesterov=n), a("ghb", tau=2, nesterov=n), cohort="cyclic")
        for n in NESTEROV
    ),
    # 7, each pair under no more conditions than it needs
    equal(FEDAVG, sgd, steps="one", cohort="full"),
    equal(a("diloco", beta=0.0), sgd, steps="one", cohort="full"),
    equal(a("scaffold", option=1), sgd, steps="one", cohort="full", weights="uniform"),
    equal(a("scaffold", option=2), sgd, steps="one", cohort="full", weights="uniform"),
    equal(a("mime"), momentum_sgd(0.0, whole=True), steps="one"),
    equal(a("scaffold", option=2), saga, steps="one", weights="uniform"),
    equal(a("fedvarp"), saga, steps="one", lr_decay=1.0),
    equal(a("fednova"), FEDAVG, steps="one"),
    equal(a("ef21", ratio=1.0), newest),
    equal(a("mimemvr", beta=B), mvr(B, B), steps="one", batches="full", weights="uniform"),
    equal(
        a("mimemvr", beta=B),
        a("mime"),
        steps="one",
        batches="full",
        weights="uniform",
        cohort="full",
    ),
    equal(
        a("server_only", optimizer="mvr", beta=B),
        mvr(B, 1.0),
        batches="full",
        weights="uniform",
    ),
    equal(
        a("server_only", optimizer="mvr", beta=B),
        a("server_only"),
        batches="full",
        cohort="full",
    ),
    equal(a("mimeadam", form="optimizer", eps=0.1), adam(eps=0.1), steps="one"),
    equal(a("mimeadam", eps=0.5), adam(eps=0.5, old=True), steps="one"),
    equal(
        a("mimeadam", eps=0.5),
        a("mimeliteadam", eps=0.5),
        steps="one",
        batches="full",
        weights="uniform",
    ),
    equal(a("mimemom", beta=B), momentum_sgd(B, whole=True), steps="one", wd=0.0),
    equal(
        a("mimemom", beta=B),
        a("mimelitemom", beta=B),
        steps="one",
        batches="full",
        weights="uniform",
    ),
    equal(
        a("mimelitemom", beta=B),
        a("fedavgm", beta=B),
        steps="one",
        batches="full",
        weights="uniform",
        lr_decay=1.0,
        wd=0.0,
    ),
    equal(a("fedavgm", beta=B), a("ghb", tau=1, beta=B), steps="one", server_lr=1.0),
    equal(a("fedavgm", beta=B), momentum_sgd(B), steps="one", lr_decay=1.0),
]


@pytest.mark.parametrize("line", EQUAL, ids=str)
def test_equal(path, line):
    for at in within(line.conditions):
        left, right = (path(side, at)[: line.rounds + 1] for side in line[:2])
        np.testing.assert_allclose(left, right, rtol=0, atol=line.tolerance, err_msg=str(at))
        assert far(left[-1], left[0]), f"nothing moves at {at}"


@pytest.mark.parametrize("line", [line for line in EQUAL if not line.tolerance], ids=str)
def test_equal_bit_for_bit_in_float32_too(path, line):
    at = {**HARDEST, **line.conditions}
    left, right = (path(side, at, precision="float32") for side in line[:2])
    assert left.dtype == np.float32
    assert (left[: line.rounds + 1] == right[: line.rounds + 1]).all()


BROKEN = [(line, axis) for line in EQUAL for axis in line.conditions]


@pytest.mark.parametrize(
    ("line", "broken"), BROKEN, ids=[f"{line}, but not {axis}" for line, axis in BROKEN]
)
def test_different_where_a_condition_is_broken(path, line, broken):
    at = without(line.conditions, broken)
    left, right = (path(side, at)[: line.rounds + 1] for side in line[:2])
    assert far(left, right)


# ------------------------------------------------------------------ different

DIFFERENT = [
    # with the keys of the list of methods, unchanged
    *((Method(entry.keys, LR), Method(entry.identity.other, LR)) for _, entry in LISTED),
    # 1, with what is nought there
    *(
        (method, FEDAVG)
        for method in (
            a("fedprox", mu=0.1),
            a("fedsam", rho=0.1),
            a("fedavgm", beta=B),
            a("diloco", beta=B),
            a("slowmo", beta=B),
            a("fedcm", alpha=B),
            a("fedmim", alpha=[0.0, 0.0], beta=[0.0, 0.2]),
            a("fedmim", alpha=[0.0, 0.2], beta=[0.0, 0.0]),
            a("ghb", beta=B, tau=1),
            a("localghb", beta=B),
            a("fedhbm", beta=B),
            a("ghb", tau=3),
            a("adabest", mu=0.1, beta=0.0),
            a("adabest", mu=0.0, beta=0.1),
            a("mimelite", beta=0.1),
            a("fednova", mu=0.1),
            a("fedacg", lam=0.1, beta=0.0),
            a("fedacg", lam=0.0, beta=0.1),
            a("fedexp", eps=0.05),
            a("fedlesam", rho=0.1),
            a("fedinit", beta=0.1),
            a("fedswa", rho=0.9),
            a("ef21", ratio=0.9),
            a("dpfedavg", clip=0.3, noise=0.0),
            a("dpfedavg", clip=1e9, noise=1e-10),
            a("fedper", personal=["1.bias"]),
            a("fedrep", personal=[], body=0.5),
        )
    ),
    # 2, with the norm of the other side, or another weight
    (a("fedmim", alpha=[B], beta=[0.0]), a("fedcm", alpha=1 - B)),
    (a("fedmim", alpha=[B], beta=[0.0]), a("fedcm", alpha=B, norm="client")),
    # 3, with the same rate on both sides, or where only one looks ahead
    (a("ghb", tau=1, beta=B), a("fedmim", alpha=[B], beta=[0.0])),
    (a("ghb", tau=1, beta=B), a("fedcm", alpha=1 - B, lr=LR / (1 - B))),
    (a("ghb", tau=1, beta=B), a("fedmim", alpha=[B], beta=[B], lr=LR / (1 - B))),
    # 4, with a momentum of the other kind, and what the FedHBM paper's Table 1 says
    (a("fedadc", beta=B, beta_local=B, nesterov=True), a("ghb", tau=1, beta=B)),
    (a("fedadc", beta=B, beta_local=1.0), a("ghb", tau=1, beta=B)),
    (a("diloco", beta=B), a("fedavgm", beta=B)),
    # 5
    (a("mofedsam", rho=0.1, alpha=B), a("fedcm", alpha=B)),
    (a("mofedsam", rho=0.2, alpha=B), a("fedsam", rho=0.2)),
    # 6, with another tau
    (a("localghb"), a("ghb", tau=3)),
    # what takes its gradient uphill
    (a("fedgamma", rho=0.1), a("scaffold")),
    (a("fedlesam_s", rho=0.1), a("scaffold")),
    (a("fedsmoo", rho=0.1, alpha=B), a("feddyn", alpha=B)),
    (a("fedsmoo", rho=0.1, alpha=B), a("fedsmoo", rho=0.1, alpha=B, simplified=True)),
    (a("fedlesam_d", rho=0.1, alpha=B), a("feddyn", alpha=B)),
    (a("fedspeed", rho=0.1, mu=B), a("feddyn", alpha=B)),
    (a("fedspeed", mu=B), a("fedspeed", mu=B, alpha=0.5)),
    (a("fedspeed", mu=B), a("fedspeed", mu=B, normalised=False)),
    # FedMoSWA with falling rates, or a slower momentum
    (a("fedmoswa", rho=0.1, gamma=1.0), a("scaffold")),
    (a("fedmoswa", rho=1.0, gamma=0.2), a("scaffold")),
    # an integral term stays at the server, however small alpha is
    (a("feddyn", alpha=1e-3), FEDAVG),
    (a("feddyn", alpha=1e-6), FEDAVG),
]


@pytest.mark.parametrize(
    ("left", "right"), DIFFERENT, ids=[f"{left} != {right}" for left, right in DIFFERENT]
)
def test_different(path, left, right):
    """Where the conditions of 2 to 4 are met, so it is the methods that differ."""
    for cohort in ("partial", "full"):
        at = {**HARDEST, "wd": 0.0, "lr_decay": 1.0, "server_lr": 1.0, "cohort": cohort}
        assert far(path(left, at), path(right, at)), cohort


@pytest.mark.parametrize("nesterov", [False, True])
def test_fedhbm_differs_from_fedavg_once_clients_come_back(path, nesterov):
    """After 1/C = 2 rounds of cyclic participation; with ``first: shared`` after one."""
    at = {**HARDEST, "cohort": "cyclic"}
    fedavg, hbm = path(FEDAVG, at), a("fedhbm", nesterov=nesterov)
    assert far(path(hbm, at)[3], fedavg[3])
    shared = path(a("fedhbm", first="shared", nesterov=nesterov), at)
    assert (shared[1] == fedavg[1]).all()
    assert far(shared[2], fedavg[2])


# ------------------------------------------------------------------ what is no pair of paths of x


def fedacg_and_fedavgm(folder, at):
    """The models that FedACG has and sends, and those of FedAvgM with Nesterov's momentum."""
    found = trace(job(folder, a("fedacg", lam=B, beta=0.0), at))
    sent = np.stack(
        [found.algorithm.broadcast(server, COHORT).x.numpy() for server in found.servers]
    )
    return found.xs, sent, trace(job(folder, a("fedavgm", beta=B, nesterov=True), at)).xs


def test_fedacg_sends_the_models_of_fedavgm_with_nesterov_s_momentum(folder):
    """Round for round, without a proximal term, where the server's rate is 1."""
    for at in within({"server_lr": 1.0}):
        own, sent, other = fedacg_and_fedavgm(folder, at)
        np.testing.assert_allclose(sent, other, rtol=0, atol=1e-12, err_msg=str(at))
        assert far(sent, own)
    _, sent, other = fedacg_and_fedavgm(folder, HARDEST)
    assert far(sent, other)


@pytest.mark.parametrize("steps", ["equal", "many"])
def test_fednova_with_momentum_is_fedavg_with_it_where_all_take_as_many_steps(path, steps):
    at = {**HARDEST, "steps": steps}
    nova, avg, plain = (
        path(a(name), at, local={"momentum": momentum})
        for name, momentum in (("fednova", B), ("fedavg", B), ("fedavg", 0.0))
    )
    assert np.abs(nova - avg).max() <= 1e-12 if steps == "equal" else far(nova, avg)
    assert far(avg, plain)
