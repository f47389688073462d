"""What the log says was sent is what was sent: counted at the broadcast and the reduction."""

from dataclasses import dataclass
from typing import NamedTuple

import pytest
from torch import Tensor

from hpcfl.algorithms.fedavg import FedAvg
from hpcfl.engine.dry_round import traffic
from tests.algorithms.methods import ALL, ENTRIES
from tests.algorithms.play import parts, play, softmax_problem, tree
from tests.algorithms.trace import trace
from tests.long_form import long_form

PROBLEM = softmax_problem()
P = 15
COHORTS = [[0, 1], [], [2, 3, 4, 5], [1]]


@pytest.mark.parametrize("precision", [pytest.param("float64", marks=long_form), "float32"])
@pytest.mark.parametrize("name", ALL)
def test_measured_is_planned_is_expected(tmp_path, name, precision):
    entry = ALL[name]
    job = tree(tmp_path, PROBLEM, entry, precision=precision, rounds=4)
    sizes = [1] * 4
    if entry["name"] == "streaming_diloco":
        sizes = [PROBLEM.population] * 4
    elif entry["name"] != "centralized":
        job |= {"cohort": {"kind": "replay", "rounds": COHORTS}}
        sizes = [len(cohort) for cohort in COHORTS]
    number = 8 if precision == "float64" else 4
    vector = P * number
    down, up = (vectors * vector for vectors in ENTRIES[name].vectors)
    up = up if ENTRIES[name].up is None else ENTRIES[name].up(number)
    made = parts(tmp_path, job)
    assert traffic(made.training.algorithm, made.training.schema) == (down, up)
    log = trace(job).records
    if made.training.algorithm.warm_start:  # the model down to all clients, their gradients up
        before, *log = log
        assert before["round"] == 0
        assert before["down_bytes"] == before["up_bytes"] == PROBLEM.population * vector
    assert [record["down_bytes"] for record in log] == [size * down for size in sizes]
    assert [record["up_bytes"] for record in log] == [size * up for size in sizes]


class Grown(NamedTuple):
    x: Tensor
    past: tuple[Tensor, ...]


@dataclass(frozen=True, kw_only=True)
class Grows(FedAvg):
    """Sends every model so far, which no dry round can know."""

    def init_server(self, x0):
        return Grown(x0, ())

    def broadcast(self, server, cohort):
        return server

    def update(self, server, mean, cohort):
        return Grown(server.x - mean.delta, (*server.past, server.x))


def test_what_is_logged_was_counted(tmp_path):
    """It follows the message where that is not what was planned."""
    job = tree(tmp_path, PROBLEM, {"name": f"{__name__}.Grows"}, rounds=4)
    log = play(tmp_path, job).log
    assert [record["down_bytes"] for record in log] == [6 * 8 * P * k for k in (1, 2, 3, 4)]
    assert [record["up_bytes"] for record in log] == [6 * 8 * P] * 4


@dataclass(frozen=True, kw_only=True)
class Halves(FedAvg):
    """Sends half of its upload, by what it says."""

    def up_bytes(self, upload):
        return super().up_bytes(upload) // 2


def test_a_method_says_what_its_uploads_take(tmp_path):
    """In the plan and in the log; on an empty round nothing."""
    job = tree(tmp_path, PROBLEM, {"name": f"{__name__}.Halves"}, rounds=4)
    job |= {"cohort": {"kind": "replay", "rounds": COHORTS}}
    made = parts(tmp_path, job)
    assert traffic(made.training.algorithm, made.training.schema) == (8 * P, 4 * P)
    log = play(tmp_path, job).log
    assert [record["up_bytes"] for record in log] == [4 * P * len(cohort) for cohort in COHORTS]
