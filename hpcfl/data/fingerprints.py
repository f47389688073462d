"""Fingerprints of all inputs of a job, recorded by checkpoints and compared at every resume.

A fingerprint is a digest under the input's name: {"data.root": "sha256:1a2b..."}.  The name is the
key of the job that says where the input is, so that it may move: "data.root" or "data.path" for
what ``load`` returns, "data.partition.path", "cohort.path" and "devices.path" for these files.
"""

import json
import socket
from collections.abc import Iterator, Mapping, Sequence
from hashlib import file_digest, sha256
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hpcfl.comm.base import Comm
from hpcfl.comm.failure import raise_collectively
from hpcfl.data.base import DataConfig, Dataset
from hpcfl.data.partition import ExampleRows, RowRanges
from hpcfl.data.split import Split
from hpcfl.errors import DataError
from hpcfl.io.files import parse_json, read_error
from hpcfl.io.regular import open_binary
from hpcfl.types import Examples

Digests = Mapping[str, str]
Places = Mapping[str, str]
"""The keys of a job that say where its inputs are, with these paths."""
_DATA = ("data.root", "data.path")
_FILES = ("data.partition.path", "cohort.path", "devices.path")
_ROWS = 1 << 12  # examples that are read at a time
_DIGITS = 12  # of a digest, in messages
_NEITHER = "or run the job again into another directory"


def fingerprints(data: DataConfig, dataset: Dataset, places: Places) -> Digests:
    """The fingerprints of a job's inputs.

    Args:
        data: the job's data section.
        dataset: what it loaded, with its ``digest``.
        places: the keys of the job that say where its inputs are, with these paths.

    Raises:
        DataError: a file cannot be read.
        DiskError: the disk fails.
    """
    loaded = next((key for key in _DATA if key in places), f"what {type(data).__name__} loads")
    found = {key: _of_file(Path(places[key])) for key in _FILES if key in places}
    return dict(sorted({**found, loaded: dataset.digest}.items()))


def digest(dataset: Dataset) -> str:
    """The sha256 of all examples and their clients, behind its name.

    Of examples in a prepared file, which may be larger than the memory, their shapes and
    ``Dataset.origin`` are taken.
    """
    found = sha256(repr((dataset.classes, dataset.loss, dataset.origin)).encode())
    for part in (dataset.train, dataset.test):
        if part is None:
            found.update(b"none")
            continue
        for of_part in part:
            found.update(repr((of_part.dtype, tuple(of_part.shape))).encode())
        if not dataset.origin:
            for piece in _pieces(part):
                found.update(piece.contiguous().reshape(-1).view(torch.uint8).numpy().data)
    for clients in (dataset.natural, dataset.natural_tests):
        _add_clients(found, clients)
    return f"sha256:{found.hexdigest()}"


def split_digest(split: Split) -> str:
    """The sha256 of the examples of each client, and of those held out, behind its name."""
    found = sha256()
    kept = None if split.validation is None else [split.validation]
    for clients in (split.rows, split.held_out, kept):
        _add_clients(found, clients)
    return f"sha256:{found.hexdigest()}"


def _add_clients(found: Any, clients: Sequence[ExampleRows] | None) -> None:
    """Add the rows of clients to a digest."""
    found.update(repr(None if clients is None else len(clients)).encode())
    for rows in _rows(clients or ()):
        found.update(repr(len(rows)).encode())
        found.update(np.ascontiguousarray(rows, dtype=np.int64).data)


def shown(digest: str) -> str:
    """A digest for messages: its kind and its first digits."""
    kind, _, value = digest.partition(":")
    return f"{kind} {value[:_DIGITS]}"


def require_alike(inputs: Digests, places: Places, comm: Comm) -> None:
    """Collective: refuse ranks that read other inputs than rank 0, such as other copies on a host.

    Args:
        inputs: of this rank.
        places: for messages.
        comm: of all ranks.

    Raises:
        DataError: an input is another one on this rank.
    """
    first = parse_json(comm.bcast(json.dumps(dict(inputs))))
    with raise_collectively(comm):
        name = _differing(first, inputs)
        if name is not None:
            raise DataError(
                f"{places.get(name, name)}: rank {comm.rank} on host {socket.gethostname()} reads "
                f"another content ({_told(inputs, name)}) than rank 0 ({_told(first, name)}); copy "
                "the same files to every host"
            )


def require_same(before: Digests, now: Digests, places: Places, earlier: Places, run: Path) -> None:
    """Refuse inputs that changed since a run began, as its rounds so far depend on them.

    Args:
        before: of the run's checkpoint.
        now: as they are.
        places: of the job as it is now.
        earlier: of the run's job, where the paths may be others.
        run: its directory.

    Raises:
        DataError: one is another, or another version named the inputs otherwise.
    """
    name = _differing(before, now)
    if name is None:
        return
    path, old = places.get(name, name), earlier.get(name, name)
    if before.keys() != now.keys():
        raise DataError(
            f"{run}: began with the inputs {', '.join(sorted(before))}, which are now "
            f"{', '.join(sorted(now))}: another version of hpcfl recorded them; resume with that "
            f"version, {_NEITHER}"
        )
    if old != path:
        raise DataError(
            f"{path}: has another content ({_told(now, name)}) than {old} had when {run} began "
            f"({_told(before, name)}); name the same data at their new place, {_NEITHER}"
        )
    raise DataError(
        f"{path}: its content changed since {run} began ({_told(now, name)} now, "
        f"{_told(before, name)} then); put it back, {_NEITHER}"
    )


def _differing(before: Digests, now: Digests) -> str | None:
    """The first input that differs."""
    names = sorted({*before, *now})
    return next((name for name in names if before.get(name) != now.get(name)), None)


def _told(digests: Digests, name: str) -> str:
    return shown(digests[name]) if name in digests else "nothing"


def _of_file(path: Path) -> str:
    """The sha256 of a file's content."""
    try:
        with open_binary(path) as file:
            return f"sha256:{file_digest(file, 'sha256').hexdigest()}"
    except OSError as error:
        message = f"{path}: cannot be read: {error.strerror or error}"
        raise read_error(error, message, DataError) from error


def _pieces(examples: Examples) -> Iterator[Tensor]:
    """Inputs, then labels, some rows at a time: the inputs may be in a file, or overlap."""
    count, inputs = len(examples.labels), examples.inputs
    starts = range(0, count, _ROWS)
    for begin in starts:
        if isinstance(inputs, Tensor):
            yield inputs[begin : begin + _ROWS]
        else:
            yield inputs.read(np.arange(begin, min(begin + _ROWS, count)))
    for begin in starts:
        yield examples.labels[begin : begin + _ROWS]


def _rows(clients: Sequence[ExampleRows]) -> Sequence[Any]:
    """The rows of each client, or of all that are stored in order their starts and sizes."""
    return (clients.starts, clients.sizes) if isinstance(clients, RowRanges) else clients
