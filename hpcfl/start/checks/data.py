"""Check the data of a job: numbers in range, batches that can be made again, rows of their own."""

import math
from functools import partial
from inspect import isfunction
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hpcfl.data.base import DRAWS, Transform, augments
from hpcfl.data.finite import peaks, row_not_finite
from hpcfl.data.named_inputs import NamedInputs
from hpcfl.errors import JobError
from hpcfl.models.training_loss import OwnLoss
from hpcfl.seeds import stream
from hpcfl.start.checks.trial import Trial, defined_transform
from hpcfl.start.components.components import Components
from hpcfl.types import Batch, Stored
from hpcfl.user_code.generators import generators

ROWS = 8  # that a transform makes inputs of, together and one by one
# Of the largest input: a float32 sum over the rows of a batch in another order differs by less, a
# mean or a maximum taken over other rows by more.
ROUNDING = 1e-4
_HPCFL = __name__.partition(".")[0]


def check_range(components: Components) -> None:
    """Refuse examples that are not finite any more in the model's dtype.

    Raises:
        JobError: a number in the data is too large.
    """
    dataset, dtype = components.population.dataset, components.model.x0.dtype
    for examples in filter(None, (dataset.train, dataset.test)):
        for tensor in (*_tensors(examples.inputs, dataset.named), examples.labels):
            if tensor.dtype != torch.float64 or not tensor.numel() or dtype == torch.float64:
                continue
            largest = max(abs(end.item()) for end in torch.aminmax(tensor))
            if torch.finfo(dtype).max < largest < math.inf:  # inf itself: ``check_finite``
                raise JobError(
                    f"data: holds numbers up to {largest:.3g}, which are infinite in "
                    f"{str(dtype).removeprefix('torch.')}; scale them, or set precision: float64"
                )


def check_finite(trial: Trial) -> None:
    """Refuse examples in memory that are not finite; a transform may replace such inputs.

    Of a file that is mapped into memory, which may be larger than it, the batches of the trial are
    looked at alone.

    Raises:
        JobError: a number in the data is not finite.
    """
    dataset = trial.components.population.dataset
    for part, examples in (("train", dataset.train), ("test", dataset.test)):
        if examples is None or dataset.mapped:
            continue
        inputs, labels = examples
        row = row_not_finite(peaks(labels))
        if row is not None:
            raise _not_finite(trial, "labels", f"row {row} of {part}")
        # A client's own transform may replace numbers, too: its batches show that.
        if not isinstance(inputs, Tensor) or not len(labels) or dataset.personal is not None:
            continue
        highest = np.maximum.reduce([peaks(one) for one in _tensors(inputs, dataset.named)])
        for wrong in (np.isnan, np.isinf):  # a transform may replace one of the two alone
            for row in np.flatnonzero(wrong(highest))[:1].tolist():
                one = trial.batch_of(inputs[row : row + 1], labels[row : row + 1])
                require_finite(trial, one, f"row {row} of {part}")
        if part == "train" and highest.any():
            row = int(np.nan_to_num(highest, posinf=0.0).argmax())
            one = trial.batch_of(inputs[row : row + 1], labels[row : row + 1])
            trial.largest = f"row {row} of train", one


def require_finite(trial: Trial, batch: Batch, where: str) -> None:
    """Refuse a batch whose numbers are not finite.

    Args:
        trial: of the job.
        batch: that was made.
        where: its examples are from, for the message.

    Raises:
        JobError: one is not.
    """
    for name, tensor in (*trial.inputs_of(batch).items(), ("labels", batch.labels)):
        if not bool(tensor.isfinite().all()):
            raise _not_finite(trial, name, where)


def _not_finite(trial: Trial, name: str, where: str) -> JobError:
    return JobError(
        f"{trial.name('data', 'kind')}: {name} of {where}: nan or inf, expected finite numbers"
    )


def _tensors(inputs: Tensor | Stored, named: NamedInputs | None) -> list[Tensor]:
    """The inputs that are in memory [n, ...], one by one where they have names."""
    if not isinstance(inputs, Tensor):
        return []
    return [*named.unpack(inputs).values()] if named else [inputs]


def class_notes(components: Components) -> tuple[str, ...]:
    """A line on training labels that are all of one class, which every model learns to say."""
    dataset = components.population.dataset
    labels = dataset.train.labels
    of_classes = dataset.loss == "cross_entropy" and dataset.classes is not None
    own = isinstance(components.job.loss, OwnLoss)  # it may look at no labels
    if own or not of_classes or bool((labels != labels[0]).any()):
        return ()
    return (
        f"warning: data.kind: {components.loaded.names['data']}: all {len(labels)} training "
        f"labels are of class {int(labels[0])}: there is nothing to tell apart; look at the labels",
    )


def check_batches(trial: Trial) -> None:
    """Make the first batch of each client twice.

    Raises:
        JobError: one cannot be made, draws from a global generator, or is another one when it is
            made again; or its numbers are not finite.
    """
    for client in trial.clients:
        trial.batches[client] = _batch(trial, client)
        require_finite(trial, trial.batches[client], f"the first batch of client {client}")
        _check_repeated(trial, client)


def check_rows(trial: Trial) -> None:
    """Refuse a user's transform that makes other inputs of a row alone than among others.

    Differences as by rounding pass: a sum over rows may be taken in another order.
    """
    dataset = trial.components.population.dataset
    transforms = [dataset.transform, *([dataset.personal(0)] if dataset.personal else [])]
    for transform in transforms:
        if _module_of(transform).partition(".")[0] != _HPCFL and not _by_row(trial, transform):
            raise JobError(
                f"{trial.name('data', 'kind')}: its transform{defined_transform(transform)} makes "
                "other inputs of a row alone than of the same row among others, so that a client's "
                "result depends on who is trained beside it; let it make each input of that row, "
                "its draw and constants"
            )


def _batch(trial: Trial, client: int) -> Batch:
    """The first batch of a client in round 1."""
    with trial.data_errors():
        before = generators()
        batch = next(trial.components.population.clients.task(client, 0, steps=1).batches)
        trial.check_undrawn(before, "data", "kind", "its transform", "use the draws")
    return batch


def _check_repeated(trial: Trial, client: int) -> None:
    """Refuse a transform that gives other inputs when a batch is made again."""
    pairs = zip(trial.batches[client], _batch(trial, client), strict=True)
    if not all(torch.equal(old, new) for old, new in pairs):
        raise JobError(
            f"{trial.name('data', 'kind')}: its transform{trial.in_transform} gave other inputs "
            "when a batch was made again; expected what follows from the stored rows and the "
            "draws alone"
        )


def _by_row(trial: Trial, make: Transform) -> bool:
    """Whether a transform makes the same inputs of a few rows together and one by one."""
    dataset, dtype = trial.components.population.dataset, trial.components.model.x0.dtype
    with trial.data_errors():
        count = min(ROWS, len(dataset.train.labels))
        rows = dataset.sample(count).to(trial.components.device)
        drawn = stream(0, "transform").integers(DRAWS, size=count)
        draws = torch.from_numpy(drawn).to(rows.device) if augments(make) else None
        together = make(rows.clone(), dtype, draws)
        alone = [
            make(rows[k : k + 1].clone(), dtype, None if draws is None else draws[k : k + 1])
            for k in range(count)
        ]
    if any(one.shape[1:] != together.shape[1:] for one in alone):
        return False
    made, other = together.double(), torch.cat(alone).double()
    largest = float(made.nan_to_num().abs().max())
    return made.shape == other.shape and torch.allclose(
        made, other, rtol=0.0, atol=ROUNDING * largest, equal_nan=True
    )


def _module_of(transform: Any) -> str:
    """The module of a transform: a function, a ``partial`` of one, or an object."""
    while isinstance(transform, partial):
        transform = transform.func
    module: str = (transform if isfunction(transform) else type(transform)).__module__
    return module
