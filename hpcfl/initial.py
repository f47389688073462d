"""The initial model of a job: drawn at random, or read from the file that it names."""

import torch
from torch import nn

from hpcfl.data.base import Dataset
from hpcfl.errors import JobError
from hpcfl.job import Loaded
from hpcfl.models.dropout import own_dropout
from hpcfl.models.init import load_initial
from hpcfl.models.norm import UNFIT
from hpcfl.seeds import key
from hpcfl.types import Vector
from hpcfl.vectors import parameters


def initial(loaded: Loaded, dataset: Dataset, seed: int) -> tuple[Vector, nn.Module]:
    """A random initialisation, flat, and the model it was drawn for."""
    job = loaded.job
    sample = dataset.transform(dataset.sample(1), torch.float32, None)
    labels = dataset.train.labels
    targets = labels.shape[1] if labels.ndim > 1 else 1
    if job.model.classifies and dataset.classes is None:
        name = loaded.tree["model"]["name"]
        raise JobError(f"model.name: {name} is for classes, this data has targets; use linear")
    outputs = dataset.classes if dataset.classes is not None else targets
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = job.model.build(tuple(sample.shape[1:]), outputs)
    own_dropout(model)
    model = model.double() if job.precision == "float64" else model
    return parameters(model), model


def initial_model(
    loaded: Loaded, dataset: Dataset, resumed: bool
) -> tuple[Vector, nn.Module, tuple[str, ...]]:
    """The initial model, its parameters, and what its file left to chance."""
    job = loaded.job
    x0, model = initial(loaded, dataset, key(job.seed, "model"))
    if any(getattr(m, "track_running_stats", False) for m in model.modules()):
        raise JobError(f"model.name: {loaded.tree['model']['name']} {UNFIT}")
    file = job.model.init_file
    if file is None or resumed:
        return x0, model, ()
    skipped = load_initial(model, file, job.model.init_layers)
    return parameters(model), model, skipped
