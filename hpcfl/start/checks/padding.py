"""Find a method of the user's that counts the padding of a batch as examples."""

from dataclasses import replace

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from hpcfl.clients.task import BatchIndices, ClientTask
from hpcfl.local.sequential import Sequential
from hpcfl.start.components.choose_executor import MANY_CLIENTS, train_once, with_executor
from hpcfl.start.components.components import Components
from hpcfl.start.components.executors import make_executor
from hpcfl.types import Batch

# Of the norm of an upload: rounding is far below, and what padding changes is mostly far above.
_TOLERANCE = {"float64": 1e-9, "float32": 1e-4, "tf32": 1e-2, "bf16": 5e-2}


def padding_notes(components: Components) -> tuple[str, ...]:
    """Compare a step of a padded batch with the same step of the batch alone.

    Returns:
        A line if they differ and the algorithm is the user's.
    """
    job, pool = components.job, components.population.clients
    own = type(job.algorithm).__module__.partition(".")[0] != "hpcfl"
    if not own or job.executor not in MANY_CLIENTS or len(pool) == 1:
        return ()
    # By plain SGD: Adam makes of a gradient that is rounding, as before a normalisation, a step.
    # It leaves a kept state of the job's optimiser as it is.
    plain = replace(job, local=replace(job.local, optimizer="sgd", keep_optimizer=None))
    loaded = replace(components.loaded, job=plain)
    two = with_executor(components.with_job(loaded), job.executor, 2)
    gradient = two.gradient()
    sizes = [len(next(pool.task(client, 0, steps=1).batch_indices).positions) for client in (0, 1)]
    kept = min(sizes[1], sizes[0] - 1)
    if kept < 1:
        return ()
    together = train_once(
        two,
        make_executor(two, gradient),
        [pool.task(0, 0, steps=1), _first(pool.task(1, 0, 1), kept)],
    )
    one = Sequential(two.job.algorithm, gradient, two.training.descent)
    (alone,) = train_once(two, one, [_first(pool.task(1, 0, 1), kept)])
    pool.pop_elapsed_s()  # round 1 must not count these batches
    apart = max(map(_difference, tree_leaves(together[1].upload), tree_leaves(alone.upload)))
    if not apart > _TOLERANCE[job.precision]:  # nan, where full gradients of 0 are divided by
        return ()
    name = components.loaded.names["algorithm"]
    return (
        f"algorithm.name: {name}: an upload changes by {apart:.2g} of its norm where its batch of "
        f"{kept} is filled up in a block; if its hooks sum over the batch, multiply "
        "by forward.present",
    )


def _first(task: ClientTask, examples: int) -> ClientTask:
    """The task of one step, with the first so many examples of its batch."""
    batch, indices = next(task.batches), next(task.batch_indices)
    draws = None if indices.draws is None else indices.draws[:examples]
    return task._replace(
        batches=iter([Batch(batch.inputs[:examples], batch.labels[:examples])]),
        batch_indices=iter([BatchIndices(indices.positions[:examples], draws)]),
    )


def _difference(found: Tensor, expected: Tensor) -> float:
    """The norm of a difference, relative to what is expected."""
    wide, other = found.double(), expected.double()
    norm = float(torch.linalg.vector_norm(other))
    apart = float(torch.linalg.vector_norm(wide - other))
    return apart / norm if norm else apart
