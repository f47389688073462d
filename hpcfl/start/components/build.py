"""Build the components of a checked job: its data, clients, model and dry round."""

from dataclasses import replace

import torch

from hpcfl.data.base import Dataset
from hpcfl.data.split import Split, split_examples
from hpcfl.errors import as_job_error, defined
from hpcfl.job.resolve import resolve_algorithm
from hpcfl.job.schema import LoadedJob
from hpcfl.start.components.components import Components
from hpcfl.start.components.load_data import load_data
from hpcfl.start.components.model import make_model
from hpcfl.start.components.population import make_population
from hpcfl.start.components.scores import with_scores
from hpcfl.start.components.training import make_training
from hpcfl.start.device import configure_torch


def build_components(
    loaded: LoadedJob,
    device: torch.device,
    *,
    resumed: bool = False,
    dataset: Dataset | None = None,
) -> Components:
    """Load and partition the data, build the model, and do the dry round.

    ``hpcfl.start.checks.preflight`` checks that they fit together.

    Args:
        loaded: the checked job.
        device: this rank's.
        resumed: the initial model is in the run directory: the file of ``model.init`` is not read.
        dataset: instead of what the job would load.

    Raises:
        JobError, DataError: something in the job does not fit.
    """
    configure_torch(loaded.job, device)
    dataset, split = _divided(loaded, load_data(loaded) if dataset is None else dataset)
    model = make_model(loaded, dataset, device, resumed=resumed)
    loaded = resolve_algorithm(
        loaded, len(split.rows), dataset.classes, model.layout, model.carried
    )
    training = make_training(loaded, model)
    population = make_population(
        loaded.job, dataset, split, training.algorithm, training.schema, model.x0.dtype, device
    )
    return with_scores(Components(loaded, population, model, training))


def _divided(loaded: LoadedJob, dataset: Dataset) -> tuple[Dataset, Split]:
    """The data set, and its examples divided among the clients."""
    job = loaded.job
    with as_job_error(
        f"data.kind: {loaded.names['data']}",
        "its examples cannot be dealt to clients",
        defined(type(job.data).load),
    ):
        split = split_examples(job.data, dataset, job.seed)
    dataset = replace(dataset, notes=(*dataset.notes, *split.notes))
    if split.clients is not None and dataset.personal is not None:
        # A client keeps its own transform, whatever its number among those that train.
        personal, numbers = dataset.personal, split.clients.tolist()
        dataset = replace(dataset, personal=lambda client: personal(numbers[client]))
    return dataset, split
