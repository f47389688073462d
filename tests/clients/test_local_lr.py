"""The learning rate of every round."""

from itertools import pairwise

import pytest

from hpcfl.clients.section import Local


def rates(rounds, **local):
    return [Local(**local).lr_of_round(t, rounds) for t in range(rounds)]


def test_constant_unless_asked():
    assert rates(5, lr=0.3) == [0.3] * 5


def test_exponential():
    assert rates(3, lr=0.8, lr_decay=0.5) == [0.8, 0.4, 0.2]
    assert rates(3, lr=0.8, lr_decay=0.5, schedule="exponential") == [0.8, 0.4, 0.2]


def test_cosine():
    """0.4 (1 + cos(pi t / 6)) / 2; half of it in the middle, and still positive in the last."""
    root = 3**0.5
    expected = [0.4, 0.2 + 0.1 * root, 0.3, 0.2, 0.1, 0.2 - 0.1 * root]
    found = rates(6, lr=0.4, schedule="cosine")
    assert found == pytest.approx(expected, rel=1e-12)
    assert all(a > b > 0 for a, b in pairwise(found))
    assert rates(1, lr=0.4, schedule="cosine") == [0.4]
