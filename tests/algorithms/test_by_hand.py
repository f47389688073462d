"""Two clients and one parameter: every number below was worked out on paper.

Client 0 has one example (a = 1, target 2), client 1 three equal ones (a = 2, target -1); the loss
is mean((a w - target)^2) / 2, so their gradients are g0(w) = w - 2 and g1(w) = 4 w + 2.
x starts at 1; K = 2 full-batch steps at eta = 0.1.
"""

import numpy as np
import pytest

from tests.algorithms.play import Problem, parts, play, servers, states, tree

TWO = Problem(
    np.array([[1.0], [2.0], [2.0], [2.0]]),
    np.array([2.0, -1.0, -1.0, -1.0]),
    np.array([0, 1, 1, 1]),
)
# A third client, which is in no cohort below: |S| / N is then 2/3.
THREE = Problem(np.append(TWO.x, [[9.0]], 0), np.append(TWO.y, 9.0), np.append(TWO.client, 2))


@pytest.fixture
def run(tmp_path):
    """Plays a job and returns its servers, one a round, and the clients' last states."""

    def go(algorithm, problem=TWO, **changes):
        np.save(tmp_path / "one.npy", np.ones(1))
        start = {"name": "linear", "bias": False, "init": str(tmp_path / "one.npy")}
        job = tree(tmp_path, problem, algorithm, model=start, weights="uniform", rounds=2)
        job |= {"local": {"steps": 2, "batch_size": "full", "lr": 0.1}}
        job |= {"checkpoint": {"every": 1, "keep": 9}, **changes}
        path = play(tmp_path, job).path
        return servers(path), states(path, parts(tmp_path, job))

    return go


def near(value):
    return pytest.approx(value, rel=0, abs=1e-12)


def test_fedavg(run):
    """Client 0: 1 -> 1.1 -> 1.19; client 1: 1 -> 0.4 -> 0.04; deltas -0.19 and 0.96.

    The mean is 0.385, so x = 0.615.  Then 0 goes 0.7535 -> 0.87815 and 1 goes
    0.169 -> -0.0986: x = (0.87815 - 0.0986) / 2 = 0.389775.
    """
    found, _ = run({"name": "fedavg"})
    assert [s["x"][0] for s in found] == near([1.0, 0.615, 0.389775])


def test_fedavg_weighs_by_examples(run):
    """(1 x -0.19 + 3 x 0.96) / 4 = 0.6725."""
    found, _ = run({"name": "fedavg"}, weights="examples", rounds=1)
    assert found[1]["x"][0] == near(0.3275)


def test_fedavg_server_lr(run):
    """1 - 0.5 x 0.385."""
    found, _ = run({"name": "fedavg", "server_lr": 0.5}, rounds=1)
    assert found[1]["x"][0] == near(0.8075)


def test_fedavg_weight_decay(run):
    """With wd = 0.5 the steps follow 1.5 y - 2 and 4.5 y + 2.

    0: 1 -> 1.05 -> 1.0925; 1: 1 -> 0.35 -> -0.0075; x = (1.0925 - 0.0075) / 2.
    """
    local = {"steps": 2, "batch_size": "full", "lr": 0.1, "weight_decay": 0.5}
    found, _ = run({"name": "fedavg"}, local=local, rounds=1)
    assert found[1]["x"][0] == near(0.5425)


def test_fedavg_lr_decay(run):
    """Round 1 at eta = 0.05 from 0.615: 0 goes 0.68425 -> 0.7500375, 1 goes 0.392 -> 0.2136."""
    local = {"steps": 2, "batch_size": "full", "lr": 0.1, "lr_decay": 0.5}
    found, _ = run({"name": "fedavg"}, local=local)
    assert found[2]["x"][0] == near((0.7500375 + 0.2136) / 2)


def test_fedavg_cosine(run):
    """Of 2 rounds, round 1 is at eta = 0.1 (1 + cos(pi / 2)) / 2 = 0.05: as above."""
    local = {"steps": 2, "batch_size": "full", "lr": 0.1, "schedule": "cosine"}
    found, _ = run({"name": "fedavg"}, local=local)
    assert [s["x"][0] for s in found] == near([1.0, 0.615, (0.7500375 + 0.2136) / 2])


@pytest.mark.parametrize(
    ("work", "x"),
    [
        # 0 does one step of one example, 1.1; 1 one of two and one of one, 0.4 -> 0.04.
        ({"epochs": 1, "batch_size": 2}, (1.1 + 0.04) / 2),
        # 1 leaves out its last example; 0 keeps its only one.
        ({"epochs": 1, "batch_size": 2, "drop_last": True}, (1.1 + 0.4) / 2),
        ({"epochs": 2, "batch_size": 2, "drop_last": True}, (1.19 + 0.04) / 2),
        # Both do three, going on through their examples: 1.271 and -0.176.
        ({"steps": 3, "batch_size": 2}, (1.271 - 0.176) / 2),
        ({"steps": 3, "batch_size": 2, "drop_last": True}, (1.271 - 0.176) / 2),
        # Neither given: one epoch.
        ({"batch_size": 2}, (1.1 + 0.04) / 2),
    ],
)
def test_fedavg_local_work(run, work, x):
    found, _ = run({"name": "fedavg"}, local={"lr": 0.1, **work}, rounds=1)
    assert found[1]["x"][0] == near(x)


def test_fedavg_clip(run):
    """At most 0.5 long: 0 goes 1.05 -> 1.1 (g = -1, -0.95), 1 goes 0.95 -> 0.9 (g = 6, 5.8)."""
    local = {"steps": 2, "batch_size": "full", "lr": 0.1, "clip": 0.5}
    found, _ = run({"name": "fedavg"}, local=local, rounds=1)
    assert found[1]["x"][0] == near(1.0)


def test_scaffold_option_2(run):
    """Round 0 is FedAvg's; c_0 = -0.19 / 0.2 = -0.95, c_1 = 0.96 / 0.2 = 4.8, c = 1.925.

    Round 1.  0 adds c - c_0 = 2.875: d = 1.49, 1.341: 0.466 -> 0.3319, delta 0.2831.
    1 adds -2.875: d = 1.585, 0.951: 0.4565 -> 0.3614, delta 0.2536.  x = 0.615 - 0.26835.
    c_0 = -0.95 - 1.925 + 1.4155 = -1.4595, c_1 = 4.8 - 1.925 + 1.268 = 4.143.
    """
    found, clients = run({"name": "scaffold"})
    assert [s["x"][0] for s in found] == near([1.0, 0.615, 0.34665])
    assert [s["c"][0] for s in found] == near([0.0, 1.925, 1.34175])
    assert [float(state.c) for state in clients] == near([-1.4595, 4.143])


def test_scaffold_option_1(run):
    """c_0 = g0(1) = -1, c_1 = g1(1) = 6, c = 2.5.

    Round 1.  0 adds 3.5: d = 2.115, 1.9035: 0.4035 -> 0.21315, delta 0.40185.
    1 adds -3.5: d = 0.96, 0.576: 0.519 -> 0.4614, delta 0.1536.  x = 0.615 - 0.277725.
    c_0 = g0(0.615) = -1.385, c_1 = g1(0.615) = 4.46.
    """
    found, clients = run({"name": "scaffold", "option": 1})
    assert [s["x"][0] for s in found] == near([1.0, 0.615, 0.337275])
    assert [s["c"][0] for s in found] == near([0.0, 2.5, 1.5375])
    assert [float(state.c) for state in clients] == near([-1.385, 4.46])


def test_scaffold_weighs_delta_but_not_dc(run):
    """x as FedAvg's by examples; c the plain mean all the same."""
    found, _ = run({"name": "scaffold"}, weights="examples", rounds=1)
    assert (found[1]["x"][0], found[1]["c"][0]) == (near(0.3275), near(1.925))


@pytest.mark.parametrize(("option", "total"), [(2, 3.85), (1, 5.0)])
def test_scaffold_divides_by_the_population(run, option, total):
    """Two of three clients: c = sum of c_i / 3; the absent client keeps nothing."""
    found, clients = run(
        {"name": "scaffold", "option": option},
        THREE,
        cohort={"kind": "replay", "rounds": [[0, 1]]},
        rounds=1,
    )
    assert found[1]["c"][0] == near(total / 3)
    assert clients[2] is None


def test_scaffold_option_2_holds_the_decay(run):
    """wd = 0.5: (x - y) / (K eta) of FedAvg's -0.0925 and 1.0075, nothing subtracted."""
    local = {"steps": 2, "batch_size": "full", "lr": 0.1, "weight_decay": 0.5}
    found, clients = run({"name": "scaffold"}, local=local, rounds=1)
    assert [float(state.c) for state in clients] == near([-0.4625, 5.0375])
    assert found[1]["c"][0] == near(2.2875)


def test_scaffold_option_1_does_not_hold_the_decay(run):
    """grad f_i alone, whatever the decay and the clipping are."""
    local = {"steps": 2, "batch_size": "full", "lr": 0.1, "weight_decay": 0.5, "clip": 0.25}
    _, clients = run({"name": "scaffold", "option": 1}, local=local, rounds=1)
    assert [float(state.c) for state in clients] == near([-1.0, 6.0])


def test_localghb(run):
    """Round 0 is FedAvg's.  C = 1, so beta C / K = 0.45 and the momentum 0.45 (0.615 - 1) = m.

    0: 0.615 + 0.1385 + m = 0.58025; 0.58025 + 0.141975 + m = 0.548975.
    1: 0.615 - 0.446 + m = -0.00425; -0.00425 - 0.1983 + m = -0.3758.
    """
    found, clients = run({"name": "localghb"})
    assert [s["x"][0] for s in found] == near([1.0, 0.615, (0.548975 - 0.3758) / 2])
    assert [float(state.anchor) for state in clients] == near([0.615, 0.615])
    assert [float(state.known) for state in clients] == [1.0, 1.0]


def test_localghb_nesterov(run):
    """0: 0.44175, there g0 = -1.55825: 0.597575; 0.424325, -1.575675: 0.5818925.

    1: 0.44175, g1 = 3.767: 0.06505; -0.1082, 1.5672: -0.26492.
    """
    found, _ = run({"name": "localghb", "nesterov": True})
    assert found[2]["x"][0] == near((0.5818925 - 0.26492) / 2)


def test_localghb_reaches_back_to_its_own_last_round(run):
    """Two of three in every round, C = 2/3, beta C / K = 0.3; client 1 rests in round 1.

    Client 0 alone takes x from 0.615 on: m = 0.3 (0.615 - 1) = -0.1155; 0.615 + 0.1385 + m = 0.638;
    0.638 + 0.1362 + m = 0.6587.  Then client 1, to which 1 is the last model: m = 0.3 (0.6587 - 1)
    = -0.10239; 0.6587 - 0.46348 + m = 0.09283; 0.09283 - 0.237132 + m = -0.246692.
    """
    cohort = {"kind": "replay", "rounds": [[0, 1], [0], [1]]}
    found, clients = run(
        {"name": "localghb", "participation": 2 / 3}, THREE, cohort=cohort, rounds=3
    )
    assert [s["x"][0] for s in found] == near([1.0, 0.615, 0.6587, -0.246692])
    assert [float(state.anchor) for state in clients[:2]] == near([0.615, 0.6587])
    assert clients[2] is None


def test_fedhbm(run):
    """Round 0 is FedAvg's: z_0 = 1.19, z_1 = 0.04.  C = 1, so beta C / K = 0.5.

    0: 0.615 + 0.1385 + 0.5 (0.615 - 1.19) = 0.466; 0.466 + 0.1534 + 0.5 (0.466 - 1.19) = 0.2574.
    1: 0.615 - 0.446 + 0.2875 = 0.4565; 0.4565 - 0.3826 + 0.20825 = 0.28215.
    """
    found, clients = run({"name": "fedhbm"})
    assert [s["x"][0] for s in found] == near([1.0, 0.615, (0.2574 + 0.28215) / 2])
    assert [float(state.z) for state in clients] == near([0.2574, 0.28215])
    assert [float(state.known) for state in clients] == [1.0, 1.0]


def test_fedhbm_participation(run):
    """Two of three in every round: C = 2/3, beta C / K = 1/3 for both clients.

    0: 0.7535 - 0.575/3 = a; then a + 0.1 (2 - a) + (a - 1.19)/3.
    1: 0.169 + 0.575/3 = b; then b - 0.1 (4 b + 2) + (b - 0.04)/3.
    """
    cohort = {"kind": "replay", "rounds": [[0, 1], [0, 1]]}
    found, _ = run({"name": "fedhbm"}, THREE, cohort=cohort)
    a, b = 0.7535 - 0.575 / 3, 0.169 + 0.575 / 3
    a2, b2 = a + 0.1 * (2 - a) + (a - 1.19) / 3, b - 0.1 * (4 * b + 2) + (b - 0.04) / 3
    assert found[2]["x"][0] == near((a2 + b2) / 2)
    overridden, _ = run({"name": "fedhbm", "participation": 1.0}, THREE, cohort=cohort)
    assert overridden[2]["x"][0] == near((0.2574 + 0.28215) / 2)


def test_fedhbm_nesterov(run):
    """0: 0.615 - 0.2875 = 0.3275, there g0 = -1.6725: 0.49475; 0.147125, -1.852875: 0.3324125.

    1: 0.9025, g1 = 5.61: 0.3415; 0.49225, 3.969: 0.09535.
    """
    found, _ = run({"name": "fedhbm", "nesterov": True})
    assert [s["x"][0] for s in found] == near([1.0, 0.615, (0.3324125 + 0.09535) / 2])


def test_fedhbm_nesterov_decays_at_the_displaced_point(run):
    """wd = 0.5 in both rounds; after round 0: z_0 = 1.0925, z_1 = -0.0075, x = 0.5425.

    0: 0.5425 - 0.275 = 0.2675, d = -1.59875: 0.427375; 0.0948125, d = -1.85778125: 0.280590625.
    1: 0.8175, d = 5.67875: 0.249625; 0.3781875, d = 3.70184375: 0.008003125.
    """
    local = {"steps": 2, "batch_size": "full", "lr": 0.1, "weight_decay": 0.5}
    found, _ = run({"name": "fedhbm", "nesterov": True}, local=local)
    assert found[2]["x"][0] == near((0.280590625 + 0.008003125) / 2)


@pytest.mark.parametrize(
    ("first", "nesterov", "expected"),
    [("zero", False, 0.1084), ("shared", False, 0.1844), ("shared", True, 0.154)],
)
def test_fedhbm_first_participation(run, first, nesterov, expected):
    """Client 0 alone takes x to 1.19; then client 1 comes for the first time.  C = 0.5.

    zero: 1.19 - 0.676 = 0.514 -> 0.1084.  shared: + 0.25 (1.19 - 1) = 0.0475 a step:
    0.5615 -> 0.1844; nesterov: 1.2375 -> 0.5425, 0.59 -> 0.154.
    """
    cohort = {"kind": "replay", "rounds": [[0], [1]]}
    found, _ = run({"name": "fedhbm", "first": first, "nesterov": nesterov}, cohort=cohort)
    assert found[1]["x"][0] == near(1.19)
    assert found[2]["x"][0] == near(expected)


def test_fedhbm_shared_keeps_its_own_afterwards(run):
    """x_0 matters at the first participation only: from then on shared is zero."""
    shared, _ = run({"name": "fedhbm", "first": "shared"})
    zero, _ = run({"name": "fedhbm", "first": "zero"})
    assert [s["x"][0] for s in shared] == near([s["x"][0] for s in zero])


def test_fedhbm_random(run):
    """Round 0, client 0 alone, C = 0.5: m = 0.25 (1 - r) is added in both steps.

    1 -> 1.1 + m -> 1.19 + 1.9 m = x, so r = 1 - 4 (x - 1.19) / 1.9, drawn from the model's
    initialisation U(-1, 1), another for every client.
    """
    drawn = []
    for client, (still, slope) in enumerate([(1.19, 1.9), (0.04, 1.6)]):
        found, _ = run(
            {"name": "fedhbm", "first": "random"},
            cohort={"kind": "replay", "rounds": [[client]]},
            rounds=1,
        )
        drawn.append(1 - 4 * (found[1]["x"][0] - still) / slope)
    assert all(-1 < r < 1 for r in drawn)
    assert abs(drawn[0] - drawn[1]) > 1e-6


def test_an_empty_round_changes_nothing_and_counts(run):
    found, _ = run(
        {"name": "fedavg"}, cohort={"kind": "replay", "rounds": [[0, 1], [], [0, 1]]}, rounds=3
    )
    assert [s["x"][0] for s in found] == near([1.0, 0.615, 0.615, 0.389775])
