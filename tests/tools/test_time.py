"""The time on other ranks than were measured, by hand and against what a run does."""

import numpy as np
import pytest
import torch

from hpcfl.clients.assignment import Balance, assign_owners
from hpcfl.job.load import load
from hpcfl.start.components.build import build_components
from hpcfl.tools.plan.measure import Measurement, TimedRound
from hpcfl.tools.plan.time import predict

# Of four clients with 10 examples each ranks 0 and 1 own 0 and 2, and 1 and 3.
COHORTS = "cohort={kind: replay, rounds: [[0, 1], [0, 2], [0, 1], [0, 2]]}"
MEASURED = Measurement(
    ranks=2, machine="by hand", gpus=False, memory=0, gpu_memory=0,
    # The busiest rank trains 20 and 10 examples: 0.2 s an example.
    rounds=[TimedRound(1, 4.0), TimedRound(2, 2.0)],
    mean_s=0.5, rest_s=0.25, evaluate_s=3.0, warm_start_s=7.0,
)  # fmt: skip


def parts(job, *overrides):
    return build_components(load(job, [COHORTS, *overrides]), torch.device("cpu"))


@pytest.mark.parametrize(
    ("ranks", "balance", "train", "busiest", "evaluate"),
    [
        (1, "owner", 4.0, 1.0, 6.0),
        (2, "owner", 3.0, 1.5, 3.0),
        (2, "steal", 2.0, 1.0, 3.0),
        (4, "owner", 2.0, 2.0, 1.5),
    ],
)
def test_ranks_by_hand(job, ranks, balance, train, busiest, evaluate):
    """A round has two clients; an evaluation, and a warm start, are spread over the ranks."""
    measured = MEASURED
    if balance == "steal":  # 10 examples of either rank, in both rounds
        measured = measured._replace(rounds=[TimedRound(1, 2.0), TimedRound(2, 2.0)])
    found = predict(parts(job, f"balance={balance}"), measured, ranks)
    assert found.train == pytest.approx(train)
    assert (found.mean, found.rest) == (0.5, 0.25)
    assert found.busiest == pytest.approx(busiest)
    assert found.evaluate == pytest.approx(evaluate)
    # The job has evaluations of the initial model, after round 2 and after round 4.
    seconds = 4 * (train + 0.75) + 3 * evaluate + 7.0 * 2 / ranks
    assert found.hours * 3600 == pytest.approx(seconds)


@pytest.mark.parametrize("balance", ["owner", "steal"])
def test_the_busiest_is_the_one_of_a_run(job, arrays, balance):
    """Examples counted from the duties that the ranks of a run would have."""
    sizes = (1, 2, 2, 3, 3, 5, 8, 16)
    arrays(client=np.repeat(range(8), sizes))
    job.write_text(job.read_text().replace(", clients: 4, partition: {kind: iid}", ""))
    wanted = ["rounds=30", "cohort.size=4", "local.epochs=2", f"balance={balance}"]
    found = build_components(load(job, wanted), torch.device("cpu"))
    clients = found.population
    work = (lambda t: clients.work_in(clients.participation(t))) if balance == "steal" else None
    ranks = [
        Balance(
            lambda t: clients.participation(t).members, 30, assign_owners(sizes, 3), work, rank, 3
        )
        for rank in range(3)
    ]
    counted = np.array(
        [[sum(2 * sizes[i] for i in r.assignment(t).trained) for r in ranks] for t in range(30)]
    )
    predicted = predict(found, MEASURED, 3).busiest
    assert predicted == pytest.approx(counted.max(axis=1).mean() / counted.mean())
