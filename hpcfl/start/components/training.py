"""How a job trains: its algorithm, what the algorithm keeps and sends, and the local optimiser."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from hpcfl.algorithms.base import Algorithm
from hpcfl.algorithms.optim import Descent
from hpcfl.engine.carried import Carrying
from hpcfl.engine.dry_round import MAX_ZEROS, RoundSchema, dry_round
from hpcfl.engine.hook_rules import hook_advice
from hpcfl.errors import JobError, as_job_error
from hpcfl.job.resolve import carried_statistics
from hpcfl.job.schema import Job, LoadedJob
from hpcfl.models.statistics import normalises_batches
from hpcfl.start.components.model import Model
from hpcfl.store.schema import STORED, StateSchema
from hpcfl.types import Vector


@dataclass(frozen=True)
class Training:
    """The algorithm and the optimiser of a job; made by ``make_training``."""

    algorithm: Algorithm
    """With its defaults resolved, and with what hpcfl carries beside its tensors."""
    schema: RoundSchema
    """The form of its messages, uploads and states."""
    stored_state: StateSchema
    """The shape of a client's state in its store."""
    descent: Descent
    """The optimiser of the local steps."""


def make_training(loaded: LoadedJob, model: Model) -> Training:
    """Do the dry round of an algorithm whose defaults are resolved.

    Raises:
        JobError: it fails.
    """
    job, x0, descent = loaded.job, model.x0, loaded.job.local.descent(model.layout)
    algorithm = carrying(job, job.algorithm, model.initial_statistics, descent)
    if job.local.keep_optimizer:
        _check_kept(job, descent, x0)
    name = f"algorithm.name: {loaded.names['algorithm']}"
    with as_job_error(name, "its dry round failed", "", job.algorithm, advice=hook_advice):
        schema = dry_round(algorithm, x0.numel(), x0.dtype, descent)
    if job.local.accumulate > 1:
        _check_parts(loaded, model, schema)
    return Training(algorithm, schema, stored(job, schema), descent)


def _check_kept(job: Job, descent: Descent, x0: Vector) -> None:
    """Refuse an optimiser whose state a store cannot keep.

    Raises:
        JobError: it is none of tensors, of dtypes that are stored, whose form a step leaves alone.
    """
    optimizer = job.local.optimizer
    name = optimizer if isinstance(optimizer, str) else getattr(optimizer, "of", optimizer.kind)
    at = f"local.keep_optimizer: {name}"
    y = torch.zeros_like(x0, device="meta" if x0.numel() > MAX_ZEROS else "cpu")
    with as_job_error(at, "its state cannot be kept", "", optimizer, advice=hook_advice):
        state = descent.init(y)
        _, after = descent.step(y, y, state)
    for leaf in tree_leaves(state):
        if not isinstance(leaf, Tensor) or leaf.dtype not in STORED:
            what = leaf.dtype if isinstance(leaf, Tensor) else type(leaf).__name__
            known = ", ".join(map(str, STORED))
            raise JobError(
                f"{at} has a state with a {what}, which is not stored; expected tensors of {known}"
            )
    found, expected = _form(after), _form(state)
    if found != expected:
        raise JobError(
            f"{at} has a state of another form after a step: found {found}, expected that of its "
            f"init, {expected}"
        )
    if not any(leaf.numel() for leaf in tree_leaves(state)):
        raise JobError(f"{at} has no state to keep; set local.keep_optimizer=false")


def _check_parts(loaded: LoadedJob, model: Model, schema: RoundSchema) -> None:
    """Refuse batches in parts where a part is not computed as in the whole batch.

    Raises:
        JobError: the model normalises over its batch, or the algorithm looks at the whole batch.
    """
    at = f"local.accumulate: found {loaded.job.local.accumulate}"
    cure = "set local.accumulate=1"
    if normalises_batches(model.module):
        raise JobError(
            f"{at}, but model.name: {loaded.names['model']} normalises by the statistics of its "
            f"batch, of which a part has others; {cure}, or model.statistics=frozen"
        )
    if schema.forwards or schema.own_losses:
        raise JobError(
            f"{at}, but algorithm.name: {loaded.names['algorithm']} has a loss of its own, which "
            f"may depend on the outputs of the whole batch; {cure}"
        )


def _form(state: Any) -> str:
    """The fields, shapes and dtypes of an optimiser's state, as text."""
    return str(tree_map(lambda leaf: (*leaf.shape, leaf.dtype), state))


def carrying(job: Job, algorithm: Algorithm, initial: Vector | None, descent: Descent) -> Algorithm:
    """The algorithm, with what hpcfl carries beside its tensors in this job; itself without any.

    Args:
        job: says who has running statistics, and whether clients keep their optimiser's state.
        algorithm: of the job, or of the run that it branches from.
        initial: [Q], the running statistics of the model as it was made, if it has any.
        descent: the optimiser of the local steps.
    """
    carried = carried_statistics(job)
    statistics = None if carried is None else initial
    kept = descent if job.local.keep_optimizer else None
    if statistics is None and kept is None:
        return algorithm
    return Carrying(algorithm, statistics, carried, kept)


def stored(job: Job, schema: RoundSchema) -> StateSchema:
    """The shape of a client's state in its store."""
    dtype = job.store.dtype
    return (
        schema.client_state
        if dtype is None
        else schema.client_state.narrowed(getattr(torch, dtype))
    )
