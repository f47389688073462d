"""The data of a job that is planned: what is there, or a stand-in of the published sizes."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from hpcfl.data.base import Dataset
from hpcfl.data.partition import File, Iid
from hpcfl.data.published import PublishedSizes
from hpcfl.data.split import keep_natural_clients
from hpcfl.errors import JobError
from hpcfl.job.schema import LoadedJob, section
from hpcfl.job.yaml_file import JobFile, override
from hpcfl.runner.load_data import fetch_data, load_data

OPTION = "--sizes"


class PlannedData(NamedTuple):
    """The data that a plan is made with."""

    loaded: LoadedJob
    """The job, whose partition may have been replaced."""
    dataset: Dataset
    real: bool
    """Whether the data set was loaded; else it is a stand-in."""
    notes: Sequence[str]
    """What was assumed."""


def read_sizes(text: str) -> PublishedSizes:
    """The sizes of a command line: ``{clients: 20, train: 6000, test: 1000, classes: 5}``.

    Raises:
        JobError: they are no such mapping.
    """
    file = JobFile(OPTION, {})
    override(file, [f"sizes={text}"])
    return make_sizes(file.tree["sizes"], OPTION)


def make_sizes(tree: Any, where: str) -> PublishedSizes:
    """The sizes of a mapping.

    Raises:
        JobError: it is none, or has other keys.
    """
    sizes: PublishedSizes = section(PublishedSizes, JobFile(where, {"sizes": tree}), "sizes")
    return sizes


def planned_data(loaded: LoadedJob, sizes: PublishedSizes | None) -> PlannedData:
    """Load the job's data if it is there, and make a stand-in otherwise.

    Args:
        loaded: the job.
        sizes: take these, whatever is there and whatever is published.

    Raises:
        JobError, DataError: the data is there and cannot be used; or it is not, and its sizes are
            not known.
    """
    loaded, notes = _without_missing_split(loaded)
    data, kind = loaded.job.data, loaded.tree["data"]["kind"]
    found, why = sizes, ""
    if found is None:
        try:
            fetch_data(loaded)
            return PlannedData(loaded, load_data(loaded), True, notes)
        except JobError as error:
            found, why = data.published, str(error).partition(";")[0]
            if found is None:
                raise JobError(
                    f"data.kind: {kind}: cannot be loaded ({why}), and the sizes of this data are "
                    f"not published; put it there, or say them: {OPTION} "
                    "'{clients: 20, train: 6000, test: 1000, classes: 5}'"
                ) from error
    dataset = keep_natural_clients(data, data.stand_in(found, loaded.job.seed), loaded.job.seed)
    whose = f"as {OPTION} says" if sizes else f"as published ({why})"
    drawn = ""
    if found.clients is not None and found.spread:
        drawn = f"; sizes of clients are drawn, lognormal with sigma {found.spread:g}"
    return PlannedData(loaded, dataset, False, (*notes, f"data {kind}, {whose}: {found}{drawn}"))


def _without_missing_split(loaded: LoadedJob) -> tuple[LoadedJob, tuple[str, ...]]:
    """The job with an even split in the place of one whose file is not there."""
    data = loaded.job.data
    if not isinstance(data.partition, File) or Path(data.partition.path).exists():
        return loaded, ()
    if data.clients is None:
        raise JobError(
            f"data.partition.path: {data.partition.path} is not there, and the job does not say "
            "how many clients it has; put it there, or say data.clients=N"
        )
    job = replace(loaded.job, data=replace(data, partition=Iid()))
    note = (
        f"data.partition.path: {data.partition.path} is not there: planned with {data.clients} "
        "equal clients"
    )
    return replace(loaded, job=job), (note,)
