"""The initial model of a job: drawn at random, or read from a file."""

import inspect
import math
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from hpcfl.data.base import Dataset
from hpcfl.data.named_inputs import NamedInputs
from hpcfl.errors import JobError, as_job_error, defined
from hpcfl.job.schema import LoadedJob
from hpcfl.models.dropout import replace_dropout
from hpcfl.models.flat_vector import parameters, trained
from hpcfl.models.init import load_initial
from hpcfl.models.module import refuse_scripted
from hpcfl.models.statistics import put_in_training
from hpcfl.seeds import key
from hpcfl.types import Vector
from hpcfl.user_code.generators import seeded

_COPIED = "its parameters cannot be copied into one vector"


def fetch_model(loaded: LoadedJob) -> None:
    """Bring the model's initial weights into place; on one rank alone.

    Raises:
        JobError: they cannot be had.
    """
    where, model = f"model.name: {loaded.names['model']}", loaded.job.model
    with as_job_error(where, "cannot fetch its weights", defined(type(model).fetch)):
        model.fetch()


def draw_model(loaded: LoadedJob, dataset: Dataset, seed: int) -> tuple[Vector, nn.Module]:
    """A random initialisation, flat, and the model it was drawn for, with hpcfl's dropout.

    Where its inputs are several, it is called with rows that hold them.

    Raises:
        JobError: it is not finite, does not fit into memory, or see ``build_model``.
    """
    model, where = build_model(loaded, dataset, seed), f"model.name: {loaded.names['model']}"
    with as_job_error(where, _COPIED, ""):
        for name, parameter in model.named_parameters():
            if not parameter.isfinite().all():
                raise JobError(
                    f"{where}: its parameter {name} is not finite when the model is made; "
                    "initialise it"
                )
        replace_dropout(model)
        x0 = parameters(model)
    if dataset.named is not None:
        dataset.named.given(x0.dtype).call_by_name(model)
    return x0, model


def build_model(loaded: LoadedJob, dataset: Dataset, seed: int) -> nn.Module:
    """The job's model as its class builds it, in the job's precision.

    Lazy layers have the shapes that an example gives them.

    Raises:
        JobError: it cannot be built for the data, or is not what a model is.
    """
    job = loaded.job
    kind, name = f"data.kind: {loaded.names['data']}", f"model.name: {loaded.names['model']}"
    does, load = "its transform failed on one example", defined(type(job.data).load)
    says = "; a transform is called with stored rows, a dtype, and draws or None"
    with as_job_error(kind, does, load, advice=says):
        sample = dataset.transform(dataset.sample(1), torch.float32, None)
    named = dataset.named and dataset.named.given(torch.float32)
    if named and not job.model.takes_names:
        raise JobError(
            f"{name} takes one input, and this data has {named}; name a module of your own, whose "
            "forward takes them by name"
        )
    shape: Any = named.shapes if named else tuple(sample.shape[1:])
    labels = dataset.train.labels
    targets = math.prod(labels.shape[1:])
    if job.model.classifies and dataset.classes is None and dataset.loss != "bits":
        raise JobError(f"{name} is for classes, this data has targets; use linear")
    outputs = dataset.classes if dataset.classes is not None else targets
    build = type(job.model).build
    with as_job_error(name, f"cannot be built for inputs {shape}", defined(build)), seeded(seed):
        model: Any = job.model.build(shape, outputs)
        if isinstance(model, nn.Module) and any(map(is_lazy, model.parameters())):
            with torch.no_grad():
                two = torch.cat([sample, sample])  # some layers need two examples
                model.eval()(**named.unpack(two)) if named else model.eval()(two)
            model.train()
    if not isinstance(model, nn.Module):
        raise JobError(
            f"{name}: build{defined(build)} returns {type(model).__name__}, expected a "
            "torch.nn.Module"
        )
    refuse_scripted(name, model)
    if named:
        _check_forward(name, model, named)
    dtype = torch.float64 if job.precision == "float64" else torch.float32
    for own, parameter in model.named_parameters():
        if is_lazy(parameter):
            raise JobError(
                f"{name}: its parameter {own} has no shape after a forward pass, which does not "
                "use it in an evaluation; remove it, or give its layer its sizes"
            )
        if parameter.is_floating_point():
            parameter.data = parameter.data.to(dtype)
    if not any(parameter.numel() for parameter in trained(model).values()):
        raise JobError(
            f"{name}: has no parameter to train, expected one at least; layers in a list are not a "
            "module's own: use torch.nn.ModuleList"
        )
    return model.double() if dtype == torch.float64 else model


def _check_forward(name: str, model: nn.Module, named: NamedInputs) -> None:
    """Refuse a model whose forward does not take the inputs of these names."""
    try:
        inspect.signature(model.forward).bind(**named.shapes)
    except TypeError as e:
        raise JobError(
            f"{name}: cannot be called with the inputs {', '.join(named.shapes)} by name"
            f"{defined(type(model).forward)}: {e}; name the arguments of forward as the inputs"
        ) from e


def initial_model(
    loaded: LoadedJob, dataset: Dataset, resumed: bool
) -> tuple[Vector, nn.Module, tuple[str, ...]]:
    """The initial model, its parameters, and the names of those that its file did not provide."""
    job = loaded.job
    x0, model = draw_model(loaded, dataset, key(job.seed, "model"))
    put_in_training(model, frozen=job.model.statistics == "frozen")
    file = job.model.init_file
    if file is None or resumed:
        return x0, model, ()
    with as_job_error(f"model.name: {loaded.names['model']}", _COPIED, ""):
        skipped = load_initial(model, file, job.model.init_layers)
        return parameters(model), model, skipped
