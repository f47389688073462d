"""``executor: auto``: time both executors on a step of the job's clients, and take the faster one.

Rank 0 measures, before round 1, and tells the others.  What it chose is the job's executor from
then on, in job.yaml too: bits depend on it, so it is never chosen again.
"""

import json
from collections.abc import Callable
from dataclasses import replace
from statistics import median
from time import perf_counter
from typing import NamedTuple

import torch

from hpcfl.comm.base import Comm
from hpcfl.comm.failure import raise_collectively
from hpcfl.errors import ClientError, JobError
from hpcfl.job.schema import ExecutorName, Loaded
from hpcfl.local.executor import MAX_BLOCK_SIZE, Executor
from hpcfl.run_dir.layout import RunDir
from hpcfl.run_dir.load_job import load_run
from hpcfl.runner.components import Components

BUDGET_S = 0.7  # for each executor, unless a single step takes longer
WARM = {"cpu": 1, "cuda": 5}  # plays that do not count: torch's own choices, a graph's recording


class Choice(NamedTuple):
    """What was chosen and why: seconds of a local step of one client."""

    executor: ExecutorName
    block_size: int
    sequential_s: float
    block_s: float | None
    """None where the model cannot be played for many clients at once."""
    why: str = ""
    """Then, what it said."""

    def __str__(self) -> str:
        one = f"{1e3 * self.sequential_s:.3g} ms"
        if self.block_s is None:
            return f"executor: sequential ({one} a step of a client), because {self.why}"
        many = f"{1e3 * self.block_s:.3g} ms in blocks of {self.block_size}"
        return f"executor: {self.executor} (a step of a client: {one} alone, {many})"


def choose_executor(parts: Components, comm: Comm, begun: RunDir | None) -> tuple[Components, str]:
    """Collective: the parts with an executor in place of ``auto``, and a line that says which.

    Args:
        parts: of the job that says ``auto``.
        comm: the ranks; rank 0 measures.
        begun: the run that goes on, which has its executor.

    Raises:
        JobError: ``begun`` has no readable job.
    """
    if begun is not None:
        with raise_collectively(comm):
            job = load_run(begun).job
        return with_executor(parts, job.executor, job.block_size), f"executor: {job.executor}"
    said = ""
    with raise_collectively(comm):
        if comm.rank == 0:
            said = json.dumps(_measure(parts, comm.size))
    choice = Choice(*json.loads(comm.bcast(said)))
    size = choice.block_size if choice.executor == "block" else None
    return with_executor(parts, choice.executor, size), str(choice)


def with_executor(parts: Components, executor: ExecutorName, block_size: int | None) -> Components:
    """The parts of the job that names its executor."""
    loaded = parts.loaded
    job = replace(loaded.job, executor=executor, block_size=block_size)
    tree = {**loaded.tree, "executor": executor, "block_size": block_size}
    return replace(parts, loaded=Loaded(job, tree, loaded.name))


def check(parts: Components) -> None:
    """Play a step of two clients at once, where the job asks for many.

    Raises:
        JobError: the model or the algorithm cannot; it would be found in round 1 otherwise.
    """
    if parts.job.executor == "block":
        two = with_executor(parts, "block", min(2, len(parts.rows)))
        try:
            one_step(two, two.executor(two.gradient()), 1)()
        except ClientError as e:
            raise parts.unfit(e) from e


def _measure(parts: Components, ranks: int) -> Choice:
    one = with_executor(parts, "sequential", None)
    alone = _seconds(one, one.executor(one.gradient()), 1)
    # A rank's share of a cohort, or most places of every block would stay empty.
    size = parts.job.block_size or min(MAX_BLOCK_SIZE, -(-parts.cohort // ranks))
    many = with_executor(parts, "block", size)
    try:
        check(many)
        beside = _seconds(many, many.executor(many.gradient()), size)
    except (JobError, ClientError) as e:  # a GPU's memory may be too small for a whole block
        return Choice("sequential", size, alone, None, str(e))
    return Choice("block" if beside < alone else "sequential", size, alone, beside)


def _seconds(parts: Components, executor: Executor, clients: int) -> float:
    """What a client's local step takes among so many."""
    play, warm = one_step(parts, executor, clients), WARM[parts.device.type]
    times: list[float] = []
    while len(times) < warm + 1 or sum(times[warm:]) < BUDGET_S:
        times.append(play())
        if sum(times) > BUDGET_S and parts.device.type == "cpu":
            break
    return median(times[warm:] or times) / clients


def one_step(parts: Components, executor: Executor, clients: int) -> Callable[[], float]:
    """Plays one local step of the first clients; returns seconds."""
    algorithm, population, x0 = parts.algorithm, parts.clients, parts.x0
    message = algorithm.broadcast(algorithm.init_server(x0))
    who = [client % len(population) for client in range(clients)]
    states = [parts.first_state(client) for client in who]
    surveyed = torch.zeros_like(x0 if algorithm.full_gradient != "none" else x0[:0])

    def play() -> float:
        tasks = [population.task(client, 0, steps=1) for client in who]
        tasks = [
            task._replace(client=task.client._replace(full_grad=surveyed, cohort_grad=surveyed))
            for task in tasks
        ]
        began = perf_counter()
        executor.train(message, tasks, states)
        if x0.device.type == "cuda":
            torch.cuda.synchronize(x0.device)
        return perf_counter() - began

    return play
