"""Every method but one has a server learning rate, and its first step is as long as that says."""

import numpy as np
import pytest

from hpcfl.errors import JobError
from tests.algorithms.methods import ALL, SAMPLE
from tests.algorithms.play import parts, softmax_problem, tree
from tests.algorithms.trace import trace

WITH_DUALS = {"feddyn", "fedspeed", "fedsmoo", "fedlesam_d"}


@pytest.mark.parametrize("algorithm", [name for name in SAMPLE if name != "fedexp"])
def test_the_first_step_grows_with_the_server_learning_rate(tmp_path, algorithm):
    """In proportion; of FedDyn and its kind only the mean delta, not the step of its dual."""
    problem = softmax_problem()
    if ALL[algorithm]["name"] == "centralized":
        problem = problem._replace(client=np.zeros_like(problem.client))
    moves = []
    for rate in (0.25, 0.5, 0.75) if algorithm in WITH_DUALS else (0.25, 0.5):
        settings = {**ALL[algorithm], "server_lr": rate}
        before, after = trace(tree(tmp_path, problem, settings, rounds=1)).xs
        moves.append(after - before)
    assert np.abs(moves[1] - moves[0]).max() > 1e-4
    expected = 2 * moves[1] - moves[0] if algorithm in WITH_DUALS else 2 * moves[0]
    np.testing.assert_allclose(moves[-1], expected, rtol=1e-9, atol=1e-13)


def test_fedexp_refuses_one(tmp_path):
    job = tree(tmp_path, softmax_problem(), {"name": "fedexp", "server_lr": 0.5})
    with pytest.raises(JobError, match=r"^algorithm\.name: fedexp finds the server's learning"):
        parts(tmp_path, job)
