"""Export the partition of a job's examples as a file for other jobs and programs."""

import io
from pathlib import Path

import numpy as np

from hpcfl.data.holdout import hold_out
from hpcfl.data.split import partition_examples
from hpcfl.io.atomic import check_output, write_output
from hpcfl.job.schema import Loaded
from hpcfl.runner.initial import fetch_data, load_data


def export_split(loaded: Loaded, path: Path) -> str:
    """Write the array ``client`` to an .npz: int32 [n], the client of each training example.

    It is -1 for examples of no client.
    With ``partition: {kind: file, path: F.npz}`` the same data set gives the same clients.
    Held-out examples have no client either: a job that reads the file needs no data.holdout.

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
    rows = partition_examples(job.data, dataset, job.seed)
    note = ""
    if job.data.holdout is not None:
        rows, held = hold_out(rows, job.data.holdout, job.seed)
        note = f"; without {sum(map(len, held))} that are held out, so set data.holdout=null"
    client = np.full(len(dataset.train.labels), -1, dtype=np.int32)
    for owner, own in enumerate(rows):
        client[own] = owner
    buffer = io.BytesIO()
    np.savez_compressed(buffer, allow_pickle=False, client=client)
    write_output(path, buffer.getvalue())
    assigned = np.count_nonzero(client >= 0)
    return f"{path}: {assigned} of {len(client)} training examples to {len(rows)} clients{note}"
