"""Random vectors of an algorithm: the same wherever and however often a client is trained."""

from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch

from hpcfl.algorithms.facts import Draws
from hpcfl.algorithms.fedavg import FedAvg
from hpcfl.clients.draws import drawn
from hpcfl.errors import BrokenRuleError
from hpcfl.start.start import resume
from tests.algorithms.play import kept, parts, play, servers, softmax_problem, tree
from tests.algorithms.trace import trace

PROBLEM = softmax_problem()
X = torch.zeros(1000, dtype=torch.float64)


@dataclass(frozen=True, kw_only=True)
class Noisy(FedAvg):
    """Adds noise at both ends."""

    client_draws: ClassVar[Draws] = {"own": "uniform", "more": "normal"}
    server_draws: ClassVar[Draws] = {"common": "normal"}

    def direction(self, point, local, grad, client):
        assert not client.draws
        return super().direction(point, local, grad, client)

    def finish(self, y, local, message, state, client):
        noise = client.draws["own"] + client.draws["more"]
        return super().finish(y + 0.01 * noise, local, message, state, client)

    def update(self, server, mean, cohort):
        after = super().update(server, mean, cohort)
        return after._replace(x=after.x + 0.01 * cohort.draws["common"])


NOISY = {"name": f"{__name__}.Noisy"}


def test_a_vector_follows_from_seed_name_round_and_client_alone():
    wanted = {"a": "uniform", "b": "uniform", "c": "normal"}
    vectors = [
        *drawn(wanted, X, 1, 0, 0).values(),
        *(drawn({"a": "uniform"}, X, *at)["a"] for at in ((2, 0, 0), (1, 1, 0), (1, 0, 1), (1, 0))),
    ]
    assert len(torch.stack(vectors).unique(dim=0)) == len(vectors)
    assert torch.equal(drawn({"b": "uniform"}, X, 1, 0, 0)["b"], vectors[1])
    assert vectors[0].min() >= 0
    assert vectors[0].max() < 1
    assert vectors[0].mean() == pytest.approx(0.5, abs=0.05)
    assert vectors[2].std() == pytest.approx(1, abs=0.1)


def test_a_draw_leaves_the_global_generator_alone():
    before = torch.get_rng_state()
    drawn({"a": "normal"}, X, 1, 0, 0)
    assert torch.equal(torch.get_rng_state(), before)


def test_an_unknown_distribution_is_refused():
    with pytest.raises(BrokenRuleError, match="draws: a: found 'cauchy', expected uniform or nor"):
        drawn({"a": "cauchy"}, X, 1, 0)


@pytest.mark.parametrize("size", [2, 5])
def test_both_executors_draw_the_same(folder, size):
    job = tree(folder, PROBLEM, NOISY)
    blocks = trace({**job, "executor": "block", "block_size": size}).xs
    assert abs(blocks - trace(job).xs).max() < 1e-12
    other = trace({**job, "seed": 6}).xs
    assert abs(blocks - other).max() > 1e-3


def test_a_resume_draws_the_same(tmp_path):
    job = kept(tree(tmp_path, PROBLEM, NOISY))
    whole = play(tmp_path, job)
    short = play(tmp_path, {**job, "rounds": 3})
    resume(short.directory, ["rounds=6"])
    assert (servers(whole.directory)[-1]["x"] == servers(short.directory)[-1]["x"]).all()


def test_a_method_without_draws_draws_nothing(tmp_path):
    task = parts(tmp_path, tree(tmp_path, PROBLEM, {"name": "fedavg"})).population.clients.task(
        0, 0
    )
    assert not task.client.draws
    assert drawn(FedAvg.client_draws, X, 0, 0) == {}


@dataclass(frozen=True, kw_only=True)
class Restless(FedAvg):
    """Moves in rounds without clients too."""

    updates_without_clients: ClassVar[bool] = True
    server_draws: ClassVar[Draws] = {"common": "normal"}

    def update(self, server, mean, cohort):
        assert cohort.size or not mean.delta.any()
        return super().update(server, mean, cohort)._replace(x=server.x + cohort.draws["common"])


def test_a_method_may_move_in_a_round_without_clients(folder):
    cohort = {"kind": "replay", "rounds": [[0], [], [1]]}
    path = trace(
        tree(folder, PROBLEM, {"name": f"{__name__}.Restless"}, cohort=cohort, rounds=3)
    ).xs
    for t in range(3):
        noise = drawn({"common": "normal"}, torch.zeros(15, dtype=torch.float64), 5, t)["common"]
        assert abs(path[t + 1] - path[t] - noise.numpy()).max() < 1e-12
