"""Choose the executor of a job that says ``executor: auto``: time both, and take the faster one.

Rank 0 measures before round 1 and broadcasts its choice, which is then the job's executor, in
job.yaml too: the bits of the results depend on it, so a resume must not choose again.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from statistics import median
from time import perf_counter
from typing import NamedTuple

import torch

from hpcfl.cohort.assignment import assign_owners
from hpcfl.comm.base import Comm
from hpcfl.comm.failure import from_rank_0, raise_collectively
from hpcfl.errors import ClientError, JobError
from hpcfl.job.schema import ExecutorName
from hpcfl.local.executor import MAX_BLOCK_SIZE, Executor
from hpcfl.run_dir.layout import RunDir
from hpcfl.run_dir.load_run import load_run
from hpcfl.runner.components import Components

BUDGET_S = 0.7  # for each executor, unless a single step takes longer
SAMPLED = 20  # rounds, at least, whose cohorts are drawn
WARM = {"cpu": 1, "cuda": 5}  # steps before the timed ones: kernel selection, graph capture


class Choice(NamedTuple):
    """The chosen executor, and the seconds of one client's local step by each executor."""

    executor: ExecutorName
    block_size: int
    sequential_s: float
    block_s: float | None
    """Idle steps included: those of clients that have finished while others of their block have
    not.  None where the model cannot be trained in blocks of clients."""
    idle: float = 0.0
    """The share of idle steps."""
    why: str = ""
    """Why it cannot; empty if it can."""

    def __str__(self) -> str:
        one = f"{1e3 * self.sequential_s:.3g} ms"
        if self.block_s is None:
            return f"executor: sequential ({one} a step of a client), because {self.why}"
        many = f"{1e3 * self.block_s:.3g} ms in blocks of {self.block_size}"
        if self.idle >= 0.01:
            many += f", {self.idle:.0%} of whose steps are idle"
        return f"executor: {self.executor} (a step of a client: {one} alone, {many})"


def choose_executor(
    components: Components, comm: Comm, resumed_run: RunDir | None
) -> tuple[Components, str]:
    """Collective: replace ``auto`` by an executor; the components, and a line for the user.

    Args:
        components: of a job with ``executor: auto``.
        comm: the group of ranks; rank 0 measures.
        resumed_run: the run that is resumed, or whose first start ended before its first
            checkpoint; its executor is kept.  None for a fresh run.

    Raises:
        JobError: ``resumed_run`` has no readable job.
    """
    if resumed_run is not None:
        with raise_collectively(comm):
            job = load_run(resumed_run).job
        size = job.block_size
        if job.executor == "block":  # a size that the user asks for may be refused as another job
            size = components.job.block_size or size
        line = f"executor: {job.executor}, as this run chose before"
        return with_executor(components, job.executor, size), line
    choice = Choice(*from_rank_0(comm, partial(_measure, components, comm.size)))
    size = choice.block_size if choice.executor == "block" else None
    return with_executor(components, choice.executor, size), str(choice)


def with_executor(
    components: Components, executor: ExecutorName, block_size: int | None
) -> Components:
    """The components with this executor in their job."""
    loaded = components.loaded
    job = replace(loaded.job, executor=executor, block_size=block_size)
    tree = {**loaded.tree, "executor": executor, "block_size": block_size}
    return components.changed(loaded=replace(loaded, job=job, tree=tree))


def check_block_executor(components: Components) -> None:
    """Check that blocks work: train two clients for a step, if the job's executor is ``block``.

    Raises:
        JobError: the model or the algorithm does not work in blocks; without this check, round 1
            would fail.
    """
    if components.job.executor == "block":
        two = with_executor(components, "block", min(2, len(components.rows)))
        try:
            step_timer(two, two.executor(two.gradient()), 1)()
        except ClientError as e:
            raise components.block_error(e) from e
        finally:
            components.clients.pop_elapsed_s()  # round 1 must not count these batches


def _measure(components: Components, ranks: int) -> Choice:
    one = with_executor(components, "sequential", None)
    sequential_s = _seconds(one, one.executor(one.gradient()), 1)
    # At most a rank's share of a cohort: larger blocks would be padded with idle clients.
    size = components.job.block_size or min(MAX_BLOCK_SIZE, -(-components.cohort // ranks))
    many = with_executor(components, "block", size)
    try:
        check_block_executor(many)
        block_s = _seconds(many, many.executor(many.gradient()), size)
    except (JobError, ClientError) as e:  # a GPU's memory may be too small for a whole block
        return Choice("sequential", size, sequential_s, None, why=str(e))
    finally:
        components.clients.pop_elapsed_s()  # round 1 must not count these batches
    idle = idle_share(components, ranks, size)
    block_s /= 1 - idle
    faster: ExecutorName = "block" if block_s < sequential_s else "sequential"
    return Choice(faster, size, sequential_s, block_s, idle)


def idle_share(components: Components, ranks: int, size: int) -> float:
    """The share of the block executor's local steps in which a place of a block trains no client.

    A block takes as many steps as its client with the most, and the last block of a rank may have
    fewer clients than places.

    Args:
        components: of the job; the cohorts of some of its rounds are drawn.
        ranks: how many there are; each trains the clients that it owns.
        size: clients in a block.
    """
    job, steps = components.job, components.clients.steps_per_round
    owner = assign_owners(components.clients.examples, ranks)
    trained = taken = 0
    for t in range(0, job.rounds, max(1, job.rounds // SAMPLED)):
        members = job.cohort.draw(t, len(steps), job.seed)
        for rank in range(ranks):
            work = steps[members[owner[members] == rank]]
            trained += int(work.sum())
            taken += size * sum(int(work[k : k + size].max()) for k in range(0, len(work), size))
    return 1 - trained / taken if taken else 0.0


def _seconds(components: Components, executor: Executor, clients: int) -> float:
    """Median seconds of one client's local step, where ``clients`` are trained at once."""
    train, warm = step_timer(components, executor, clients), WARM[components.device.type]
    times: list[float] = []
    while len(times) < warm + 1 or sum(times[warm:]) < BUDGET_S:
        times.append(train())
        # On a CPU, a step longer than the budget is timed once, without a warm-up.
        if sum(times) > BUDGET_S and components.device.type == "cpu":
            break
    return median(times[warm:] or times) / clients


def step_timer(components: Components, executor: Executor, clients: int) -> Callable[[], float]:
    """Return a function that trains clients for one local step and returns the seconds it took.

    Args:
        components: of the job.
        executor: that trains them.
        clients: how many, from client 0 on; ids repeat where the job has fewer.
    """
    algorithm, pool, x0 = components.algorithm, components.clients, components.x0
    message = algorithm.broadcast(algorithm.init_server(x0))
    ids = [client % len(pool) for client in range(clients)]
    states = [components.first_state(client) for client in ids]
    full_grad = torch.zeros_like(x0 if algorithm.full_gradient != "none" else x0[:0])

    def train() -> float:
        tasks = [pool.task(client, 0, steps=1) for client in ids]
        tasks = [
            task._replace(client=task.client._replace(full_grad=full_grad, cohort_grad=full_grad))
            for task in tasks
        ]
        began = perf_counter()
        executor.train(message, tasks, states)
        if x0.device.type == "cuda":
            torch.cuda.synchronize(x0.device)
        return perf_counter() - began

    return train
