"""Make the executor that a job names: one client after the other, in blocks, or in lanes."""

from collections.abc import Sequence
from importlib.util import find_spec

from hpcfl.errors import HpcflError, JobError, one_line
from hpcfl.job.resolve import check_full_blocks
from hpcfl.local.block import block_executor
from hpcfl.local.executor import MAX_BLOCK_SIZE, Executor
from hpcfl.local.gradient import Gradient
from hpcfl.local.lanes import lane_executor
from hpcfl.local.sequential import Sequential
from hpcfl.start.components.components import Components


def make_executor(components: Components, gradient: Gradient) -> Executor:
    """The object that trains the clients of a round.

    Raises:
        JobError: the model cannot be trained for many clients at once, as the job wants; lanes
            or Triton without a GPU; Triton is not installed; or the executor is ``auto``, which is
            resolved when a run starts.
    """
    training = components.training
    shared = [field.shared for field in training.schema.client_state.fields]
    one = Sequential(components.job.algorithm, gradient, training.descent)
    return executor_of(components, one, shared=shared)


def executor_of(components: Components, one: Sequential, *, shared: Sequence[bool]) -> Executor:
    """The executor of the job's kind for an algorithm that may be another than the job's.

    Args:
        components: of the job.
        one: trains one client after the other.
        shared: of each field of a client's state, whether the clients of a round share it.

    Raises:
        JobError: as for ``make_executor``.
    """
    job, clients, x0 = components.job, components.population.clients, components.model.x0
    if job.executor == "sequential":
        return one
    if job.executor == "auto":
        raise JobError(
            "executor: auto is chosen when a run begins; say sequential, block, triton or lanes"
        )
    if job.executor in ("lanes", "triton") and x0.device.type != "cuda":
        raise JobError(
            f"executor: found {job.executor} on a CPU, and it needs a GPU; say "
            "executor=sequential, or executor=block"
        )
    if job.executor == "triton" and find_spec("triton") is None:
        raise JobError(
            "executor: found triton, but Triton is not installed; a CUDA build of torch for "
            "Linux brings it; or say executor=block"
        )
    size = clients_at_once(components)
    if job.executor == "lanes" and size > MAX_BLOCK_SIZE:
        raise JobError(
            f"block_size: found {size}, and {MAX_BLOCK_SIZE} lanes are "
            "the most, as torch has no more streams; set a smaller one"
        )
    check_full_blocks(job, len(clients))
    try:
        if job.executor == "lanes":
            return lane_executor(one, clients, x0, shared=shared, size=size)
        triton = job.executor == "triton"
        return block_executor(one, clients, x0, shared=shared, size=size, triton=triton)
    except HpcflError:
        raise
    except Exception as e:
        raise block_error(components, e) from e


def block_error(components: Components, error: Exception) -> JobError:
    """The error to raise where the model cannot be trained for many clients at once."""
    names = (components.loaded.names[section] for section in ("algorithm", "model"))
    return JobError(
        f"executor: {components.job.executor} cannot train {' with '.join(names)} for many clients "
        f"at once ({one_line(str(error))}); say executor=sequential"
    )


def clients_at_once(components: Components) -> int:
    """Clients that train at once, or that may, where the executor is still to be chosen.

    A begun run without a ``block_size`` has blocks of at most 32: earlier versions made no equal
    ones (``hpcfl.start.components.choose_executor.with_equal_blocks``).
    """
    job = components.job
    if job.executor == "sequential":
        return 1
    return job.block_size or min(MAX_BLOCK_SIZE, components.population.cohort_size)


def unused_places(components: Components, clients: int, who: str) -> str | None:
    """A line for the user where a block has more places than a rank has clients in a round.

    Args:
        components: of the job.
        clients: that a rank trains in a round.
        who: they in words.
    """
    size = clients_at_once(components)
    if components.job.executor not in ("block", "triton") or not 0 < clients < size:
        return None
    return (
        f"a block of {size} places for {who}: those without a client are computed too; "
        f"block_size={clients} leaves none, nor do lanes on GPUs"
    )
