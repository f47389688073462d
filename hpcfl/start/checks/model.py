"""Check the model of a job on real batches: outputs, gradient, and that it keeps nothing."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from hpcfl.engine.carried import Carrying
from hpcfl.engine.trial import digest
from hpcfl.errors import JobError, as_job_error
from hpcfl.models.flat_vector import trained
from hpcfl.models.losses import LOSSES, widen
from hpcfl.models.statistics import batch_norms, keeps_statistics, normalises_batches
from hpcfl.models.training_loss import Focal, LabelSmoothing, OwnLoss
from hpcfl.start.checks.data import ROUNDING, ROWS
from hpcfl.start.checks.trial import Trial, shape_text
from hpcfl.start.components.components import Components
from hpcfl.types import Batch, Vector
from hpcfl.user_code.generators import generators, restored
from hpcfl.user_code.names import short_name

_Loss = LabelSmoothing | Focal | OwnLoss
_FEWEST = 4  # examples that are divided: a loss may squeeze a batch of one
_MOVED = 0.01
_OF_ONE = 1e-3  # by which a sum of probabilities may differ from 1


def check_normalization(components: Components) -> None:
    """Check that what the job does with running statistics fits the model and the algorithm.

    Raises:
        JobError: it does not; or a layer keeps others than those of batch normalisation.
    """
    job, layers = components.job, dict(components.model.module.named_modules())
    asked, method = job.model.statistics, components.loaded.names["algorithm"]
    if asked and not any(map(keeps_statistics, layers.values())):
        raise JobError(
            f"model.statistics: found {asked}, but the model has no running statistics; remove it"
        )
    carried = batch_norms(components.model.module)
    for name, layer in layers.items():
        # A layer that a module's own ``train`` keeps in evaluation mode changes no statistics.
        if not keeps_statistics(layer) or not layer.training:
            continue
        found, kind = f"its layer {name!r}", type(layer).__name__
        at = f"model.name: {components.loaded.names['model']}: {found}"
        if name not in carried:
            raise JobError(
                f"{at} ({kind}) keeps running statistics, expected those of BatchNorm1d, 2d or 3d "
                "alone; use one, or set model.statistics=frozen"
            )
        if getattr(layer, "momentum", None) is None:
            raise JobError(
                f"{at} ({kind}) has momentum=None, a mean over all batches, expected a number; set "
                "its momentum (torch's is 0.1), or model.statistics=frozen"
            )
    algorithm = components.training.algorithm
    local = isinstance(algorithm, Carrying) and algorithm.carried == "local"
    if local and algorithm.full_gradient != "none":
        raise JobError(
            f"model.statistics: {method} does not go with local (its full gradients are taken by "
            "the statistics of the server); set it to mean or frozen"
        )


def check_batches_of_one(trial: Trial) -> None:
    """Refuse batches of one example where the model normalises each channel over its batch.

    Torch refuses one value for a channel, and would so in a round, with the first such batch.

    Raises:
        JobError: a client has such a batch, and the model cannot be trained on it.
    """
    components, (batch, *_) = trial.components, trial.batches.values()
    if not normalises_batches(components.model.module):
        return
    alone = components.population.clients.with_batch_of_one(components.job.evaluate.tuning_steps)
    if alone is None:
        return
    one = Batch(*(leaf[:1] for leaf in batch))
    try:
        with restored():
            trial.gradient.stochastic(components.model.x0, one, 0)
    except ValueError as e:
        if "more than 1 value per channel" not in str(e):
            raise
        count, size = components.population.clients.examples[alone], components.job.local.batch_size
        cure = "set another one, or local.drop_last=true"
        if 1 in (count, size):
            cure = "set a larger one" if size == 1 else "give every client two examples at least"
        raise JobError(
            f"local.batch_size: found {size}, with which client {alone} (examples: {count}) has a "
            f"batch of one example, and batch normalisation needs two values of a channel; {cure}"
        ) from e


def check_model(trial: Trial) -> tuple[list[int], Tensor]:
    """Run a forward and backward pass twice, and a forward pass as in an evaluation.

    Returns:
        The digest of the gradient of the first client's batch, and the model's outputs in the
        evaluation.

    Raises:
        JobError: a pass fails, draws from a global generator, or gives another gradient when the
            batch is run again; the outputs or parameters do not fit the loss; or something is not
            finite.
    """
    x0, batch = trial.components.model.x0, trial.batches[0]
    _check_outputs(trial, batch)
    _check_convolutions(trial, batch)
    _check_loss(trial, batch)
    _check_used(trial, batch)
    grad, extremes = _gradient_digest(trial, batch)
    again, _ = _gradient_digest(trial, batch)
    # Two gradients that are not finite may differ in their nan: ``_check_finite`` tells of those.
    if grad != again and bool(extremes.isfinite().all()):
        raise JobError(
            f"{trial.name('model', 'name')}: its gradient{trial.in_model} differs when the same "
            "batch is run again; the model keeps something between calls: make it a local "
            "variable"
        )
    with trial.model_errors(batch):
        before = generators()
        outputs = trial.gradient.predict(x0, batch.inputs)
        said = "its forward pass in an evaluation"
        trial.check_undrawn(before, "model", "name", said, "drop while training alone")
        loss = trial.gradient.loss(outputs, batch.labels)
        if not trial.resumed:  # else the run began with other parameters, from its directory
            found = {"outputs": outputs, "loss": loss, "gradient": extremes}
            _check_finite(trial, found, "the first batch")
            _check_largest(trial)
    return grad, outputs


def _check_finite(trial: Trial, found: Mapping[str, Tensor], where: str) -> None:
    """Refuse numbers of a batch that are not finite at the initial parameters."""
    for what, numbers in found.items():
        if not bool(numbers.isfinite().all()):
            raise JobError(
                f"{trial.name('model', 'name')}: nan or inf in its {what}{trial.in_model} for "
                f"{where}, before any step, expected finite numbers; look for a division by 0, "
                "a log or a root in the model or the loss, and for the size of the inputs"
            )


def _check_largest(trial: Trial) -> None:
    """Refuse a training example so large that its outputs or its loss are not finite."""
    if trial.largest is None:
        return
    where, one = trial.largest
    # In a batch as long as the first one, which the model can take.
    dataset, count = trial.components.population.dataset, len(trial.batches[0].labels)
    others = trial.batch_of(dataset.sample(count), dataset.train.labels[:count])
    pairs = zip(one, others, strict=True)
    batch = Batch(*(torch.cat([largest, other[1:]]) for largest, other in pairs))
    outputs = trial.gradient.predict(trial.components.model.x0, batch.inputs)
    loss = trial.gradient.loss(outputs, batch.labels)
    where = f"a batch with {where}, which has the largest number in its inputs"
    _check_finite(trial, {"outputs": outputs, "loss": loss}, where)


def _check_convolutions(trial: Trial, batch: Batch) -> None:
    """Refuse bfloat16 where a CPU's gradient of a convolution would hold what was in memory."""
    if trial.components.device.type != "cpu" or trial.components.job.precision != "bf16":
        return
    with _Convolutions() as convolutions:
        trial.gradient.predict(trial.components.model.x0, batch.inputs)
    if convolutions.narrow:
        raise JobError(
            f"precision: found bf16, but a convolution{trial.in_model} has {convolutions.narrow}, "
            "for which PyTorch computes a wrong gradient in bfloat16 on a CPU; say "
            "precision=float32"
        )


class _Convolutions(TorchFunctionMode):
    """Notes a convolution whose stride is larger than its images are wide.

    With torch 2.13 and AVX-512, oneDNN leaves the gradient of weights that lie beside such images,
    which is 0, as the memory was.
    """

    narrow = ""

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        """Call ``func``."""
        if func in (torch.conv1d, torch.conv2d, torch.conv3d):
            given = dict(zip(("input", "weight", "bias", "stride"), args, strict=False))
            given |= kwargs or {}
            stride, width = given.get("stride", 1), given["input"].shape[-1]
            step = stride if isinstance(stride, int) else stride[-1]
            if step > width and given["weight"].shape[-1] > 1:
                self.narrow = f"a stride of {step} and images {width} wide"
        return func(*args, **(kwargs or {}))


def _check_loss(trial: Trial, batch: Batch) -> None:
    """Refuse a loss that raises, or whose terms are none for each example or label."""
    loss, dataset = trial.components.job.loss, trial.components.population.dataset
    if isinstance(loss, str):
        return
    if not isinstance(loss, OwnLoss) and dataset.loss not in ("cross_entropy", "tokens"):
        raise JobError(
            f"loss: {loss.kind} is of classes, but the labels of data.kind {trial.kind} are none; "
            "remove it, or name a function of your own"
        )
    outputs = widen(trial.gradient.predict(trial.components.model.x0, batch.inputs))
    expected = tuple(LOSSES[dataset.loss].terms(outputs, batch.labels).shape)
    found: object = _terms(trial, loss, outputs, batch.labels)
    shape = tuple(found.shape) if isinstance(found, Tensor) else type(found).__name__
    if shape != expected:
        raise JobError(
            f"{_loss_name(loss)}: returned {shape} of a batch ({_given(outputs, batch.labels)}), "
            f"expected terms {expected}, one for each example or label; the mean is hpcfl's"
        )


def _terms(trial: Trial, loss: _Loss, outputs: Tensor, labels: Tensor) -> Tensor:
    """What a loss returns for a batch.

    Raises:
        JobError: it raises.
    """
    function = loss.made if isinstance(loss, OwnLoss) else loss
    does = f"cannot be computed of a batch ({_given(outputs, labels)})"
    with as_job_error(_loss_name(loss), does, "", function):
        return trial.gradient.loss.terms(outputs, labels)


def _loss_name(loss: _Loss) -> str:
    return f"loss: {short_name(loss.of) if isinstance(loss, OwnLoss) else loss.kind}"


def _given(outputs: Tensor, labels: Tensor) -> str:
    return f"outputs {shape_text(outputs)}, labels {shape_text(labels)}"


def _gradient_digest(trial: Trial, batch: Batch) -> tuple[list[int], Tensor]:
    """The digest of the gradient at the initial model, and its least and largest number."""
    _, found = gradient_at(trial, trial.components.model.x0, batch, seed=0)
    extremes = torch.stack(torch.aminmax(found))
    return digest(found.nan_to_num_()), extremes


def check_model_again(trial: Trial, grad: list[int], outputs: Tensor) -> None:
    """Refuse a model that gives another gradient or other outputs after other batches.

    Args:
        trial: of the job.
        grad: digest of that of the first client's batch, when it was run first.
        outputs: likewise, in the evaluation.

    Raises:
        JobError: they differ now.
    """
    batch, x0 = trial.batches[0], trial.components.model.x0
    gradient_at(trial, x0, trial.batches[max(trial.batches)], seed=0)
    with trial.model_errors(batch):
        new_outputs = trial.gradient.predict(x0, batch.inputs)
    if _gradient_digest(trial, batch)[0] != grad:
        raise keeps_something(trial, "gradient")
    if not torch.equal(outputs.nan_to_num(), new_outputs.nan_to_num()):
        raise keeps_something(trial, "evaluation")


def keeps_something(trial: Trial, what: str) -> JobError:
    """The error of a model that gives something else after other batches."""
    return JobError(
        f"{trial.name('model', 'name')}: its {what}{trial.in_model} of a batch differs "
        "after other batches were run; the model keeps something between calls: "
        "make it a local variable"
    )


def probability_notes(trial: Trial, outputs: Tensor) -> tuple[str, ...]:
    """A line on outputs that are probabilities already, of which the loss takes the softmax."""
    if trial.components.population.dataset.loss != "cross_entropy" or outputs.ndim != 2:
        return ()
    rows = outputs.double()
    within = bool(((rows >= 0) & (rows <= 1)).all())
    if rows.shape[1] > 1 and within and bool(((rows.sum(1) - 1).abs() < _OF_ONE).all()):
        return (
            f"{trial.name('model', 'name')}: its outputs{trial.in_model} are probabilities (in "
            "[0, 1], of sum 1), but the loss cross_entropy applies softmax to them; does the "
            "model end in a softmax? Leave it out",
        )
    return ()


def loss_notes(trial: Trial) -> tuple[str, ...]:
    """A line on a user's loss whose term of an example depends on the others of its batch."""
    loss, dataset, x0 = (
        trial.components.job.loss,
        trial.components.population.dataset,
        trial.components.model.x0,
    )
    count = min(ROWS, len(dataset.train.labels))
    if not isinstance(loss, OwnLoss) or count < _FEWEST:
        return ()
    batch = trial.batch_of(dataset.sample(count), dataset.train.labels[:count])
    # Initial outputs may all be zero, and terms alike.
    moved = x0 + _MOVED * torch.arange(len(x0)).cos().to(x0)
    outputs = widen(trial.gradient.predict(moved, batch.inputs))
    # Each half backwards, so that no example has the neighbours that it has in the batch.
    halves = torch.arange(len(outputs)).flip(0).to(outputs.device).chunk(2)
    among_all = _terms(trial, loss, outputs, batch.labels)
    in_halves = torch.cat(
        [_terms(trial, loss, outputs[half], batch.labels[half]) for half in halves]
    )
    if not bool(among_all.isfinite().all() & in_halves.isfinite().all()):
        return ()  # at the moved parameters, where nobody trains
    allowed = ROUNDING * float(among_all.abs().max())
    if torch.allclose(among_all.flip(0), in_halves, rtol=0.0, atol=allowed):
        return ()
    return (
        f"warning: {_loss_name(loss)}: its term of an example depends on the other "
        "examples of the batch: losses depend on evaluate.batch_size, and on local.accumulate; if "
        "that is not meant, let it "
        "compute each term of one example's output and label",
    )


def gradient_at(trial: Trial, point: Vector, batch: Batch, seed: int) -> tuple[Tensor, Vector]:
    """The loss and the gradient of a batch.

    Raises:
        JobError: it cannot be computed, or the forward pass draws from a global generator that is
            not torch's.
    """
    with trial.model_errors(batch):
        before = generators()
        with restored():  # torch's generator is seeded for every step
            found = trial.gradient.stochastic(point, batch, seed)
            drawn = generators()._replace(torch=before.torch, cuda=before.cuda)
        said, advice = "its forward pass", "use torch.nn.Dropout or torch's own generator"
        trial.check_undrawn(before, "model", "name", said, advice, drawn)
    return found


def _check_outputs(trial: Trial, batch: Batch) -> None:
    """Refuse a model whose outputs are no tensor with a row an example, or too few.

    The loss says what else is wrong with the outputs.
    """
    dataset = trial.components.population.dataset
    with trial.model_errors(batch), restored():
        outputs: object = trial.gradient.predict(trial.components.model.x0, batch.inputs)
    name, count = trial.name("model", "name"), len(batch.inputs)
    if not isinstance(outputs, Tensor):
        raise JobError(
            f"{name}: its forward pass{trial.in_model} returns a {type(outputs).__name__}, "
            "expected a tensor; return the outputs alone, or an object with them as its logits"
        )
    shape = tuple(outputs.shape)
    if shape[:1] != (count,):
        raise JobError(
            f"{name}: its outputs{trial.in_model} have the shape {shape} for {count} examples, "
            f"expected ({count}, ...)"
        )
    if dataset.loss == "quadratic" and len(shape) != 1:
        raise JobError(
            f"{name}: its outputs{trial.in_model} have the shape {shape}, expected a value of "
            f"each quadratic of data.kind {trial.kind}, ({len(batch.inputs)},): take point"
        )
    labels = tuple(batch.labels.shape)
    if dataset.loss in ("cross_entropy", "tokens"):
        _check_logits(trial, shape, labels)
    elif dataset.loss != "quadratic" and outputs[0].numel() != batch.labels[0].numel():
        kind = "floats, the targets of a regression; to classify give integers"
        if dataset.loss == "bits":
            kind = "bits, each of which has a logit"
        raise JobError(
            f"{name}: its outputs{trial.in_model} have the shape {shape}, expected that of the "
            f"labels, {labels}: those of data.kind {trial.kind} are {kind}"
        )


def _check_logits(trial: Trial, shape: tuple[int, ...], labels: tuple[int, ...]) -> None:
    """Refuse outputs that are not logits of all classes for each label.

    Args:
        trial: of the job.
        shape: of the outputs of a batch.
        labels: the shape of its labels.
    """
    name, classes = trial.name("model", "name"), trial.components.population.dataset.classes
    if shape[:-1] != labels:
        least = "classes" if classes is None else classes
        expected = f"({', '.join(map(str, labels))}, {least})"
        cure = "return a logit of each class for each label, the classes last"
        if shape == labels:
            cure += "; for labels that are bits say data.label_type: bits"
        elif shape[:-1] == labels[:1] and labels[1:] == (1,):
            cure = f"store labels of one class an example as ({labels[0]},), without the last axis"
        elif classes in shape[1:2] and shape[:1] + shape[2:] == labels:
            cure = "move the classes last: outputs.movedim(1, -1)"
        raise JobError(
            f"{name}: its outputs{trial.in_model} have the shape {shape} for labels {labels} of "
            f"data.kind {trial.kind}, expected {expected}; {cure}"
        )
    count = shape[-1]
    if classes is not None and count < classes:
        raise JobError(
            f"{name}: has {count} output{'s' * (count != 1)}{trial.in_model}: too few for the "
            f"{classes} classes of data.kind {trial.kind}; give its last layer an "
            "output for each class"
        )


def _check_used(trial: Trial, batch: Batch) -> None:
    """Refuse parameters that the loss does not depend on."""
    with trial.model_errors(batch), restored():
        unused = trial.gradient.unused(trial.components.model.x0, batch)
    if unused:
        names = list(trained(trial.components.model.module))
        raise JobError(
            f"{trial.name('model', 'name')}: the loss of a batch does not depend on the "
            f"parameter {names[unused[0]]} in its forward pass{trial.in_model}, expected one "
            "that depends on every parameter in every batch; remove it, freeze it by "
            "requires_grad_(False), or add its sum times zero to the outputs"
        )
