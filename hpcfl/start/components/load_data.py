"""Fetch and load the data of a job, and refuse data that no model can be trained on."""

from dataclasses import replace
from typing import Any

import torch

from hpcfl.comm.base import Comm
from hpcfl.data.base import DataConfig, Dataset
from hpcfl.data.fingerprints import digest
from hpcfl.data.host_copy import HostData, load_on_hosts
from hpcfl.data.split import keep_natural_clients, with_checked_clients
from hpcfl.errors import JobError, as_job_error, defined
from hpcfl.job.schema import LoadedJob
from hpcfl.models.losses import LOSSES
from hpcfl.seeds import key
from hpcfl.start.device import configure_torch
from hpcfl.types import Examples
from hpcfl.user_code.accepts import is_own
from hpcfl.user_code.generators import seeded


def fetch_data(loaded: LoadedJob) -> None:
    """Bring the files of the job's data into place; on one rank alone.

    Raises:
        JobError, DataError: they cannot be had.
    """
    where, data = f"data.kind: {loaded.names['data']}", loaded.job.data
    with as_job_error(where, "cannot fetch its files", defined(type(data).fetch)):
        data.fetch()


def load_data(loaded: LoadedJob) -> Dataset:
    """The job's data set, of its ``natural_clients`` if it names some; checked as far as it can be.

    Raises:
        JobError, DataError: it cannot be loaded, or it is not what a data set is.
    """
    job, where = loaded.job, f"data.kind: {loaded.names['data']}"
    load = type(job.data).load
    # A class of the user's may draw from the global generators, which must not differ by rank.
    with as_job_error(where, "cannot load the data", defined(load)), seeded(key(job.seed, "load")):
        dataset: Any = job.data.load(job.seed)
    if not isinstance(dataset, Dataset):
        raise JobError(
            f"{where}: load{defined(load)} returns {type(dataset).__name__}, expected a "
            "hpcfl.data.base.Dataset"
        )
    with as_job_error(where, "its load returns a data set that cannot be used", defined(load)):
        # Here and not in hpcfl.start.checks: the clients' examples are found by these labels.
        # Word data of hpcfl, of which a file may hold billions, are looked at batch by batch.
        whole = not dataset.mapped or dataset.loss != "tokens" or is_own(type(job.data))
        _check_dataset(dataset, where, whole=whole)
        _check_padding(job.data, dataset, where)
        return keep_natural_clients(job.data, with_checked_clients(dataset), job.seed)


def load_data_on_hosts(loaded: LoadedJob, device: torch.device, comm: Comm) -> HostData:
    """Collective: ``load_data`` on one rank of each host, whose memory the others share.

    The data set has its ``digest``.

    Args:
        loaded: the checked job.
        device: this rank's.
        comm: the group of ranks.

    Raises:
        JobError, DataError: see ``load_data``; RemoteRankError on the ranks that did not load.
        RankError: see ``load_on_hosts``.
    """

    def load() -> Dataset:
        # Before build_components does: what a class of the user's computes must not depend on the
        # number of threads that torch has by itself.
        configure_torch(loaded.job, device)
        dataset = load_data(loaded)
        return replace(dataset, digest=digest(dataset))

    job = loaded.job
    return load_on_hosts(load, comm, job.comm.timeout_s, mapped=job.data.maps_files)


def _check_dataset(dataset: Dataset, where: str, *, whole: bool) -> None:
    """Refuse data that no model can be trained on.

    Args:
        dataset: that was loaded.
        where: from, for messages.
        whole: whether to look at every label.
    """
    for part, examples in (("train", dataset.train), ("test", dataset.test)):
        if part == "train" or examples is not None:
            _check_examples(examples, part, where)
    if not len(dataset.train.labels):
        raise JobError(f"{where}: found no training example, expected one at least")
    if dataset.classes is not None and dataset.classes < 1:
        raise JobError(
            f"{where}: its classes are {dataset.classes}, expected 1 at least, or None for targets"
        )
    if dataset.loss == "tokens" and dataset.classes is None:
        raise JobError(f"{where}: its classes are None, expected how many for its loss tokens")
    if dataset.loss not in LOSSES:
        raise JobError(
            f"{where}: its loss is {dataset.loss!r}, expected one of {', '.join(sorted(LOSSES))}"
        )
    for part, examples in (("train", dataset.train), ("test", dataset.test)):
        if examples is not None and len(examples.labels):
            _check_labels(dataset, examples.labels, part, where, whole=whole)


def _check_padding(data: DataConfig, dataset: Dataset, where: str) -> None:
    """Refuse padding of labels that have none, and texts whose padding would count."""
    if dataset.loss != "tokens":
        for name in ("padding", "scored"):
            if getattr(dataset, name) is not None:
                raise JobError(
                    f"{where}: its {name} is {getattr(dataset, name)}, but its loss "
                    f"{dataset.loss}; expected None, as {name} is of the loss tokens"
                )
    elif dataset.padding is None and data.padded_text:
        raise JobError(
            f"{where}: its padded_text is True, but the padding of its Dataset None, so that "
            "labels of padding would count; say padding=0"
        )


def _check_examples(examples: Any, part: str, where: str) -> None:
    """Refuse what is no ``Examples`` of tensors; inputs may be in a file (``Stored``)."""
    if not isinstance(examples, Examples):
        raise JobError(
            f"{where}: {part} is a {type(examples).__name__}, expected "
            "hpcfl.types.Examples(inputs, labels)"
        )
    for name, found in zip(examples._fields, examples, strict=True):
        stored = name == "inputs" and hasattr(found, "read")
        if not isinstance(found, torch.Tensor) and not stored:
            raise JobError(
                f"{where}: the {name} of {part} are a {type(found).__name__}, expected a tensor; "
                "torch.from_numpy makes one of an array"
            )
    shape, labels = tuple(examples.inputs.shape), len(examples.labels)
    if shape[:1] != (labels,):
        raise JobError(
            f"{where}: {part} has inputs of shape {shape} and {labels} labels; expected as many "
            "of the one as of the other"
        )
    if 0 in shape[1:]:
        raise JobError(
            f"{where}: an example of {part} has the shape {shape[1:]}, which holds no number; "
            "expected one feature at least"
        )


def _check_labels(
    dataset: Dataset, labels: torch.Tensor, part: str, where: str, *, whole: bool
) -> None:
    """Refuse labels that are not what the loss takes; see ``_check_dataset``."""
    shape, loss, classes = tuple(labels.shape), dataset.loss, dataset.classes
    if 0 in shape[1:]:
        raise JobError(f"{where}: the labels of {part} have the shape {shape}: an example has none")
    if loss == "bits" and (labels.dtype != torch.bool or labels.ndim != 2):
        raise JobError(
            f"{where}: the labels of {part} are {labels.dtype} of shape {shape}, expected booleans "
            f"({len(labels)}, t) for the loss bits"
        )
    if loss not in ("cross_entropy", "tokens") or classes is None:
        return
    if loss == "cross_entropy" and labels.ndim != 1:
        raise JobError(
            f"{where}: the labels of {part} have the shape {shape}, expected "
            f"({len(labels)},), one class an example; for several an example its loss is tokens"
        )
    if labels.is_floating_point() or labels.is_complex():
        raise JobError(
            f"{where}: the labels of {part} are {labels.dtype}, expected integers, as its classes "
            f"are {classes}; for targets classes is None"
        )
    if whole:
        _check_classes(dataset, labels, part, where)


def _check_classes(dataset: Dataset, labels: torch.Tensor, part: str, where: str) -> None:
    """Refuse integers that are neither classes, from 0, nor padding."""
    padding, classes = dataset.padding, dataset.classes or 0
    if padding is not None:
        held = torch.iinfo(labels.dtype)
        if not held.min <= padding <= held.max:
            raise JobError(
                f"{where}: its padding is {padding}, which its labels of {part}, {labels.dtype}, "
                "cannot be; expected a label, or labels of a wider type"
            )
        labels = labels[labels != padding]
    if not labels.numel():
        return
    lowest, highest = int(labels.min()), int(labels.max())
    if lowest < 0 or highest >= classes:
        cure = ""
        if dataset.loss == "tokens" and padding is None:
            cure = f"; if {lowest if lowest < 0 else highest} is padding, say so in padding"
        raise JobError(
            f"{where}: the labels of {part} run from {lowest} to {highest}, expected 0 to "
            f"{classes - 1}, as its classes are {classes}{cure}"
        )
