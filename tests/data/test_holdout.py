"""What is held out of training for tests and for validation: sizes by hand, and no overlap."""

from dataclasses import dataclass

import numpy as np
import pytest
import torch

from hpcfl.data.base import DataConfig, Dataset
from hpcfl.data.holdout import Validation, hold_out, rounded
from hpcfl.data.partition import Iid, Natural, Pooled, RowRanges
from hpcfl.data.sources.arrays import cast
from hpcfl.data.split import split_examples
from hpcfl.errors import DataError, JobError
from hpcfl.types import Examples

SIZES = [10, 3, 1, 2]
STARTS = np.cumsum([0, *SIZES[:-1]])


@dataclass(frozen=True, kw_only=True)
class Given(DataConfig):
    def load(self, seed):
        raise NotImplementedError


def split(seed=0, sizes=SIZES, **keys):
    starts, sizes = np.cumsum([0, *sizes[:-1]]), np.array(sizes)
    labels = torch.zeros(int(sizes.sum()), dtype=torch.int64)
    natural = RowRanges(starts, sizes)
    data = Dataset(Examples(labels, labels), None, natural, 10, "cross_entropy", cast)
    return split_examples(Given(**keys), data, seed)


def alike(a, b):
    return len(a) == len(b) and all(map(np.array_equal, a, b))


def test_holding_out():
    clients = [np.arange(10), np.arange(20, 23), np.array([40]), np.arange(50, 52)]
    train, held = hold_out(clients, 0.34, 7)
    assert [len(rows) for rows in held] == [3, 1, 0, 1]
    for all_, rest, out in zip(clients, train, held, strict=True):
        assert sorted([*rest, *out]) == list(all_)
        assert list(rest) == sorted(rest)
    again = hold_out(clients[:1], 0.34, 7)[1][0]
    assert np.array_equal(again, held[0])  # whoever else there is
    assert any(not np.array_equal(hold_out(clients, 0.34, s)[1][0], again) for s in range(5))
    assert [len(rows) for rows in hold_out(clients, 0.99, 7)[0]] == [1, 1, 1, 1]
    with pytest.raises(DataError, match="no client has 2 examples"):
        hold_out(clients[2:3], 0.5, 7)


@pytest.mark.parametrize(
    ("share", "count", "expected"),
    [(0.1, 10, 1), (0.34, 10, 3), (0.1, 2, 1), (0.9, 2, 1), (0.5, 1, 0), (0.99, 10, 9)],
)
def test_the_rule_of_rounding(share, count, expected):
    assert rounded(share, count) == expected


def test_a_share_of_each_clients_examples():
    """0.34 of 10, 3, 1 and 2: 3, 1, none and 1."""
    found = split(validation=Validation(share=0.34))
    assert [len(rows) for rows in found.rows] == [7, 2, 1, 1]
    assert found.clients is None
    owner = np.searchsorted(STARTS, found.validation, side="right") - 1
    assert np.bincount(owner, minlength=4).tolist() == [3, 1, 0, 1]
    assert sorted([*found.validation, *np.concatenate(found.rows)]) == list(range(16))
    assert found.note == "5 for validation"


def test_whole_clients_bring_what_they_hold_out():
    found = split(holdout=0.5, validation=Validation(share=0.5, of="clients"))
    plain = split(holdout=0.5)
    assert (len(found.rows), found.kept_clients) == (2, 2)
    assert alike(found.rows, [plain.rows[client] for client in found.clients])
    assert alike(found.held_out, [plain.held_out[client] for client in found.clients])
    kept = np.setdiff1d(np.arange(4), found.clients)
    whole = [np.arange(STARTS[client], STARTS[client] + SIZES[client]) for client in kept]
    assert list(found.validation) == list(np.concatenate(whole))


def test_no_other_draw_changes():
    """Neither the partition nor what is held out for tests."""
    keys = {"partition": Iid(), "clients": 3, "holdout": 0.4}
    plain, found = split(**keys), split(**keys, validation=Validation(share=0.3))
    assert alike(plain.held_out, found.held_out)
    for before, after in zip(plain.rows, found.rows, strict=True):
        assert set(after) < set(before)
    assert set(found.validation) < set(np.concatenate(plain.rows))


def test_its_seed_is_its_own():
    first = split(validation=Validation(share=0.3))
    assert np.array_equal(first.validation, split(validation=Validation(share=0.3, seed=0))[2])
    others = [split(validation=Validation(share=0.3, seed=k)).validation for k in range(1, 6)]
    assert any(not np.array_equal(first.validation, other) for other in others)
    assert np.array_equal(
        split(7, validation=Validation(share=0.3, seed=0)).validation, first.validation
    )


def test_the_number_of_clients_that_train():
    whole = Validation(share=0.25, of="clients")
    assert Given(clients=10, validation=whole).population == 8  # 2.5 is rounded to even
    assert Given(clients=10, validation=whole).partition_clients == 10
    assert Given(clients=10, validation=Validation(share=0.25)).population == 10
    assert Given(validation=whole).population is None
    assert len(split(partition=Iid(), clients=10, validation=whole).rows) == 8


@pytest.mark.parametrize("keys", [{"partition": Pooled()}, {"clients": 1}])
def test_one_client_cannot_be_divided(keys):
    with pytest.raises(ValueError, match=r"validation\.of is clients, but one client holds"):
        Given(validation=Validation(share=0.5, of="clients"), **keys)


def test_too_little_is_refused():
    with pytest.raises(DataError, match=r"data\.validation: no client has 2 examples"):
        split(sizes=[1, 1], validation=Validation(share=0.5))
    with pytest.raises(JobError, match=r"data\.validation\.of: clients, but there is only one"):
        split(sizes=[5], partition=Natural(), validation=Validation(share=0.5, of="clients"))
