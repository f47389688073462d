"""The recorded local models, worked by hand, and the same bits as a run's."""

import itertools
from pathlib import Path

import numpy as np
import pytest
import torch

import hpcfl
from hpcfl.errors import JobError
from hpcfl.job.schema import load
from hpcfl.runner.trajectories import run_quadratics

ROOT = Path(__file__).parents[2]
JOB = ROOT / "jobs/quadratics/fedavg.yaml"
PLANE = ("data.dim=2", "data.heterogeneity=1.0", "rounds=4", "local.steps=3")

pytestmark = pytest.mark.usefixtures("own_process")


def played(*overrides):
    return run_quadratics(load(JOB, [*PLANE, *overrides]))


def gradient(found, client, y):
    return found.curvature[client] * y - found.linear[client]


def test_fedavg_by_hand():
    """Each client takes three steps y <- y - 0.1 (h_i y - b_i) from the server's model."""
    found = played()
    assert found.curvature.tolist() == [[1.5, 1.5], [0.5, 0.5]]
    assert found.linear[0] == pytest.approx(-found.linear[1])
    assert np.linalg.norm(found.linear[0]) == pytest.approx(1.0)
    x = np.array([1.0, 1.0])
    assert len(found.trajectories.rounds) == 4
    for t, clients in enumerate(found.trajectories.rounds):
        assert found.trajectories.server[t] == pytest.approx(x, abs=1e-12)
        assert [trajectory.client for trajectory in clients] == [0, 1]
        ends = []
        for client, points in clients:
            y = x
            assert points.shape == (4, 2)
            for point in points:
                assert point == pytest.approx(y, abs=1e-12)
                y = y - 0.1 * gradient(found, client, y)
            ends.append(points[-1])
        x = np.mean(ends, axis=0)
    assert found.trajectories.server[4] == pytest.approx(x, abs=1e-12)


def test_scaffold_by_hand():
    """Without weight decay, with option 2, c_i and c are the means of gradients and of c_i."""
    found = played("algorithm={name: scaffold}")
    control = np.zeros((2, 2))
    for t, clients in enumerate(found.trajectories.rounds):
        mean, after = control.mean(0), []
        for client, points in clients:
            y = found.trajectories.server[t]
            for point in points[1:]:
                y = y - 0.1 * (gradient(found, client, y) - control[client] + mean)
                assert point == pytest.approx(y, abs=1e-12)
            used = control[client] - mean + (points[0] - points[-1]) / (3 * 0.1)
            after.append(used)
        control = np.array(after)


@pytest.mark.parametrize(
    "algorithm",
    [
        *("fedavg", "fedavgm", "scaffold", "scaffold, first: gradient", "mimemom", "mimemvr"),
        *("mimelitemom", "fedhbm", "fedmim", "fedsam"),
    ],
)
def test_the_server_is_that_of_a_run(algorithm, tmp_path):
    """Bit for bit, with weight decay and momentum; full gradients and client states included."""
    keys = [f"algorithm={{name: {algorithm}}}", "local.weight_decay=0.01"]
    if algorithm in ("fedavg", "fedsam"):
        keys += ["local.momentum=0.5", "local.nesterov=true"]
    found = played(*keys)
    assert [len(clients) for clients in found.trajectories.rounds] == [2] * 4
    x = hpcfl.run(JOB, [*PLANE, *keys], out=tmp_path / "run").x
    assert torch.equal(torch.from_numpy(found.trajectories.server[-1]), x)


def test_a_client_with_several_quadratics():
    """Its loss is the mean of theirs."""
    found = played("data.clients=6", "data.partition={kind: iid}")
    halves = played("data.partition={kind: pooled}", "data.clients=null", "cohort.size=1")
    assert halves.curvature.tolist() == [[1.0, 1.0]]
    for client, points in found.trajectories.rounds[0]:
        for before, after in itertools.pairwise(points):
            assert after == pytest.approx(before - 0.1 * gradient(found, client, before))


def test_the_clients_of_each_round():
    """One of three a round; the job's executor does not matter."""
    keys = ("data.clients=3", "cohort.size=1", "rounds=6", "executor=block", "data.spread=0.0")
    found = played(*keys)
    drawn = [[trajectory.client for trajectory in clients] for clients in found.trajectories.rounds]
    assert all(len(clients) == 1 for clients in drawn)
    assert len({clients[0] for clients in drawn}) > 1


def test_a_round_without_clients():
    found = played("cohort={kind: bernoulli, p: 0.01}", "rounds=3")
    assert [len(clients) for clients in found.trajectories.rounds] == [0, 0, 0]
    assert np.array_equal(found.trajectories.server, np.ones((4, 2)))


@pytest.mark.parametrize(
    ("job", "overrides", "message"),
    [
        ("quadratics/fedavg", [], "fedavg: found dim 1, expected quadratics in the plane"),
        ("quickstart", [], "quickstart: found other data, expected quadratics in the plane"),
    ],
)
def test_other_data_are_refused(job, overrides, message):
    with pytest.raises(JobError, match=message):
        run_quadratics(load(ROOT / f"jobs/{job}.yaml", overrides))
