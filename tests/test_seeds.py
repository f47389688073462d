"""Streams never change silently: a run of last year must give the same bits next year."""

import itertools

import numpy as np
import pytest
import torch

from hpcfl.seeds import NO_CLIENT, NO_ROUND, key, stream

PINNED = [7721426005172569930, 5546846266465148269, 6466801634044347163]
SHUFFLE = [2, 1, 4, 0, 7, 6, 3, 5]
COHORT = [28, 36, 81, 46, 99]
AUGMENT = [5140909616256329557, 514981359910180584, 401287140156872113]


def test_pinned_keys():
    assert key(0, "cohort") == PINNED[0]
    assert key(0, "cohort", 3) == PINNED[1]
    assert key(2**63 - 1, "shuffle", 19_999, 40_000) == PINNED[2]


def test_pinned_draws():
    assert stream(7, "shuffle", 2, 5).permutation(8).tolist() == SHUFFLE
    assert stream(7, "cohort", 2).choice(100, 5, replace=False).tolist() == COHORT
    assert stream(7, "augment", 2, 5).integers(2**63, size=3).tolist() == AUGMENT


def test_every_part_of_the_name_counts():
    names = list(
        itertools.product(
            (0, 1, 2**40), ("shuffle", "augment"), (NO_ROUND, 0, 1), (NO_CLIENT, 0, 1)
        )
    )
    assert len({key(*name) for name in names}) == len(names)
    assert all(0 <= key(*name) < 2**63 for name in names)


def test_what_was_not_said_is_the_server_s_and_the_run_s():
    assert key(5, "model") == key(5, "model", NO_ROUND, NO_CLIENT)


def test_streams_do_not_disturb_each_other():
    """Nor numpy's and torch's global generators."""
    np.random.seed(0)  # noqa: NPY002
    torch.manual_seed(0)
    before = torch.get_rng_state()
    first = stream(1, "a")
    first.random(3)
    other = stream(1, "a").random(10)
    assert (other[3:] == first.random(7)).all()
    assert torch.equal(torch.get_rng_state(), before)
    assert np.random.random() == pytest.approx(0.5488135039273248)  # noqa: NPY002
