"""The time of a round on paper, by hand."""

from dataclasses import replace

import numpy as np
import pytest

from round_time import CostModel, Work, predict

COSTS = CostModel(
    step_s=2.0, visit_s=0.5, round_s=0.25, convert_s=0.01,
    restore_s=0.02, test_s=0.1, latency_s=0.001, bandwidth=1000.0, read=50.0, write=25.0,
)  # fmt: skip
# Steps 4, 3, 2, 1: the largest first, ranks 0 and 1 own clients 0 and 3, and 1 and 2.
WORK = Work(
    steps=np.array([4, 3, 2, 1]), draw=lambda t: np.array([0, 3] if t % 2 else [0, 1, 2]),
    examples=np.array([4, 3, 2, 1]), taken=np.array([40, 30, 20, 10]), balance="owner",
    parameters=10, state=100, tests=7, rounds=4, evaluations=2,
)  # fmt: skip


def test_one_rank_by_hand():
    """Visits take 0.5 + 2 + 4; rounds of 9 and 5 steps of three and two clients in turn."""
    found = predict(WORK, 1, COSTS)
    assert found.train == pytest.approx(((18 + 3 * 6.5) + (10 + 2 * 6.5)) / 2)
    assert found.convert == pytest.approx((0.3 + 0.2) / 2 + 0.2)
    assert found.exchange == 0
    assert found.busiest == 1
    assert found.evaluate == pytest.approx(0.7)
    assert found.hours == pytest.approx((4 * found.round + 2 * 0.7) / 3600)


def test_two_ranks_by_hand():
    """Even rounds: 4 steps and a visit, or 5 and two visits; odd ones: 5 and two, or nothing."""
    found = predict(WORK, 2, COSTS)
    assert found.train == pytest.approx(10 + 13)
    assert found.convert == pytest.approx(0.2 + 0.2)
    assert found.busiest == pytest.approx((5 / 4.5 + 5 / 2.5) / 2)
    assert found.exchange == pytest.approx(2 * 2 * 0.001 + 80 / 1000)
    assert found.evaluate == pytest.approx(0.4)


def test_more_ranks_send_more_messages_and_hardly_more_bytes():
    found = predict(WORK, 4, COSTS)
    assert found.exchange == pytest.approx(2 * 4 * 0.001 + 2 * 3 / 4 * 80 / 1000)


# Ranks 0 and 1 own clients 0 and 2, and 1 and 3.
EQUAL = replace(WORK, examples=np.ones(4, np.int64), draw=lambda t: np.array([0, 1 + (t + 1) % 2]))


def test_ranks_own_by_examples_and_not_by_steps():
    """Clients 0 and 2 of rank 0: two visits, 6 steps and two states, all on one rank."""
    found = predict(replace(EQUAL, rounds=1), 2, COSTS)
    assert found.train == pytest.approx(6 * 2 + 2 * 0.5 + 2 * 6)
    assert found.busiest == 2


def test_handing_over_by_hand():
    """Even rounds: client 2 goes to rank 1, its state of 100 bytes there and back.

    The busiest trains client 0 and reads and writes both states.  Odd ones, of 4 and 3 steps on
    either rank, move nobody.
    """
    stealing = replace(EQUAL, balance="steal")
    one = predict(replace(stealing, rounds=1), 2, COSTS)
    assert one.train == pytest.approx(4 * 2 + 0.5 + 2 * 6)
    assert one.convert == pytest.approx(0.1 + 0.2)
    assert one.ship == pytest.approx(2 * 0.001 + 2 * 0.001 + (100 + 100) / 1000)
    assert one.busiest == pytest.approx(4 / 3)
    assert one.round == pytest.approx(one.train + 0.3 + one.exchange + one.ship + 0.25)
    found = predict(stealing, 2, COSTS)
    assert found.train == pytest.approx((one.train + 4 * 2 + 0.5 + 6) / 2)
    assert found.ship == pytest.approx(one.ship / 2)
    assert found.hours == pytest.approx((4 * found.round + 2 * found.evaluate) / 3600)
    assert predict(stealing, 1, COSTS) == predict(EQUAL, 1, COSTS)


def test_the_rank_that_hands_over_most_is_waited_for():
    """Six equal clients of rank 0 of three: 4 leave it, 2 come to either of the others."""
    ones = np.ones(18, np.int64)
    crowd = replace(
        WORK, steps=ones, examples=ones, taken=ones, balance="steal", rounds=1,
        draw=lambda t: np.arange(0, 18, 3),
    )  # fmt: skip
    found = predict(crowd, 3, COSTS)
    assert found.ship == pytest.approx(2 * 2 * 0.001 + 4 * (0.002 + 0.2))
    assert found.busiest == 1
    assert predict(replace(crowd, state=0), 3, COSTS).ship == 0  # nobody remembers


def test_large_cohorts_are_drawn_for_fewer_rounds():
    assert WORK.sampled() == range(4)
    many = replace(WORK, rounds=10_000, draw=lambda t: np.zeros(1000, np.int64))
    assert many.sampled() == range(0, 10_000, 100)
