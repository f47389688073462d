"""The exact mean on one process: ranks are played by threads that meet in each collective."""

import math
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from threading import Barrier
from typing import NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from hpcfl.comm import exact, reduction
from hpcfl.comm.exact import ExactReduction
from hpcfl.comm.exact_sum import exact_sums
from hpcfl.comm.fast import FastReduction
from hpcfl.comm.solo import Solo
from hpcfl.errors import DivergedError

torch.set_num_threads(1)
CPU = torch.device("cpu")


class Upload(NamedTuple):
    delta: Tensor  # [P]
    level: Tensor  # 0-d


class DiskBudget:
    """Ranks as threads of one process: what they bring is kept in one list."""

    def __init__(self, size):
        self.size, self.brought, self.barrier = size, [None] * size, Barrier(size, timeout=600)

    def run(self, work):
        """``work(comm)`` of every rank; what it raised stands for what it returned."""

        def guarded(rank):
            try:
                return work(Thread(self, rank))
            except DivergedError as error:
                return error

        with ThreadPoolExecutor(self.size) as pool:
            return list(pool.map(guarded, range(self.size)))


class Thread(Solo):
    def __init__(self, room, rank):
        self.room, self.rank, self.size = room, rank, room.size

    def allgather(self, item):
        self.room.brought[self.rank] = item
        self.room.barrier.wait()
        items = list(self.room.brought)
        self.room.barrier.wait()
        return items

    def allreduce_sum(self, tensor):
        tensor.copy_(torch.stack(self.allgather(tensor.clone())).sum(0))

    def allreduce_max(self, values):
        return np.max(self.allgather(values.copy()), axis=0)


def spread(
    uploads,
    weights,
    owners,
    size,
    *,
    kind=ExactReduction,
    unweighted=frozenset(),
    bytes_of=None,
    local_values=None,
    **options,
):
    """The outcome on every rank when rank ``owners[i]`` holds client i."""
    dtype = uploads[0].delta.dtype
    template = Upload(*(field.to("meta") for field in uploads[0]))

    def work(comm):
        mine = [i for i, owner in enumerate(owners) if owner == comm.rank]
        return kind(comm, template, unweighted, dtype, CPU, bytes_of).mean(
            [uploads[i] for i in mine],
            mine,
            [weights[i] for i in mine],
            sum(weights),
            len(uploads),
            np.zeros(0) if local_values is None else local_values[comm.rank],
            round=4,
        )

    return DiskBudget(size).run(work)


def truth(values, weights):
    """The mean as a fraction, coordinate by coordinate."""
    terms = [
        [Fraction(w) * Fraction(v) for v in row] for row, w in zip(values, weights, strict=True)
    ]
    total = sum(map(Fraction, weights))
    peak = max(abs(term) for row in terms for term in row)
    return [sum(column) / total for column in zip(*terms, strict=True)], peak, total


def make(rows, dtype):
    return [
        Upload(torch.tensor(r[:-1], dtype=dtype), torch.tensor(r[-1], dtype=dtype)) for r in rows
    ]


@st.composite
def rounds(draw):
    """Uploads of a cohort, their weights, and two ways of spreading them over ranks."""
    width = draw(st.sampled_from([32, 64]))
    value = st.floats(allow_nan=False, allow_infinity=False, width=width)
    if width == 64:  # w u must be finite
        value = value.filter(lambda v: abs(v) < 1e300)
    clients, size = draw(st.integers(1, 7)), draw(st.integers(2, 4))
    rows = draw(
        st.lists(st.lists(value, min_size=4, max_size=4), min_size=clients, max_size=clients)
    )
    weights = [
        float(w) for w in draw(st.lists(st.integers(1, 9999), min_size=clients, max_size=clients))
    ]
    owners = draw(st.lists(st.integers(0, size - 1), min_size=clients, max_size=clients))
    order = draw(st.permutations(range(clients)))
    return make(rows, getattr(torch, f"float{width}")), weights, owners, size, order


def bits(mean):
    return [field.numpy().tobytes() for field in mean]


@pytest.mark.slow
@settings(max_examples=150)
@given(rounds())
def test_any_grouping_and_order_gives_the_same_bits(case):
    uploads, weights, owners, size, order = case
    (alone, *_), *_ = spread(uploads, weights, [0] * len(uploads), 1)
    (shuffled, *_), *_ = spread(
        [uploads[i] for i in order], [weights[i] for i in order], owners, 1 + max(owners)
    )
    outcomes = spread(uploads, weights, owners, size)
    assert all(bits(mean) == bits(alone) for mean, *_ in outcomes)
    assert bits(shuffled) == bits(alone)


@settings(max_examples=150)
@given(rounds())
def test_the_mean_is_within_the_stated_bound(case):
    uploads, weights, *_ = case
    mean = spread(uploads, weights, [0] * len(uploads), 1)[0][0]
    for name in Upload._fields:
        values = [getattr(u, name).reshape(-1).tolist() for u in uploads]
        expected, peak, total = truth(values, weights)
        dtype = mean.delta.dtype
        eps, tiny = Fraction(torch.finfo(dtype).eps), Fraction(torch.finfo(dtype).smallest_normal)
        for found, true in zip(getattr(mean, name).reshape(-1).tolist(), expected, strict=True):
            fixed = len(uploads) / total * peak * (Fraction(1, 2**51) + Fraction(1, 2**53))
            assert abs(Fraction(found) - true) <= fixed + eps * (abs(true) + fixed) + tiny * eps


def test_by_hand():
    uploads = make([[1.0, -2.0, 0.0, 4.0], [3.0, 6.0, 0.0, 8.0]], torch.float32)
    mean, *_ = spread(uploads, [1.0, 3.0], [0, 0], 1, unweighted=frozenset({"level"}))[0]
    assert mean.delta.tolist() == [2.5, 4.0, 0.0]  # (1 + 9)/4, (-2 + 18)/4
    assert mean.level.item() == 6.0  # plainly: (4 + 8)/2
    assert mean.level.shape == ()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_denormals_and_zeros(dtype):
    tiny = torch.finfo(dtype).smallest_normal * torch.finfo(dtype).eps  # the smallest above zero
    uploads = make([[tiny, 3 * tiny, 0.0, 0.0], [3 * tiny, -3 * tiny, 0.0, 0.0]], dtype)
    mean, *_ = spread(uploads, [1.0, 1.0], [0, 1], 2)[0]
    assert mean.delta.tolist() == [2 * tiny, 0.0, 0.0]
    assert mean.level.item() == 0.0


def test_float_sums_would_not_pass_this_test():
    """The guard: values whose float32 sum depends on the grouping."""
    rows = [[1e8, 1.0, 0.1, 1.0], [1.0, 1e-8, 0.2, 1.0], [-1e8, 1.0, 0.3, 1.0]]
    uploads, weights = make(rows, torch.float32), [1.0, 2.0, 1.0]
    one = [
        bits(spread(uploads, weights, owners, 3)[0][0])
        for owners in ([0, 0, 0], [0, 1, 2], [0, 1, 0])
    ]
    assert one[0] == one[1] == one[2]
    fast = [
        bits(spread(uploads, weights, owners, 3, kind=FastReduction)[0][0])
        for owners in ([0, 0, 0], [0, 1, 2], [0, 1, 0])
    ]
    assert len({tuple(b) for b in fast}) > 1


@pytest.mark.parametrize("kind", [ExactReduction, FastReduction])
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_non_finite_upload_names_the_lowest_client_and_its_rank_everywhere(kind, bad):
    uploads = make([[1.0, 2.0, 3.0, 4.0]] * 5, torch.float32)
    uploads[4].delta[0] = bad
    uploads[3].level.fill_(bad)
    uploads[2].level.fill_(bad)
    outcomes = spread(uploads, [1.0] * 5, [0, 0, 1, 1, 0], 3, kind=kind)
    expected = "client 2 on rank 1, round 4: its upload 'level' is not finite"
    assert [str(o).startswith(expected) for o in outcomes] == [True] * 3


@pytest.mark.parametrize("kind", [ExactReduction, FastReduction])
def test_local_values_share_the_maximum(kind):
    uploads = make([[1.0, 2.0, 3.0, 4.0]] * 2, torch.float32)
    values = [np.array([0.0, 5.0]), np.array([1.0, 2.0])]
    outcomes = spread(uploads, [1.0, 1.0], [1, 1], 2, kind=kind, local_values=values)
    assert [agreed.tolist() for *_, agreed in outcomes] == [[1.0, 5.0]] * 2


@pytest.mark.parametrize("kind", [ExactReduction, FastReduction])
def test_what_is_handed_over_is_counted_on_every_rank(kind):
    """Three clients send 3 floats each; the scalar is ours.  Rank 0 has no client."""
    uploads = make([[1.0, 2.0, 3.0, 4.0]] * 3, torch.float32)
    outcomes = spread(
        uploads, [1.0] * 3, [1, 2, 1], 3, kind=kind, bytes_of=lambda upload: upload.delta.nbytes
    )
    assert [sent for _, sent, _ in outcomes] == [3 * 3 * 4] * 3
    assert [sent for _, sent, _ in spread(uploads, [1.0] * 3, [1, 2, 1], 3)] == [3 * 4 * 4] * 3


@pytest.mark.parametrize("kind", [ExactReduction, FastReduction])
def test_a_field_of_length_0_passes(kind):
    """Of a method whose clients share nothing; rank 0 has no client."""
    uploads = [Upload(torch.zeros(0), torch.tensor(level)) for level in (1.0, 2.0, 6.0)]
    for mean, sent, _ in spread(uploads, [1.0] * 3, [1, 2, 1], 3, kind=kind):
        assert (mean.delta.shape, sent) == ((0,), 3 * 4)
        assert float(mean.level) == pytest.approx(3.0)


@pytest.mark.parametrize("kind", [ExactReduction, FastReduction])
def test_means_of_earlier_rounds_are_not_overwritten(kind):
    template = Upload(torch.empty(3, device="meta"), torch.empty((), device="meta"))
    mean = kind(Solo(), template, frozenset(), torch.float32, CPU).mean
    first, second = make([[1.0, 2.0, 3.0, 4.0]], torch.float32), make([[5.0] * 4], torch.float32)
    kept, *_ = mean(first, [0], [2.0], 2.0, 1, np.zeros(0), round=0)
    mean(second, [0], [2.0], 2.0, 1, np.zeros(0), round=1)
    assert kept.delta.tolist() == [1.0, 2.0, 3.0]


def test_large_vectors_in_blocks_equal_small_ones(monkeypatch):
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(5, 1001, generator=generator, dtype=torch.float32)
    uploads = [Upload(row, torch.tensor(1.0)) for row in rows]
    weights = [3.0, 500.0, 17.0, 1.0, 64.0]
    whole = spread(uploads, weights, [0] * 5, 1)[0][0]
    monkeypatch.setattr(reduction, "_SMALL", 8)
    monkeypatch.setattr(exact, "_BLOCK", {"cpu": 333})
    blocks = spread(uploads, weights, [0, 1, 1, 1, 2], 4)[0][0]
    assert bits(whole) == bits(blocks)
    fast = spread(uploads, weights, [0, 1, 1, 1, 2], 4, kind=FastReduction)[0][0]
    assert torch.allclose(fast.delta, whole.delta, rtol=0, atol=1e-6)


@pytest.mark.parametrize("factor", [0.0, 0.5, 1.0])
def test_groups_of_clients_sum_as_all_at_once(monkeypatch, factor):
    """Five clients, two or three at a time; weights alike and not."""
    rows = torch.randn(5, 1001, generator=torch.Generator().manual_seed(0))
    uploads = [Upload(row, torch.tensor(1.0)) for row in rows]
    weights = [1.0 + factor * k for k in range(5)]
    whole = spread(uploads, weights, [0] * 5, 1)[0][0]
    expected = (rows.double() * torch.tensor(weights)[:, None]).sum(0) / sum(weights)
    assert torch.allclose(whole.delta.double(), expected, rtol=1e-6, atol=1e-12)
    monkeypatch.setattr(reduction, "_SMALL", 8)
    monkeypatch.setattr(exact, "_BLOCK", {"cpu": 333})
    for most in (1, 2, 3):
        monkeypatch.setattr(exact, "_ROWS", most)
        assert bits(spread(uploads, weights, [0] * 5, 1)[0][0]) == bits(whole)


def test_many_clients_of_the_same_sign_do_not_overflow():
    uploads = [Upload(torch.full((2,), 3.0e38), torch.tensor(1.5))] * 5000
    mean, *_ = spread(uploads, [2.0**20] * 5000, [0] * 5000, 1)[0]
    assert mean.delta.tolist() == uploads[0].delta.tolist()
    assert mean.level.item() == 1.5


@settings(max_examples=100)
@given(
    st.lists(st.floats(allow_nan=False, allow_infinity=False), max_size=12),
    st.lists(st.integers(0, 2), min_size=12, max_size=12),
)
def test_scalar_sums_are_correctly_rounded_for_any_spread(terms, owners):
    true = sum(map(Fraction, terms))
    if abs(true) > Fraction(1.79e308):
        return
    share = [[t for t, o in zip(terms, owners, strict=False) if o == rank] for rank in range(3)]
    outcomes = DiskBudget(3).run(lambda comm: exact_sums(comm, [share[comm.rank], [1.0]]))
    assert outcomes == [[float(true), 3.0]] * 3


def test_a_scalar_sum_with_a_term_that_is_not_finite_is_nan_on_every_rank():
    terms = [[1.0, math.inf], [2.0]]
    outcomes = DiskBudget(2).run(lambda comm: exact_sums(comm, [terms[comm.rank], [1.0]]))
    assert all(math.isnan(spoiled) and clean == 2.0 for spoiled, clean in outcomes)


def test_a_scalar_sum_beyond_the_largest_double_is_infinite_on_every_rank():
    terms = [[-1.7e308], [-1.7e308]]
    outcomes = DiskBudget(2).run(lambda comm: exact_sums(comm, [terms[comm.rank], [1.0]]))
    assert outcomes == [[-math.inf, 2.0]] * 2
