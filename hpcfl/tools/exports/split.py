"""Export the partition of a job's examples as a file for other jobs and programs."""

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcfl.data.partition import ExampleRows
from hpcfl.data.split import split_examples, tests_of_clients
from hpcfl.io.words import counted
from hpcfl.job.schema import LoadedJob
from hpcfl.runs.outputs import check_output, write_output
from hpcfl.start.components.load_data import fetch_data, load_data

_HELD = ("holdout", "validation")
_ENDINGS = (".npz",)


def export_split(loaded: LoadedJob, path: Path) -> str:
    """Write the clients of the examples to an .npz.

    ``client``, int32 [n]: the client that trains on each training example, -1 where none does.
    ``holdout``, int32 [n], with ``data.holdout``: the client that each of them is held out of.
    ``validation``, bool [n], with ``data.validation``: whether it is kept for validation.
    ``test``, int32 [test examples], of natural clients where the data says whose its test examples
    are: the client of each.

    With ``partition: {kind: file, path: F.npz}`` the same data set gives the same clients.
    Examples held out for tests or validation have no client either: a job that reads the file needs
    neither data.holdout nor data.validation.

    Returns:
        A line for the user: the file, and how many examples have a client.

    Raises:
        JobError, DataError: the data cannot be loaded or partitioned, or the file not be written.
        DiskError: the disk is full or fails.
    """
    check_output(path, _ENDINGS)
    job = loaded.job
    fetch_data(loaded)
    dataset = load_data(loaded)
    split = split_examples(job.data, dataset, job.seed)
    rows, keys = split.rows, [f"data.{key}=null" for key in _HELD if getattr(job.data, key)]
    note = f"; without {split.note}, so set {' '.join(keys)}" if keys else ""
    count = len(dataset.train.labels)
    client = _owners(rows, count)
    arrays: dict[str, NDArray[Any]] = {"client": client}
    if split.held_out is not None:
        arrays["holdout"] = _owners(split.held_out, count)
    if split.validation is not None:
        arrays["validation"] = np.isin(np.arange(count), split.validation)
    tests = tests_of_clients(job.data, dataset, split, job.seed)
    if dataset.test is not None and tests is not None:
        arrays["test"] = _owners(tests, len(dataset.test.labels))
    buffer = io.BytesIO()
    np.savez_compressed(buffer, allow_pickle=False, **arrays)
    write_output(path, buffer.getvalue(), _ENDINGS)
    assigned = np.count_nonzero(client >= 0)
    clients = counted(len(rows), "client")
    return f"{path}: {assigned} of {len(client)} training examples to {clients}{note}"


def _owners(clients: Sequence[ExampleRows], count: int) -> NDArray[np.int32]:
    """[count]: the client of each example, -1 where it has none."""
    owner = np.full(count, -1, dtype=np.int32)
    for client, own in enumerate(clients):
        owner[own] = client
    return owner
