"""Choose the executor of a job that says ``executor: auto``, by its device, model and cohort.

No clock takes part: the same job gets the same executor, and so the same bits, in every start and
on any number of ranks.  The figures behind the rule are those of docs/benchmarks.md.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib.util import find_spec
from math import ceil
from time import perf_counter
from typing import NamedTuple

import torch
from torch import nn

from hpcfl.algorithms.facts import Cohort
from hpcfl.clients.task import ClientResult, ClientTask
from hpcfl.comm.base import Comm
from hpcfl.engine.hook_rules import known_to_server
from hpcfl.errors import ClientError, JobError
from hpcfl.job.schema import ExecutorName
from hpcfl.local.executor import MAX_BLOCK_SIZE, Executor
from hpcfl.local.triton_kernels.blocks import MOST_HIDDEN
from hpcfl.runs.layout import RunDir
from hpcfl.start.components.components import Components
from hpcfl.start.components.executors import block_error, clients_at_once, make_executor
from hpcfl.start.components.model import Model
from hpcfl.start.load_run import load_run


class Bounds(NamedTuple):
    """On a CPU, blocks are faster than one client at a time inside of these."""

    least_clients: int
    most_parameters: int


THROUGH_AUTOGRAD = Bounds(15, 30_000)
OF_CHAIN = Bounds(20, 5_000)  # where ``DenseChain`` computes one client's gradient
LEAST_EQUAL_SIZE = MAX_BLOCK_SIZE // 2 + 1  # of ``equal_size``
MANY_CLIENTS = ("block", "triton", "lanes")  # executors that pad batches


def choose_executor(
    components: Components, begun_run: RunDir | None
) -> tuple[Components, Sequence[str]]:
    """Settle what a job leaves open: the executor of ``auto``, and how many clients a block has.

    Args:
        components: of a job whose executor is ``auto``, or takes many clients at once.
        begun_run: the run that is resumed, or whose first start ended before its first
            checkpoint; what it has is kept, also on another device.  None for a fresh run.

    Returns:
        The components, and lines for the user.

    Raises:
        JobError: ``begun_run`` has no readable job; or the memory of a GPU is too small.
    """
    asked = components.job
    auto, size = asked.executor == "auto", asked.block_size
    if begun_run is not None:
        begun = load_run(begun_run).job
        name = begun.executor if auto else asked.executor
        if size is None and begun.block_size == equal_size(components):
            size = begun.block_size  # which the start settled; another one is of another job
        size = size if name in MANY_CLIENTS else None
        return with_executor(components, name, size), [_line(name)] * auto
    if not auto:
        return with_equal_blocks(components)
    at_once = size or equal_size(components) or clients_at_once(components)
    is_chain = components.gradient().chain is not None
    names, why = rule(components.model, asked.precision, at_once, is_chain=is_chain)
    if asked.local.accumulate > 1:
        names, why = (), "local.accumulate takes a batch in parts"
    for name in names:
        many = with_executor(components, name, size)
        try:
            check_executor(many)
        except JobError as e:
            if _out_of_memory(e):  # else the choice would depend on what else uses the GPU
                raise
            why = str(e)
        else:
            many, lines = with_equal_blocks(many)
            return many, [_line(name, why), *lines]
    return with_executor(components, "sequential", None), [_line("sequential", why)]


def with_equal_blocks(components: Components) -> tuple[Components, Sequence[str]]:
    """Set ``block_size`` where a cohort takes several blocks and the job has none.

    Returns:
        The components, and a line for the user where it was set.
    """
    job, size = components.job, equal_size(components)
    if job.executor not in MANY_CLIENTS or job.block_size or size is None:
        return components, []
    cohort = components.population.cohort_size
    line = f"block_size: {size} (a cohort of {cohort} in equal blocks)"
    return with_executor(components, job.executor, size), [line]


def equal_size(components: Components) -> int | None:
    """The clients of each of a cohort's equal blocks; None where one block has them all.

    Of 50 clients two blocks of 25: of 32 they would be 64 places, all of which are computed.
    """
    cohort = components.population.cohort_size
    if cohort <= MAX_BLOCK_SIZE:
        return None
    return ceil(cohort / ceil(cohort / MAX_BLOCK_SIZE))


def rule(
    model: Model, precision: str, at_once: int, *, is_chain: bool = False
) -> tuple[Sequence[ExecutorName], str]:
    """The executors for many clients at once in the order in which they are tried, and the reason.

    None of them where one client at a time is faster, or where none can train the model.

    Args:
        model: on the device of the run.
        precision: of the job.
        at_once: how many clients would train together.
        is_chain: whether one client's gradient is computed by ``DenseChain``.
    """
    layers = [layer for layer in model.module.modules() if [*layer.parameters(recurse=False)]]
    recurrent = [layer for layer in layers if isinstance(layer, nn.RNNBase)]
    if model.device.type == "cuda":
        tf32 = precision == "tf32"
        kernels = all(tf32 and layer.hidden_size <= MOST_HIDDEN for layer in recurrent)
        names: list[ExecutorName] = []
        if kernels and find_spec("triton") is not None:
            names.append("triton")
        if at_once <= MAX_BLOCK_SIZE:  # there are no more lanes
            names.append("lanes")
        return tuple(names), "the device is a GPU"
    if recurrent:
        return (), "on a CPU, with recurrent layers"
    if not all(isinstance(layer, nn.Linear) for layer in layers):
        return (), "on a CPU, with layers that are not dense"
    bounds = OF_CHAIN if is_chain else THROUGH_AUTOGRAD
    if model.x0.numel() > bounds.most_parameters:
        return (), f"on a CPU, with more than {bounds.most_parameters} parameters"
    if at_once < bounds.least_clients:
        return (), f"on a CPU, with fewer than {bounds.least_clients} clients at once"
    return ("block",), "on a CPU, with a small model of dense layers"


def require_one_choice(components: Components, comm: Comm) -> None:
    """Collective: refuse ranks that chose differently, as one may be unable to compile kernels.

    Raises:
        JobError: they did, on every rank.
    """
    names = comm.allgather(components.job.executor)
    for rank, name in enumerate(names):
        if name != names[0]:
            raise JobError(
                f"executor: auto chose {names[0]} on rank 0 and {name} on rank {rank}, whose bits "
                "differ; say which one (executor=lanes), or give all hosts the same software",
                collective=True,
            )


def _line(executor: ExecutorName, why: str = "as this run has begun") -> str:
    return f"executor: {executor} (auto: {why})"


def _out_of_memory(error: BaseException | None) -> bool:
    while error is not None and not isinstance(error, torch.OutOfMemoryError):
        error = error.__cause__
    return error is not None


def with_executor(
    components: Components, executor: ExecutorName, block_size: int | None
) -> Components:
    """The components with this executor in their job."""
    loaded = components.loaded
    job = replace(loaded.job, executor=executor, block_size=block_size)
    return components.with_job(replace(loaded, job=job))


def check_executor(components: Components) -> None:
    """Check that the executor works: train two clients for a step, if it takes many at once.

    It stands here and not in ``hpcfl.start.checks``, as ``executor: auto`` is decided by it, too.

    Raises:
        JobError: the model or the algorithm does not work for many clients at once; without this
            check, round 1 would fail.
    """
    executor = components.job.executor
    if executor in MANY_CLIENTS:
        # Two show what vmap over clients cannot do, and take less memory than a whole block.
        two = with_executor(components, executor, min(2, len(components.population.rows)))
        try:
            step_timer(two, make_executor(two, two.gradient()), 1)()
        except ClientError as e:
            raise block_error(components, e) from e
        finally:
            components.population.clients.pop_elapsed_s()  # round 1 must not count these batches


def step_timer(components: Components, executor: Executor, clients: int) -> Callable[[], float]:
    """Return a function that trains clients for one local step and returns the seconds it took.

    Args:
        components: of the job.
        executor: that trains them.
        clients: how many, from client 0 on; ids repeat where the job has fewer.
    """
    pool, x0 = components.population.clients, components.model.x0
    ids = [client % len(pool) for client in range(clients)]

    def train() -> float:
        tasks = [pool.task(client, 0, steps=1) for client in ids]
        began = perf_counter()
        train_once(components, executor, tasks)
        if x0.device.type == "cuda":
            torch.cuda.synchronize(x0.device)
        return perf_counter() - began

    return train


def train_once(
    components: Components, executor: Executor, tasks: Sequence[ClientTask]
) -> list[ClientResult]:
    """Train clients from the initial model and their first states, with full gradients of zero."""
    algorithm, x0 = components.training.algorithm, components.model.x0
    states = [components.first_state(task.client_id) for task in tasks]
    zeros = [torch.zeros_like(x0)] * components.training.schema.points
    cohort = Cohort(
        0, len(tasks), len(components.population.rows), 1.0, known_to_server(algorithm, zeros)
    )
    message = algorithm.broadcast(algorithm.init_server(x0), cohort)
    if zeros:
        tasks = [task._replace(client=task.client._replace(full_grad=zeros[0])) for task in tasks]
    return executor.train(message, tasks, states)
