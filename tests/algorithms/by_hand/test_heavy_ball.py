"""GHB, LocalGHB and FedHBM by hand: momentum over what a client missed."""

import pytest

from tests.algorithms.by_hand.quadratic import THREE, UNEQUAL, epoch, local, near, replay

TURNS = replay([0], [1], [0], [1])  # C = 1/2


def test_ghb(run):
    """beta = 0.9, tau = 1 at full participation: 0.45 (0.615 - 1) = -0.17325 in every step.

    0: 0.615 + 0.1385 - 0.17325 = 0.58025; 0.58025 + 0.141975 - 0.17325 = 0.548975.
    1: 0.615 - 0.446 - 0.17325 = -0.00425; -0.00425 - 0.1983 - 0.17325 = -0.3758.
    """
    left = run({"name": "ghb"})
    assert left.x == near([1.0, 0.615, 0.0865875])
    assert left.server("past.0") == near([1.0, 1.0, 0.615])


def test_ghb_is_still_until_it_knows_tau_models(run):
    """tau = 2, beta = 0.8: FedAvg for two rounds, then 0.2 (0.389775 - 1) = -0.122045.

    0: 0.4287525, 0.46383225 (g = -1.610225, -1.5712475).
    1: -0.08818, -0.374953 (g = 3.5591, 1.64728).
    """
    left = run({"name": "ghb", "beta": 0.8, "tau": 2}, rounds=3)
    assert left.x == near([1.0, 0.615, 0.389775, 0.044439625])
    assert left.server("past.0") == near([1.0, 1.0, 1.0, 0.615])
    assert left.server("past.1") == near([1.0, 1.0, 0.615, 0.389775])


def test_ghb_reaches_back_by_the_participation(run):
    """C = 1/2: tau = 2.  K = 1, beta = 0.8, clients in turn: 1.1, 1.1 - 0.64 = 0.46.

    0.46 + 0.154 + 0.4 (0.46 - 1) = 0.398; 0.398 - 0.3592 + 0.4 (0.398 - 1.1) = -0.242.
    """
    left = run({"name": "ghb", "beta": 0.8}, local=local(steps=1), cohort=TURNS, rounds=4)
    assert left.x == near([1.0, 1.1, 0.46, 0.398, -0.242])


def test_ghb_participation(run):
    """Said to be 1: tau = 1.  1.1, then 1.1 - 0.64 + 0.8 x 0.1 = 0.54."""
    fields = {"name": "ghb", "beta": 0.8, "participation": 1.0}
    left = run(fields, local=local(steps=1), cohort=replay([0], [1]))
    assert left.x == near([1.0, 1.1, 0.54])


def test_ghb_divides_by_the_clients_own_steps(run):
    """beta = 0.5, K = 1 and 2.  x = (1.1 + 0.04) / 2 = 0.57; 0 adds -0.215, 1 adds -0.1075.

    0: 0.57 + 0.143 - 0.215 = 0.498.  1: 0.57 - 0.428 - 0.1075 = 0.0345; 0.0345 - 0.2138 - 0.1075.
    """
    left = run({"name": "ghb", "beta": 0.5}, UNEQUAL, local=epoch())
    assert left.x == near([1.0, 0.57, (0.498 - 0.2868) / 2])


def test_ghb_nesterov(run):
    """0: 0.44175, g = -1.55825: 0.597575; 0.424325, -1.575675: 0.5818925.

    1: 0.44175, 3.767: 0.06505; -0.1082, 1.5672: -0.26492.
    """
    left = run({"name": "ghb", "nesterov": True})
    assert left.x == near([1.0, 0.615, (0.5818925 - 0.26492) / 2])


def test_ghb_nesterov_decays_at_the_displaced_point(run):
    """wd = 0.5, beta = 0.5: x = 0.5425, displaced by 0.25 (0.5425 - 1) = -0.114375.

    0: 0.428125, 1.5 p - 2 = -1.3578125: 0.56390625; 0.44953125, -1.325703125: 0.5821015625.
    1: 0.428125, 4.5 p + 2 = 3.9265625: 0.03546875; -0.07890625, 1.644921875: -0.2433984375.
    """
    left = run({"name": "ghb", "beta": 0.5, "nesterov": True}, local=local(weight_decay=0.5))
    assert left.x == near([1.0, 0.5425, 0.1693515625])


def test_ghb_weight_decay(run):
    """wd = 0.5, beta = 0.5, the decay at y: -0.114375 in every step.

    0: 0.5425 - 0.1 x -1.18625 - 0.114375 = 0.54675; g = -1.179875: 0.5503625.
    1: 0.5425 - 0.1 x 4.44125 - 0.114375 = -0.016; g = 1.928: -0.323175.
    """
    left = run({"name": "ghb", "beta": 0.5}, local=local(weight_decay=0.5))
    assert left.x == near([1.0, 0.5425, 0.11359375])


def test_localghb(run):
    """Full participation, beta = 0.8: 0.4 (0.615 - 1) = -0.154 in every step of round 1.

    0: 0.5995 -> 0.58555 (g = -1.385, -1.4005).  1: 0.015 -> -0.345 (g = 4.46, 2.06).
    """
    left = run({"name": "localghb", "beta": 0.8})
    assert left.x == near([1.0, 0.615, 0.120275])
    assert left.client("anchor") == near([0.615, 0.615])


def test_localghb_starts_where_the_client_last_received(run):
    """K = 1, beta = 0.8, clients in turn, C = 1/2: 1.1, and client 1 comes first: 0.46.

    0 last received 1: 0.46 + 0.154 + 0.4 (0.46 - 1) = 0.398.
    1 last received 1.1, though it sent 0.46: 0.398 - 0.3592 + 0.4 (0.398 - 1.1) = -0.242.
    """
    left = run({"name": "localghb", "beta": 0.8}, local=local(steps=1), cohort=TURNS, rounds=4)
    assert left.x == near([1.0, 1.1, 0.46, 0.398, -0.242])
    assert left.client("anchor") == near([0.46, 0.398])
    assert left.client("known") == [1.0, 1.0]


def test_localghb_gives_every_client_its_own_past(run):
    """K = 1 and 2, beta = 0.9, C = 5/6: 0.75 / K.  x = 0.57, client 0 then misses a round.

    1: 0.375 x -0.43 = -0.16125: 0.57 - 0.428 - 0.16125 = -0.01925; -0.1923 - 0.16125: -0.3728.
    0, from 1: 0.75 (-0.3728 - 1) = -1.0296: -0.3728 + 0.23728 - 1.0296 = -1.16512.
    1, from 0.57: 0.375 x -0.9428 = -0.35355: -0.3728 - 0.05088 - 0.35355 = -0.77723;
    -0.77723 + 0.110892 - 0.35355 = -1.019888.
    """
    left = run(
        {"name": "localghb"}, UNEQUAL, local=epoch(), cohort=replay([0, 1], [1], [0, 1]), rounds=3
    )
    assert left.x == near([1.0, 0.57, -0.3728, -1.092504])
    assert left.client("anchor") == near([-0.3728, -0.3728])


def test_localghb_participation(run):
    """Said to be 1/2 where it is 1: half of -0.154.

    0: 0.6765 -> 0.73185 (g = -1.385, -1.3235).  1: 0.092 -> -0.2218 (g = 4.46, 2.368).
    """
    left = run({"name": "localghb", "beta": 0.8, "participation": 0.5})
    assert left.x == near([1.0, 0.615, 0.255025])


def test_localghb_nesterov(run):
    """beta = 0.8, displaced by -0.154.  0: 0.461, g = -1.539: 0.6149; 0.4609, -1.5391: 0.61481.

    1: 0.461, 3.844: 0.0766; -0.0774, 1.6904: -0.24644.
    """
    left = run({"name": "localghb", "beta": 0.8, "nesterov": True})
    assert left.x == near([1.0, 0.615, 0.184185])


def test_localghb_nesterov_decays_at_the_displaced_point(run):
    """wd = 0.5, beta = 0.8: displaced by 0.4 (0.5425 - 1) = -0.183.

    0: 0.3595, 1.5 p - 2 = -1.46075: 0.505575; 0.322575, -1.5161375: 0.47418875.
    1: 0.3595, 4.5 p + 2 = 3.61775: -0.002275; -0.185275, 1.1662625: -0.30190125.
    """
    left = run({"name": "localghb", "beta": 0.8, "nesterov": True}, local=local(weight_decay=0.5))
    assert left.x == near([1.0, 0.5425, 0.08614375])


def test_fedhbm(run):
    """Round 0 is FedAvg's: z_0 = 1.19, z_1 = 0.04.  C = 1, so beta C / K = 0.5.

    0: 0.615 + 0.1385 + 0.5 (0.615 - 1.19) = 0.466; 0.466 + 0.1534 + 0.5 (0.466 - 1.19) = 0.2574.
    1: 0.615 - 0.446 + 0.2875 = 0.4565; 0.4565 - 0.3826 + 0.20825 = 0.28215.
    """
    left = run({"name": "fedhbm"})
    assert left.x == near([1.0, 0.615, (0.2574 + 0.28215) / 2])
    assert left.client("z") == near([0.2574, 0.28215])
    assert left.client("known") == [1.0, 1.0]


def test_fedhbm_participation(run):
    """Two of three in every round: C = 2/3, beta C / K = 1/3 for both clients.

    0: 0.7535 - 0.575/3 = a; then a + 0.1 (2 - a) + (a - 1.19)/3.
    1: 0.169 + 0.575/3 = b; then b - 0.1 (4 b + 2) + (b - 0.04)/3.
    """
    cohort = replay([0, 1], [0, 1])
    a, b = 0.7535 - 0.575 / 3, 0.169 + 0.575 / 3
    a2, b2 = a + 0.1 * (2 - a) + (a - 1.19) / 3, b - 0.1 * (4 * b + 2) + (b - 0.04) / 3
    assert run({"name": "fedhbm"}, THREE, cohort=cohort).x[2] == near((a2 + b2) / 2)
    overridden = run({"name": "fedhbm", "participation": 1.0}, THREE, cohort=cohort)
    assert overridden.x[2] == near((0.2574 + 0.28215) / 2)


def test_fedhbm_nesterov(run):
    """0: 0.615 - 0.2875 = 0.3275, there g0 = -1.6725: 0.49475; 0.147125, -1.852875: 0.3324125.

    1: 0.9025, g1 = 5.61: 0.3415; 0.49225, 3.969: 0.09535.
    """
    left = run({"name": "fedhbm", "nesterov": True})
    assert left.x == near([1.0, 0.615, (0.3324125 + 0.09535) / 2])


def test_fedhbm_nesterov_decays_at_the_displaced_point(run):
    """wd = 0.5 in both rounds; after round 0: z_0 = 1.0925, z_1 = -0.0075, x = 0.5425.

    0: 0.5425 - 0.275 = 0.2675, d = -1.59875: 0.427375; 0.0948125, d = -1.85778125: 0.280590625.
    1: 0.8175, d = 5.67875: 0.249625; 0.3781875, d = 3.70184375: 0.008003125.
    """
    left = run({"name": "fedhbm", "nesterov": True}, local=local(weight_decay=0.5))
    assert left.x[2] == near((0.280590625 + 0.008003125) / 2)


@pytest.mark.parametrize(
    ("first", "nesterov", "expected"),
    [("zero", False, 0.1084), ("shared", False, 0.1844), ("shared", True, 0.154)],
)
def test_fedhbm_first_participation(run, first, nesterov, expected):
    """Client 0 alone takes x to 1.19; then client 1 comes for the first time.  C = 0.5.

    zero: 1.19 - 0.676 = 0.514 -> 0.1084.  shared: + 0.25 (1.19 - 1) = 0.0475 a step:
    0.5615 -> 0.1844; nesterov: 1.2375 -> 0.5425, 0.59 -> 0.154.
    """
    fields = {"name": "fedhbm", "first": first, "nesterov": nesterov}
    assert run(fields, cohort=replay([0], [1])).x == near([1.0, 1.19, expected])


def test_fedhbm_shared_keeps_its_own_afterwards(run):
    """x_0 matters at the first participation only: from then on shared is zero."""
    shared = run({"name": "fedhbm", "first": "shared"})
    zero = run({"name": "fedhbm", "first": "zero"})
    assert shared.x == near(zero.x)


def test_fedhbm_random(run):
    """Round 0, client 0 alone, C = 0.5: m = 0.25 (1 - r) is added in both steps.

    1 -> 1.1 + m -> 1.19 + 1.9 m = x, so r = 1 - 4 (x - 1.19) / 1.9, drawn from the model's
    initialisation U(-1, 1), another for every client.
    """
    drawn = []
    for client, (still, slope) in enumerate([(1.19, 1.9), (0.04, 1.6)]):
        left = run({"name": "fedhbm", "first": "random"}, cohort=replay([client]), rounds=1)
        drawn.append(1 - 4 * (left.x[1] - still) / slope)
    assert all(-1 < r < 1 for r in drawn)
    assert abs(drawn[0] - drawn[1]) > 1e-6
