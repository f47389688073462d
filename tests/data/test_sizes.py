"""Sizes of clients: even, proportional, and drawn for a skew of quantity."""

import numpy as np
import pytest

from hpcfl.data.partition import Quantity
from hpcfl.data.sizes import even_sizes, proportional_sizes, quantity_sizes
from hpcfl.errors import JobError
from hpcfl.seeds import stream
from tests.data.test_split import LABELS, split


def sizes(total, clients, seed=0, **settings):
    return quantity_sizes(Quantity(**settings), total, clients, stream(seed, "sizes"))


def test_even_sizes():
    assert even_sizes(11, 4).tolist() == [3, 3, 3, 2]


def test_proportional_sizes_by_hand():
    """Of 10: 1.43, 2.86 and 5.71 are 1, 2 and 5, and the two largest remainders get one more."""
    assert proportional_sizes(10, np.array([1.0, 2.0, 4.0])).tolist() == [1, 3, 6]
    assert proportional_sizes(1, np.array([0.2, 0.5, 0.3])).tolist() == [0, 1, 0]
    assert proportional_sizes(0, np.array([1.0, 1.0])).tolist() == [0, 0]
    assert proportional_sizes(2, np.array([1.0, 1.0, 1.0])).tolist() == [1, 1, 0]  # ties: the first


def test_proportional_sizes_sum_up():
    random = np.random.default_rng(0)
    for total in (1, 7, 50_000):
        shares = random.dirichlet(np.full(100, 0.1))
        found = proportional_sizes(total, shares)
        assert found.sum() == total
        assert np.abs(found - total * shares).max() < 1


def test_a_power_law_by_hand():
    """1 / r of 4 clients: 12/25, 6/25, 4/25 and 3/25 of the 250 that 5 each leave."""
    found = sizes(270, 4, form="power", exponent=1.0, least=5)
    assert sorted(found) == [35, 45, 65, 125]


def test_the_order_of_a_power_law_is_drawn():
    largest = {int(np.argmax(sizes(270, 4, s, form="power", exponent=1.0))) for s in range(40)}
    assert largest == {0, 1, 2, 3}


def test_lognormal_sizes_have_the_spread_of_their_logarithm():
    found = sizes(10**9, 5000, form="lognormal", sigma=1.5, least=1)
    assert np.log(found).std() == pytest.approx(1.5, rel=0.05)
    assert np.log(found).mean() == pytest.approx(np.log(2e5) - 1.5**2 / 2, abs=0.2)


def test_dirichlet_sizes_have_the_moments_of_their_distribution():
    """q ~ Dir(alpha, ..., alpha) of N: mean 1/N, variance (1/N)(1 - 1/N) / (N alpha + 1)."""
    found = np.concatenate(
        [sizes(10**6, 10, seed, form="dirichlet", alpha=2.0, least=1) for seed in range(300)]
    )
    assert (found / 10**6).var() == pytest.approx(0.1 * 0.9 / 21, rel=0.1)


@pytest.mark.parametrize(
    "settings",
    [
        {"form": "lognormal", "sigma": 0.0},
        {"form": "power", "exponent": 0.0},
        {"form": "dirichlet", "alpha": 1e30},
    ],
    ids=str,
)
def test_without_spread_they_are_even(settings):
    assert sorted(sizes(1003, 10, **settings)) == [100] * 7 + [101] * 3


@pytest.mark.parametrize(
    "settings", [{"form": "lognormal", "sigma": 1e6}, {"form": "power", "exponent": 1e6}], ids=str
)
def test_one_client_has_what_the_others_need_not(settings):
    assert sorted(sizes(1000, 10, **settings)) == [10] * 9 + [910]


def test_dirichlet_sizes_are_drawn_again_until_they_are_large_enough():
    smallest = [int(sizes(1000, 10, seed, alpha=0.8, least=20).min()) for seed in range(20)]
    assert min(smallest) >= 20
    assert min(int(sizes(1000, 10, seed, alpha=0.8, least=1).min()) for seed in range(20)) < 20


@pytest.mark.parametrize("alpha", [0.01, 1e-300])
def test_no_draw_is_large_enough(alpha):
    with pytest.raises(JobError, match=f"in 1000 draws with alpha {alpha:g} one of the 10 clients"):
        sizes(1000, 10, alpha=alpha)


@pytest.mark.parametrize("form", [{"alpha": 1.0}, {"form": "lognormal", "sigma": 1.0}], ids=str)
def test_fewer_examples_than_the_least(form):
    assert sizes(1000, 100, form="power", exponent=1.0).tolist() == [10] * 100
    with pytest.raises(JobError, match="101 clients of at least 10 need 1010 training examples"):
        sizes(1000, 101, **form)


def test_labels_are_those_of_all():
    """The largest of 5 clients has the classes of all data; 5 standard deviations."""
    labels = np.repeat(np.arange(10), 2000)
    rows = max(split(Quantity(form="power", exponent=1.0), 5, labels), key=len)
    expected = len(rows) / 10
    assert np.abs(np.bincount(labels[rows]) - expected).max() < 5 * np.sqrt(expected * 0.9)


def test_data_without_classes_can_be_divided():
    targets = np.linspace(0, 1, 1000)[:, None]
    rows = split(Quantity(form="lognormal", sigma=1.0), 10, targets, classes=None)
    assert sorted(np.concatenate(rows)) == list(range(1000))
    assert len(split(Quantity(form="lognormal", sigma=1.0), 10, LABELS)) == 10


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "form dirichlet needs alpha; set it"),
        ({"form": "lognormal"}, "form lognormal needs sigma"),
        ({"form": "power", "alpha": 1.0}, "form power needs exponent"),
        ({"alpha": 1.0, "sigma": 0.5}, r"sigma is 0\.5, but form dirichlet takes alpha; remove"),
    ],
)
def test_a_form_takes_its_own_setting(settings, message):
    with pytest.raises(ValueError, match=message):
        Quantity(**settings)
