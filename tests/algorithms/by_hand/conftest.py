"""A job on the quadratics, and what its rounds leave."""

from typing import Any, NamedTuple

import numpy as np
import pytest

from tests.algorithms.by_hand.quadratic import TWO, local
from tests.algorithms.play import parts, play, servers, states, tree


class Left(NamedTuple):
    """What a run leaves."""

    servers: list[dict[str, Any]]  # before the first round and after each
    clients: list[Any]  # every client's last state, None where it has none

    def server(self, field):
        """A one-number field of the server, before the first round and after each."""
        return [server[field].item() for server in self.servers]

    def client(self, field):
        """A one-number field of every client's last state."""
        return [float(state._asdict()[field]) for state in self.clients]

    @property
    def x(self):
        return self.server("x")


@pytest.fixture
def run(tmp_path):
    """Plays a job on quadratics from w = 1."""

    def go(algorithm, problem=TWO, **changes):
        np.save(tmp_path / "one.npy", np.ones(problem.x.shape[1]))
        start = {"name": "linear", "bias": False, "init": str(tmp_path / "one.npy")}
        job = tree(tmp_path, problem, algorithm, model=start, weights="uniform", rounds=2)
        job |= {"local": local(), "checkpoint": {"every": 1, "keep": 9}, **changes}
        path = play(tmp_path, job).directory
        return Left(servers(path), states(path, parts(tmp_path, job)))

    return go
