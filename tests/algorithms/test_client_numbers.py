"""Hooks compute with the numbers of a client's round in float64."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor

from hpcfl.algorithms.base import Upload
from hpcfl.algorithms.facts import Client
from hpcfl.algorithms.fedavg import FedAvg
from tests.algorithms.play import kept, parts, play, servers, softmax_problem, states, tree


class Seen(NamedTuple):
    round: Tensor


@dataclass(frozen=True, kw_only=True)
class Decaying(FedAvg):
    """Moves every parameter by 0.9 to the power of the round; a client remembers its last round."""

    def init_client(self, x0, random_init):
        return Seen(x0.new_zeros((), dtype=torch.float64))

    def finish(self, y, local, message, state, client: Client):
        numbers = (client.round, client.steps, client.lr, client.examples)
        assert all(number.dtype == torch.float64 and not number.shape for number in numbers)
        decay = 0.9 ** (client.round + 1)
        return Upload(torch.zeros_like(message.x) + decay), Seen(client.round + 250)


@pytest.mark.parametrize("executor", ["sequential", "block"])
def test_a_power_of_the_round_is_exact_and_a_state_keeps_the_round(tmp_path, executor):
    """In torch 0.9 to the power of an int64 tensor is float32, which is 1.2e-8 off here."""
    algorithm = {"name": f"{__name__}.Decaying"}
    changes = {"rounds": 8, "executor": executor, "store": {"dtype": "bfloat16"}}
    job = tree(tmp_path, softmax_problem(), algorithm, **changes)
    run = play(tmp_path, kept(job)).directory
    before, *_, after = (server["x"] for server in servers(run))
    moved = sum(0.9**t for t in range(1, 9))
    np.testing.assert_allclose(before - after, moved, rtol=1e-14)
    for state in states(run, parts(tmp_path, job)):
        assert int(state.round) == 257  # no number of bfloat16
