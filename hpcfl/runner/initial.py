"""The initial model of a job: drawn at random, or read from a file."""

from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from hpcfl.comm.base import Comm
from hpcfl.data.base import Dataset
from hpcfl.data.host_copy import HostData, load_on_hosts
from hpcfl.data.split import keep_natural_clients, with_checked_clients
from hpcfl.engine.global_generators import seeded
from hpcfl.errors import JobError, as_job_error, defined
from hpcfl.job.schema import Loaded
from hpcfl.models.dropout import replace_dropout
from hpcfl.models.flat_vector import parameters, trained
from hpcfl.models.init import load_initial
from hpcfl.models.losses import LOSSES
from hpcfl.models.normalization import UNFIT
from hpcfl.runner.configure_torch import configure_torch
from hpcfl.seeds import key
from hpcfl.types import Examples, Vector


def fetch_data(loaded: Loaded) -> None:
    """Bring the files of the job's data into place; on one rank alone.

    Raises:
        JobError, DataError: they cannot be had.
    """
    own, data = f"data.kind: {loaded.tree['data']['kind']}", loaded.job.data
    with as_job_error(own, "cannot fetch its files", type(data).fetch):
        data.fetch()


def fetch_model(loaded: Loaded) -> None:
    """Bring the model's initial weights into place; on one rank alone.

    Raises:
        JobError: they cannot be had.
    """
    own, model = f"model.name: {loaded.tree['model']['name']}", loaded.job.model
    with as_job_error(own, "cannot fetch its weights", type(model).fetch):
        model.fetch()


def load_data(loaded: Loaded) -> Dataset:
    """The job's data set, of its ``natural_clients`` if it names some; checked as far as it can be.

    Raises:
        JobError, DataError: it cannot be loaded, or it is not what a data set is.
    """
    job, own = loaded.job, f"data.kind: {loaded.tree['data']['kind']}"
    load = type(job.data).load
    # A class of the user's may draw from the global generators, which must not differ by rank.
    with as_job_error(own, "cannot load the data", load), seeded(key(job.seed, "load")):
        dataset: Any = job.data.load(job.seed)
    if not isinstance(dataset, Dataset):
        raise JobError(
            f"{own}: load{defined(load)} returns {type(dataset).__name__}, expected a "
            "hpcfl.data.base.Dataset"
        )
    with as_job_error(own, "its load returns a data set that cannot be used", load):
        _require_sound(dataset, own)
        return keep_natural_clients(job.data, with_checked_clients(dataset), job.seed)


def load_data_on_hosts(loaded: Loaded, device: torch.device, comm: Comm) -> HostData:
    """Collective: ``load_data`` on one rank of each host, whose memory the others share.

    Args:
        loaded: the checked job.
        device: this rank's.
        comm: the group of ranks.

    Raises:
        JobError, DataError: see ``load_data``; RemoteRankError on the ranks that did not load.
    """

    def load() -> Dataset:
        configure_torch(loaded.job, device)
        return load_data(loaded)

    return load_on_hosts(load, comm, mapped=loaded.job.data.maps_files)


def _require_sound(dataset: Dataset, own: str) -> None:
    """Refuse data that no model can be trained on."""
    for part, examples in (("train", dataset.train), ("test", dataset.test)):
        if part == "train" or examples is not None:
            _require_examples(examples, part, own)
    if not len(dataset.train.labels):
        raise JobError(f"{own}: found no training example, expected one at least")
    if dataset.classes is not None and dataset.classes < 1:
        raise JobError(
            f"{own}: its classes are {dataset.classes}, expected 1 at least, or None for targets"
        )
    if dataset.loss not in LOSSES:
        raise JobError(
            f"{own}: its loss is {dataset.loss!r}, expected one of {', '.join(sorted(LOSSES))}"
        )
    if dataset.loss == "cross_entropy" and dataset.classes is not None:
        for part, examples in (("train", dataset.train), ("test", dataset.test)):
            if examples is not None and len(examples.labels):
                _require_classes(examples.labels, part, dataset.classes, own)


def _require_examples(examples: Any, part: str, own: str) -> None:
    """Refuse what is no ``Examples`` of tensors; inputs may be in a file (``Stored``)."""
    if not isinstance(examples, Examples):
        raise JobError(
            f"{own}: {part} is a {type(examples).__name__}, expected "
            "hpcfl.types.Examples(inputs, labels)"
        )
    for name, found in zip(examples._fields, examples, strict=True):
        stored = name == "inputs" and hasattr(found, "read")
        if not isinstance(found, torch.Tensor) and not stored:
            raise JobError(
                f"{own}: the {name} of {part} are a {type(found).__name__}, expected a tensor; "
                "torch.from_numpy makes one of an array"
            )
    shape, labels = tuple(examples.inputs.shape), len(examples.labels)
    if shape[:1] != (labels,):
        raise JobError(
            f"{own}: {part} has inputs of shape {shape} and {labels} labels; expected as many "
            "of the one as of the other"
        )
    if 0 in shape[1:]:
        raise JobError(
            f"{own}: an example of {part} has the shape {shape[1:]}, which holds no number; "
            "expected one feature at least"
        )


def _require_classes(labels: torch.Tensor, part: str, classes: int, own: str) -> None:
    """Refuse labels that are not one class of 0 to ``classes`` - 1 an example."""
    if labels.ndim != 1:
        raise JobError(
            f"{own}: the labels of {part} have the shape {tuple(labels.shape)}, expected "
            f"({len(labels)},), one class an example"
        )
    if labels.is_floating_point() or labels.is_complex():
        raise JobError(
            f"{own}: the labels of {part} are {labels.dtype}, expected integers, as its classes "
            f"are {classes}; for targets classes is None"
        )
    lowest, highest = int(labels.min()), int(labels.max())
    if lowest < 0 or highest >= classes:
        raise JobError(
            f"{own}: the labels of {part} run from {lowest} to {highest}, expected 0 to "
            f"{classes - 1}, as its classes are {classes}"
        )


def initial(loaded: Loaded, dataset: Dataset, seed: int) -> tuple[Vector, nn.Module]:
    """A random initialisation, flat, and the model it was drawn for, with hpcfl's dropout."""
    model = build_model(loaded, dataset, seed)
    replace_dropout(model)
    return parameters(model), model


def build_model(loaded: Loaded, dataset: Dataset, seed: int) -> nn.Module:
    """The job's model as its class builds it, in the job's precision.

    Lazy layers have the shapes that an example gives them.

    Raises:
        JobError: it cannot be built for the data, or is not what a model is.
    """
    job = loaded.job
    kind, name = (f"{s}.{k}: {loaded.tree[s][k]}" for s, k in (("data", "kind"), ("model", "name")))
    says = "; a transform is called with stored rows, a dtype, and draws or None"
    with as_job_error(kind, "its transform failed on one example", type(job.data).load, says):
        sample = dataset.transform(dataset.sample(1), torch.float32, None)
        shape = tuple(sample.shape[1:])
    labels = dataset.train.labels
    targets = labels.shape[1] if labels.ndim > 1 else 1
    if job.model.classifies and dataset.classes is None:
        raise JobError(f"{name} is for classes, this data has targets; use linear")
    outputs = dataset.classes if dataset.classes is not None else targets
    build = type(job.model).build
    with as_job_error(name, f"cannot be built for inputs {shape}", build), seeded(seed):
        model: Any = job.model.build(shape, outputs)
        if isinstance(model, nn.Module) and any(map(is_lazy, model.parameters())):
            with torch.no_grad():
                model.eval()(torch.cat([sample, sample]))  # some layers need two examples
            model.train()
    if not isinstance(model, nn.Module):
        raise JobError(
            f"{name}: build{defined(build)} returns {type(model).__name__}, expected a "
            "torch.nn.Module"
        )
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


def initial_model(
    loaded: Loaded, dataset: Dataset, resumed: bool
) -> tuple[Vector, nn.Module, tuple[str, ...]]:
    """The initial model, its parameters, and the names of those that its file did not provide."""
    job = loaded.job
    x0, model = initial(loaded, dataset, key(job.seed, "model"))
    model.train()
    for layer, module in model.named_modules():
        # A layer that a module's own ``train`` keeps in evaluation mode changes no statistics.
        if getattr(module, "track_running_stats", False) and module.training:
            raise JobError(
                f"model.name: {loaded.tree['model']['name']}: its layer {layer!r} {UNFIT}; use "
                "torch.nn.GroupNorm there, or keep it in evaluation mode by a method train of the "
                "model, if its statistics are to stay as they are"
            )
    file = job.model.init_file
    if file is None or resumed:
        return x0, model, ()
    skipped = load_initial(model, file, job.model.init_layers)
    return parameters(model), model, skipped
