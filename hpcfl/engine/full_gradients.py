"""Take the full gradients that clients compute before local training."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcfl.algorithms.facts import Cohort
from hpcfl.clients.task import ClientTask
from hpcfl.engine.dry_round import FullGradient, Traffic, nbytes
from hpcfl.engine.requests import RoundRequests
from hpcfl.engine.run import Run
from hpcfl.local.joined import at_statistics, split
from hpcfl.types import Vector

LocalValues = Callable[[], NDArray[np.float64]]


def take_full_gradients(
    run: Run,
    server: Any,
    cohort: Cohort,
    tasks: list[ClientTask],
    local_values: LocalValues,
) -> tuple[Cohort, list[ClientTask], Traffic]:
    """Collective: take the full gradients of a round, where the algorithm asks for them.

    Args:
        run: the objects of the run.
        server: before the round; the algorithm names the points by it.
        cohort: the round's.
        tasks: of this rank's clients.
        local_values: gives this rank's ``local_values``.

    Returns:
        The cohort with the means, the tasks with the gradients of their clients, and the traffic.

    Raises:
        ClientError: on this rank alone: a client's data or the model raised.
        DivergedError: a gradient is not finite.
    """
    scope = run.algorithm.full_gradient
    if scope == "none":
        return cohort, tasks, Traffic(0, 0)
    points = run.algorithm.full_gradient_points(server)
    # In evaluation mode, by the running statistics that the clients receive.
    taken_at = [at_statistics(point, split(server).statistics) for point in points]
    gradients = run.training.executor.full_gradients(taken_at, tasks)
    run.timer.mark("compute")
    down, up = cohort.size * nbytes(points[1:]), 0  # the message has the first of the points
    if scope == "server":
        clients = [task.client_id for task in tasks]
        means = []
        for at_point in range(len(points)):
            own = [of_client[at_point] for of_client in gradients]
            mean, sent, _ = plain_mean(
                run, own, clients, cohort.size, cohort.round + 1, local_values
            )
            means.append(mean)
            up += sent
        cohort = cohort._replace(grads=tuple(means))
    tasks = [
        task._replace(client=task.client._replace(full_grad=of_client[0]))
        for task, of_client in zip(tasks, gradients, strict=True)
    ]
    return cohort, tasks, Traffic(down, up)


def plain_mean(
    run: Run,
    gradients: Sequence[Vector],
    clients: Sequence[int],
    size: int,
    round: int,
    local_values: LocalValues,
) -> tuple[Vector, int, NDArray[np.float64]]:
    """Collective: the plain mean of full gradients; the bytes sent; the maxima over ranks.

    Args:
        run: the objects of the run.
        gradients: one for each of this rank's clients.
        clients: the numbers of these clients.
        size: the number of clients over all ranks.
        round: for the error message.
        local_values: gives this rank's ``local_values``, of which the maxima are taken.

    Raises:
        DivergedError: on every rank: a gradient is not finite.
    """
    own, ones = [FullGradient(gradient) for gradient in gradients], [1.0] * len(clients)
    (mean,), up, maxima = run.full_gradients.mean(
        own,
        clients=clients,
        weights=ones,
        total=size,
        cohort=size,
        local_values=local_values(),
        round=round,
    )
    run.timer.record_wait(RoundRequests.metrics(maxima))
    return mean, up, maxima
