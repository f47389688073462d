"""Try the job's classes before round 1: real batches, a real gradient, every hook twice.

This finds classes that would fail in round 1, or give another model on two ranks than on one.  The
trial changes neither a random stream nor the model's buffers.
"""

import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import FrozenInstanceError
from functools import partial
from inspect import isfunction
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hpcfl import models
from hpcfl.algorithms.base import Cohort
from hpcfl.data.base import DRAWS, Transform, augments
from hpcfl.engine.hook_rules import (
    KEEPS_NOTHING,
    SMALL,
    TAKES_AND_RETURNS,
    Member,
    call,
    first_server,
    full_gradient_points,
    known_to_server,
    require_repeatable,
    require_repeatable_without_data,
)
from hpcfl.errors import (
    BrokenRuleError,
    JobError,
    convert_errors,
    defined,
    described,
    is_fault_of_hpcfl,
    traceback_hint,
)
from hpcfl.evaluation.user_metrics import UserMetric, load_metrics
from hpcfl.job.schema import LoadedJob
from hpcfl.layout import stand_in
from hpcfl.models.flat_vector import trained
from hpcfl.models.losses import LOSSES
from hpcfl.models.module import Module
from hpcfl.seeds import stream
from hpcfl.setup.components import Components
from hpcfl.types import Batch, Vector
from hpcfl.user_code.generators import Generators, generators, restored
from hpcfl.user_code.names import short_name

CLIENTS = 2  # that are tried
TESTED = 8  # test examples
ROWS = 8  # that a transform makes inputs of, together and one by one
_ROUNDING = 1e-4  # of the largest input
_OF_ONE = 1e-3  # by which a sum of probabilities may differ from 1
_HPCFL = __name__.partition(".")[0]
# Folders of the code in which torch raises, if data and model do not fit together.
_FORWARD = tuple(Path(module.__path__[0]) for module in (torch, models))
_UNFIT = (RuntimeError, ValueError, IndexError)  # which torch raises there
_KEYED = "; such draws depend on the number of ranks and on restarts: "


def try_classes(components: Components) -> tuple[str, ...]:
    """Run one local step of two clients on their own examples, and the server's step.

    Returns:
        Lines for the user about what is allowed, but hardly meant.

    Raises:
        JobError: a class of the user's raises, draws from a global generator, or keeps something
            between calls; or the data do not fit the model.
        DiskError: the disk is full or fails.
    """
    buffers = {name: buffer.clone() for name, buffer in components.buffers.items()}
    try:
        trial = _Trial(components)
        with restored():
            trial.run()
        changed = [n for n, b in components.buffers.items() if not torch.equal(b, buffers[n])]
    finally:
        with torch.no_grad():
            for name, buffer in components.buffers.items():
                buffer.copy_(buffers[name])
        components.clients.pop_elapsed_s()
    if changed:
        raise JobError(
            f"model.name: {components.loaded.tree['model']['name']}: its forward pass changes the "
            f"buffer {changed[0]!r}, so that a client's result depends on who was trained before "
            "it; expected buffers that stay as they are: make what changes a local variable"
        )
    return tuple(trial.notes)


def try_algorithm(loaded: LoadedJob) -> None:
    """Run the hooks of the job's algorithm on made-up values, without data.

    Raises:
        JobError: a hook of a class of the user's raises, or breaks a rule of
            ``hpcfl/algorithms/base.py``.
    """
    name = f"algorithm.name: {loaded.tree['algorithm']['name']}"
    algorithm = loaded.job.algorithm
    with (
        _as_one_line(name, "its dry round failed", (algorithm,), advice=TAKES_AND_RETURNS),
        restored(),
    ):
        require_repeatable_without_data(algorithm, loaded.job.local.descent(stand_in(SMALL)))


class _Trial:
    """The trial of one job's components."""

    def __init__(self, components: Components) -> None:
        self._components, self._gradient = components, components.gradient()
        self._batches: dict[int, Batch] = {}
        self._known: dict[int, list[tuple[Vector, Vector]]] = {}
        self.notes: list[str] = []

    def run(self) -> None:
        components, x0 = self._components, self._components.x0
        clients = range(min(CLIENTS, len(components.rows)))
        for client in clients:
            self._batches[client] = self._batch(client)
            self._repeat_batch(client)
        self._try_rows()
        grad, outputs = self._try_model(self._batches[0])
        self._note_probabilities(outputs)
        algorithm, none = components.algorithm, x0[:0]
        start = (x0,) if algorithm.warm_start else ()
        initial = [next(iter(self._full_gradients(client, start)), none) for client in clients]
        with self._algorithm():
            server = first_server(algorithm, x0, torch.stack(initial).mean(0))
            points = full_gradient_points(algorithm, server)
        full_grads = [self._full_gradients(client, points) for client in clients]
        means = [torch.stack(grads).mean(0) for grads in zip(*full_grads, strict=True)]
        common = means[0] if algorithm.full_gradient == "cohort" else none
        full = [next(iter(grads), none) for grads in full_grads]
        members = [
            partial(self._member, client, grad, common, first)
            for client, grad, first in zip(clients, full, initial, strict=True)
        ]
        size, lr = len(members), components.job.local_lr(0)
        cohort = Cohort(0, size, len(components.rows), lr, known_to_server(algorithm, means))
        with self._algorithm():
            require_repeatable(algorithm, components.descent, x0, members, cohort)
        self._try_tests()
        self._repeat_model(grad, outputs)

    def _member(self, client: int, full: Vector, common: Vector, initial: Vector) -> Member:
        """The client with its first state and the gradient of its batch."""
        components = self._components
        task = components.clients.task(client, 0, steps=1)
        about = task.client._replace(full_grad=full, cohort_grad=common)
        state = call(
            components.algorithm, "init_client", components.x0, components.random_init(client)
        )
        known, calls = self._known.setdefault(client, []), 0
        batch = self._batches[client]

        def grad(point: Vector) -> Vector:
            nonlocal calls
            calls += 1
            if calls <= len(known) and torch.equal(known[calls - 1][0], point):
                return known[calls - 1][1].clone()
            found = self._gradient_at(point, batch, task.dropout_seed)
            if calls > len(known):
                known.append((point.clone(), found.clone()))
            return found

        return Member(state, about, grad, initial)

    def _batch(self, client: int) -> Batch:
        """The first batch of a client in round 1."""
        with self._data():
            before = generators()
            batch = next(self._components.clients.task(client, 0, steps=1).batches)
            self._require_undrawn(before, "data", "kind", "its transform", "use the draws")
        return batch

    def _try_rows(self) -> None:
        """Refuse a user's transform that makes other inputs of a row alone than among others.

        Differences as by rounding pass: a sum over rows may be taken in another order.
        """
        dataset = self._components.dataset
        transforms = [dataset.transform, *([dataset.personal(0)] if dataset.personal else [])]
        for transform in transforms:
            if _module_of(transform).partition(".")[0] != _HPCFL and not self._by_row(transform):
                raise JobError(
                    f"{self._name('data', 'kind')}: its transform{_defined(transform)} makes other "
                    "inputs of a row alone than of the same row among others, so that a client's "
                    "result depends on who is trained beside it; let it make each input of that "
                    "row, its draw and constants"
                )

    def _by_row(self, make: Transform) -> bool:
        """Whether a transform makes the same inputs of a few rows together and one by one."""
        dataset, dtype = self._components.dataset, self._components.x0.dtype
        with self._data():
            count = min(ROWS, len(dataset.train.labels))
            rows = dataset.sample(count).to(self._components.device)
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
            made, other, rtol=0.0, atol=_ROUNDING * largest, equal_nan=True
        )

    def _repeat_batch(self, client: int) -> None:
        """Refuse a transform that gives other inputs when a batch is made again."""
        pairs = zip(self._batches[client], self._batch(client), strict=True)
        found = [(old, new) for old, new in pairs if not torch.equal(old, new)]
        if found and all(torch.equal(old.nan_to_num(), new.nan_to_num()) for old, new in found):
            raise JobError(
                f"{self._name('data', 'kind')}: client {client} has examples that are not finite "
                "(nan), expected finite numbers"
            )
        if found:
            raise JobError(
                f"{self._name('data', 'kind')}: its transform{self._transform} gave other inputs "
                "when a batch was made again; expected what follows from the stored rows and the "
                "draws alone"
            )

    def _try_model(self, batch: Batch) -> tuple[Vector, Tensor]:
        """Run a forward and backward pass twice, and a forward pass as in an evaluation.

        Returns:
            The gradient of the batch, and the model's outputs in the evaluation.
        """
        x0, seed = self._components.x0, 0
        self._require_outputs(batch)
        self._require_used(batch)
        grads = [self._gradient_at(x0, batch, seed) for _ in range(2)]
        if not torch.equal(grads[0], grads[1]) and bool(grads[0].isfinite().all()):
            raise JobError(
                f"{self._name('model', 'name')}: its gradient{self._forward} differs when the same "
                "batch is run again; the model keeps something between calls: make it a local "
                "variable"
            )
        with self._model(batch):
            before = generators()
            outputs = self._gradient.predict(x0, batch.inputs)
            said = "its forward pass in an evaluation"
            self._require_undrawn(before, "model", "name", said, "drop while training alone")
        return grads[0], outputs

    def _repeat_model(self, grad: Vector, outputs: Tensor) -> None:
        """Refuse a model that gives another gradient or other outputs after other batches."""
        batch, x0 = self._batches[0], self._components.x0
        self._gradient_at(x0, self._batches[max(self._batches)], seed=0)
        with self._model(batch):
            new_outputs = self._gradient.predict(x0, batch.inputs)
        new_grad = self._gradient_at(x0, batch, seed=0)
        pairs = (("gradient", grad, new_grad), ("evaluation", outputs, new_outputs))
        for what, first, again in pairs:
            if not torch.equal(first.nan_to_num(), again.nan_to_num()):
                raise JobError(
                    f"{self._name('model', 'name')}: its {what}{self._forward} of a batch differs "
                    "after other batches were run; the model keeps something between calls: "
                    "make it a local variable"
                )

    def _require_outputs(self, batch: Batch) -> None:
        """Refuse a model whose outputs are no tensor with a row an example, or too few.

        The loss says what else is wrong with the outputs.
        """
        dataset = self._components.dataset
        with self._model(batch), restored():
            outputs: object = self._gradient.predict(self._components.x0, batch.inputs)
        name, count = self._name("model", "name"), len(batch.inputs)
        if not isinstance(outputs, Tensor):
            raise JobError(
                f"{name}: its forward pass{self._forward} returns a {type(outputs).__name__}, "
                "expected a tensor; return the outputs alone"
            )
        shape = tuple(outputs.shape)
        if shape[:1] != (count,):
            raise JobError(
                f"{name}: its outputs{self._forward} have the shape {shape} for {count} examples, "
                f"expected ({count}, ...)"
            )
        if dataset.loss == "quadratic" and len(shape) != 1:
            raise JobError(
                f"{name}: its outputs{self._forward} have the shape {shape}, expected a value of "
                f"each quadratic of data.kind {self._kind}, ({len(batch.inputs)},): take point"
            )
        classes = dataset.classes if dataset.loss == "cross_entropy" else None
        if classes is not None and len(shape) == 2 and shape[1] < classes:
            count = shape[1]
            raise JobError(
                f"{name}: has {count} output{'s' * (count != 1)}{self._forward}: too few for the "
                f"{classes} classes of data.kind {self._kind}; give its last layer an "
                "output for each class"
            )
        if dataset.loss == "squared" and outputs[0].numel() != batch.labels[0].numel():
            raise JobError(
                f"{name}: its outputs{self._forward} have the shape {shape}, expected that of the "
                f"labels, {tuple(batch.labels.shape)}: those of data.kind {self._kind} are floats, "
                "the targets of a regression; to classify give integers"
            )

    def _note_probabilities(self, outputs: Tensor) -> None:
        """Note outputs that are probabilities already, of which the loss takes the softmax."""
        if self._components.dataset.loss != "cross_entropy" or outputs.ndim != 2:
            return
        rows = outputs.double()
        within = bool(((rows >= 0) & (rows <= 1)).all())
        if rows.shape[1] > 1 and within and bool(((rows.sum(1) - 1).abs() < _OF_ONE).all()):
            self.notes.append(
                f"{self._name('model', 'name')}: its outputs{self._forward} are probabilities (in "
                "[0, 1], of sum 1), but the loss cross_entropy applies softmax to them; does the "
                "model end in a softmax? Leave it out"
            )

    def _require_used(self, batch: Batch) -> None:
        """Refuse parameters that the loss does not depend on."""
        with self._model(batch), restored():
            unused = self._gradient.unused(self._components.x0, batch)
        if unused:
            names = list(trained(self._components.model))
            raise JobError(
                f"{self._name('model', 'name')}: the loss of a batch does not depend on the "
                f"parameter {names[unused[0]]} in its forward pass{self._forward}, expected one "
                "that depends on every parameter in every batch; remove it, freeze it by "
                "requires_grad_(False), or add its sum times zero to the outputs"
            )

    def _full_gradients(self, client: int, points: tuple[Vector, ...]) -> tuple[Vector, ...]:
        """The client's full gradients at these points; of one batch, to be quick."""
        if not points:
            return ()
        with self._model(self._batches[client]):
            survey = self._components.clients.task(client, 0, steps=1).full_batches
            return self._gradient.full(points, islice(survey, 1))

    def _gradient_at(self, point: Vector, batch: Batch, seed: int) -> Vector:
        with self._model(batch):
            before = generators()
            with restored():  # torch's generator is seeded for every step
                _, found = self._gradient.stochastic(point, batch, seed)
                drawn = generators()._replace(torch=before.torch, cuda=before.cuda)
            said, advice = "its forward pass", "use torch.nn.Dropout or torch's own generator"
            self._require_undrawn(before, "model", "name", said, advice, drawn)
        return found

    def _try_tests(self) -> None:
        """The loss of a few test examples."""
        components = self._components
        with self._data():
            batches = list(islice(components.tests(TESTED).batches(0, 1), 1))
        for batch in batches:
            with self._model(batch):
                outputs = self._gradient.predict(components.x0, batch.inputs)
                LOSSES[components.dataset.loss](outputs, batch.labels)
        metrics = load_metrics(components.job.evaluate.metrics)
        if metrics:
            self._try_metrics(metrics, (batches or [self._batches[0]])[0])

    def _try_metrics(self, metrics: Sequence[UserMetric], batch: Batch) -> None:
        """Call the user's metrics twice on a batch."""
        outputs = self._gradient.predict(self._components.x0, batch.inputs)
        for metric in metrics:
            name, where = f"evaluate.metrics: {short_name(metric.path)}", defined(metric.function)
            given = f"outputs {_shape_text(outputs)}, labels {_shape_text(batch.labels)}"
            does = f"its trial on a batch ({given}) failed"
            with _as_one_line(name, does, (metric.function,), where):
                before = generators()
                (other,) = load_metrics([metric.path])  # one that has seen no batch
                first, again = (metric.sums(outputs, batch.labels) for _ in range(2))
                scores = [metric.score(first), other.score(again)]
                drew = generators().changed(before)
            if drew:
                raise JobError(
                    f"{name}: draws{where} from {' and '.join(drew)}; let it draw nothing"
                )
            if not np.array_equal([*first, scores[0]], [*again, scores[1]], equal_nan=True):
                raise JobError(
                    f"{name}: gives other numbers{where} when the same batch is run again; let "
                    "it keep nothing between calls"
                )
            half = len(outputs) // 2
            if half > 1:  # a metric may squeeze a batch of one
                does = f"its trial on the first {half} examples of the batch failed"
                with _as_one_line(name, does, (metric.function,), where):
                    metric.sums(outputs[:half], batch.labels[:half])  # as many numbers

    def _name(self, section: str, key: str) -> str:
        return f"{section}.{key}: {self._components.loaded.tree[section][key]}"

    @property
    def _transform(self) -> str:
        """Where the user's transform is, if it is the user's and all clients have it."""
        data = self._components.dataset
        return "" if data.personal else _defined(data.transform)

    @property
    def _forward(self) -> str:
        """Where the user's model is made, if it is the user's."""
        model = self._components.model
        return defined(type(model).forward) or defined(type(self._components.job.model).build)

    @contextmanager
    def _algorithm(self) -> Iterator[None]:
        name, does = self._name("algorithm", "name"), "its trial before round 1 failed"
        algorithm = self._components.algorithm
        where = defined(type(algorithm).update)
        with _as_one_line(name, does, (algorithm,), where, TAKES_AND_RETURNS):
            yield

    @contextmanager
    def _data(self) -> Iterator[None]:
        name, does = self._name("data", "kind"), "a batch of it cannot be made"
        with _as_one_line(name, does, (self._components.job.data,), self._transform):
            yield

    @contextmanager
    def _model(self, batch: Batch) -> Iterator[None]:
        given = f"inputs {_shape_text(batch.inputs)}, labels {_shape_text(batch.labels)}"
        does = f"cannot be trained on a batch of data.kind {self._kind} ({given})"
        job, name = self._components.job, self._name("model", "name")
        # A module of the user's is called by hpcfl's own class of models.
        own = (self._components.model,) if isinstance(job.model, Module) else ()
        called = (job.model, job.data, *own)
        with _as_one_line(name, does, called, self._forward, runs_model=True):
            yield

    @property
    def _kind(self) -> str:
        kind: str = self._components.loaded.tree["data"]["kind"]
        return kind

    def _require_undrawn(
        self,
        before: Generators,
        section: str,
        key: str,
        what: str,
        advice: str,
        after: Generators | None = None,
    ) -> None:
        """Refuse draws from the generators of the process."""
        drew = (after or generators()).changed(before)
        if drew:
            where = self._forward if section == "model" else self._transform
            raise JobError(
                f"{self._name(section, key)}: {what}{where} draws from {' and '.join(drew)}"
                f"{_KEYED}{advice}"
            )


def _module_of(transform: Any) -> str:
    """The module of a transform: a function, a ``partial`` of one, or an object."""
    while isinstance(transform, partial):
        transform = transform.func
    module: str = (transform if isfunction(transform) else type(transform)).__module__
    return module


def _defined(transform: Any) -> str:
    """Where a transform of the user's is defined, for a message; else empty."""
    while isinstance(transform, partial):
        transform = transform.func
    return defined(transform if isfunction(transform) else type(transform).__call__)


@contextmanager
def _as_one_line(
    name: str,
    does: str,
    called: tuple[object, ...],
    otherwise: str = "",
    advice: str = "",
    *,
    runs_model: bool = False,
) -> Iterator[None]:
    """Turn an error of the block into one line; an error of hpcfl itself keeps its traceback.

    Args:
        name: the key of the job that is called, and its value.
        does: what failed.
        called: the objects of the job that the block calls.
        otherwise: the location, where the error went through no line of the user's.
        advice: what to do.
        runs_model: whether the block runs the model, which data of the user may not fit, even if
            every class is hpcfl's.

    Raises:
        JobError: the block raised, and a class or line of the user's took part, or memory is
            lacking, or the data do not fit the model.
        DiskError: the disk is full or fails.
    """

    def convert(e: Exception) -> JobError | None:
        broken = isinstance(e, BrokenRuleError) or (runs_model and _refused_by_torch(e))
        if is_fault_of_hpcfl(e, *called) and not broken:
            return None
        more = "" if isinstance(e, BrokenRuleError) else traceback_hint()
        said = described(e, otherwise=otherwise)
        cure = KEEPS_NOTHING if advice and isinstance(e, FrozenInstanceError) else advice
        return JobError(f"{name}: {does}{said}{cure}{more}")

    with convert_errors(convert):
        yield


def _refused_by_torch(error: Exception) -> bool:
    """Whether torch itself raised, in a forward pass, a loss or its gradient."""
    if not isinstance(error, _UNFIT):
        return False
    *_, (innermost, _) = traceback.walk_tb(error.__traceback__)
    file = Path(innermost.f_code.co_filename)
    return any(file.is_relative_to(folder) for folder in _FORWARD)


def _shape_text(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"
