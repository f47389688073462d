"""Export the partition of a job's examples as a file for other jobs and programs."""

import io
from pathlib import Path

import numpy as np

from hpcfl.data.split import split_examples
from hpcfl.io.atomic import check_output, write_output
from hpcfl.job.schema import LoadedJob
from hpcfl.setup.load_data import fetch_data, load_data

_HELD = ("holdout", "validation")


def export_split(loaded: LoadedJob, path: Path) -> str:
    """Write the array ``client`` to an .npz: int32 [n], the client of each training example.

    It is -1 for examples of no client.
    With ``partition: {kind: file, path: F.npz}`` the same data set gives the same clients.
    Examples held out for tests or validation have no client either: a job that reads the file needs
    neither data.holdout nor data.validation.

    Returns:
        A line for the user: the file, and how many examples have a client.

    Raises:
        JobError, DataError: the data cannot be loaded or partitioned, or the file not be written.
        DiskError: the disk is full or fails.
    """
    check_output(path)
    job = loaded.job
    fetch_data(loaded)
    dataset = load_data(loaded)
    split = split_examples(job.data, dataset, job.seed)
    rows, keys = split.rows, [f"data.{key}=null" for key in _HELD if getattr(job.data, key)]
    note = f"; without {split.note}, so set {' '.join(keys)}" if keys else ""
    client = np.full(len(dataset.train.labels), -1, dtype=np.int32)
    for owner, own in enumerate(rows):
        client[own] = owner
    buffer = io.BytesIO()
    np.savez_compressed(buffer, allow_pickle=False, client=client)
    write_output(path, buffer.getvalue())
    assigned = np.count_nonzero(client >= 0)
    return f"{path}: {assigned} of {len(client)} training examples to {len(rows)} clients{note}"
