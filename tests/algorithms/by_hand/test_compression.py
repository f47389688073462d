"""Compressed and private uploads by hand, by the hooks themselves."""

import pytest
import torch

from hpcfl.algorithms.base import Message, Nothing, Server, Upload
from hpcfl.algorithms.dpfedavg import DPFedAvg
from hpcfl.algorithms.ef21 import EF21
from hpcfl.algorithms.facts import Client, Cohort, Facts
from hpcfl.algorithms.qsgd import QSGD
from hpcfl.algorithms.randk import RandK
from hpcfl.algorithms.topk import TopK
from tests.algorithms.by_hand.quadratic import local, near, replay


def vector(*values):
    return torch.tensor(values, dtype=torch.float64)


def sent(algorithm, delta, state=None, **draws):
    """The fields of the upload of a client that moved by -delta; its state after."""
    client = Client(*[vector()] * 5, draws={name: vector(*v) for name, v in draws.items()})
    x, state = vector(*[7.0] * len(delta)), state or Nothing()
    (upload,), after = algorithm.finish(x - vector(*delta), None, Message(x), state, client)
    return upload.tolist(), after


@pytest.mark.parametrize(
    ("ratio", "upload"),
    [
        (0.2, [0, -4, 0, 0, 0]),  # of the two fours the first
        (0.4, [0, -4, 0, 4, 0]),
        (0.41, [3, -4, 0, 4, 0]),  # ceil(2.05) = 3
        (1.0, [3, -4, 0, 4, 1]),
        (1e-9, [0, -4, 0, 0, 0]),
    ],
)
def test_topk(ratio, upload):
    assert sent(TopK(ratio=ratio), [3, -4, 0, 4, 1])[0] == upload


def test_topk_counts_entries_in_decimals():
    """0.07 x 100 is 7.000000000000001 in floating point."""
    upload, _ = sent(TopK(ratio=0.07), range(1, 101))
    assert upload == [0] * 93 + list(range(94, 101))


def test_topk_bytes():
    """Two numbers and two indices of 4 bytes."""
    assert TopK(ratio=0.4).up_bytes(Upload(torch.zeros(5))) == 2 * (4 + 4)
    assert RandK(ratio=0.4).up_bytes(Upload(torch.zeros(5))) == 2 * 4


def test_randk():
    """k = 2 of 4 where the mask is largest, doubled."""
    upload, _ = sent(RandK(ratio=0.5), [3, -4, 5, 1], mask=[0.1, 0.9, 0.5, 0.4])
    assert upload == [0, -8, 10, 0]


def test_qsgd():
    """norm 5: a = 2.4, 3.2, 0; 0.3 rounds the first up to 3 and the second down to 3."""
    upload, _ = sent(QSGD(levels=4), [3, -4, 0], rounding=[0.3, 0.3, 0.0])
    assert upload == near([3.75, -3.75, 0])
    upload, _ = sent(QSGD(levels=4), [3, -4, 0], rounding=[0.5, 0.1, 0.0])
    assert upload == near([2.5, -5, 0])
    assert sent(QSGD(levels=4), [0, 0], rounding=[0.0, 0.0])[0] == [0, 0]


@pytest.mark.parametrize(("levels", "bits"), [(1, 2), (3, 3), (4, 4), (7, 4), (8, 5)])
def test_qsgd_bytes(levels, bits):
    """A norm of 4 bytes; 10 signs and levels of 0 to ``levels``."""
    assert QSGD(levels=levels).up_bytes(Upload(torch.zeros(10))) == -(-(32 + 10 * bits) // 8)


def test_ef21():
    """1 of 2 entries.  (3, -4): -4; then (3, -5), of which -4 is there: 3 of (3, -1)."""
    method = EF21(ratio=0.5)
    state = method.init_client(vector(0, 0), lambda: None)
    first, state = sent(method, [3, -4], state)
    second, state = sent(method, [3, -5], state)
    assert (first, second, state.g.tolist()) == ([0, -4], [3, 0], [3, -4])
    server = method.init_server(vector(1, 1))
    for upload in (first, second):  # one of two clients: g = (0, -2), then (1.5, -2)
        mean = type(method.finish(*[vector(0, 0)] * 2, Message(vector(0, 0)), state, None)[0])
        server = method.update(server, mean(vector(*upload)), Cohort(0, 1, 2, 0.1, ()))
    assert server.x.tolist() == [-0.5, 5]


def test_dpfedavg(run):
    """At most 0.5 long: -0.19 and 0.5 of 0.96: x = 1 - 0.31 / 2."""
    left = run({"name": "dpfedavg", "clip": 0.5, "noise": 0.0}, rounds=1)
    assert left.x == near([1.0, 0.845])


def test_dpfedavg_divides_by_the_size_that_was_configured(run):
    """Cohorts of 2, 0 and 1 clients, of 1 in the mean."""
    left = run(
        {"name": "dpfedavg", "clip": 0.5, "noise": 0.0},
        cohort=replay([0, 1], [], [0]),
        rounds=3,
        local=local(steps=1),
    )
    # 0: -0.1 and 1: 0.6, at most 0.5: 1 - 0.4 = 0.6; 0 moves by 0.14.
    assert left.x == near([1.0, 0.6, 0.6, 0.74])


def test_dpfedavg_noise():
    """eta_g (0.31 + 2 x 0.5 x 0.1) / 2 = 0.1025, and of no clients 0.5 x 0.1 / 2."""
    method = DPFedAvg(clip=0.5, noise=2.0, server_lr=0.5).with_facts(Facts(1.0, 2))
    for size, mean, x in ((2, 0.155, 0.8975), (0, 0.0, 0.975)):
        cohort = Cohort(0, size, 2, 0.1, (), {"noise": vector(0.1)})
        after = method.update(Server(vector(1)), Upload(vector(mean)), cohort)
        assert after.x.item() == near(x)


def test_dpfedavg_of_no_movement():
    assert sent(DPFedAvg(clip=0.5, noise=0.0), [0, 0])[0] == [0, 0]


def test_dpfedavg_refuses_weights_by_examples():
    with pytest.raises(ValueError, match="set weights: uniform"):
        DPFedAvg(clip=0.5, noise=1.0).resolve(Facts())
