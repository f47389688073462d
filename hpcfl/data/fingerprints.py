"""Fingerprints of all inputs of a job, recorded by checkpoints and compared at every resume.

A fingerprint is a digest under the input's name: {"data.root/cifar10.npz": "sha256:1a2b..."}.
The name begins with the key of the job that says where the file is, so that data may move.
"""

import hashlib
import json
import socket
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event
from typing import Self

import numpy as np
import torch
from torch import Tensor

from hpcfl.cohort.sampling import CohortConfig, Replay
from hpcfl.comm.base import Comm
from hpcfl.comm.failure import raise_collectively
from hpcfl.data.base import DataConfig, Dataset
from hpcfl.data.inputs import InputFile, shown
from hpcfl.data.partition import File
from hpcfl.data.source_fingerprint import stamp
from hpcfl.errors import DataError
from hpcfl.io.cgroups import usable_cores
from hpcfl.io.files import parse_json
from hpcfl.types import Examples

Digests = Mapping[str, str]
_THREADS = 4  # digests at a time: together about as fast as a disk
_ROWS = 1 << 12  # examples of a file that are read at a time
_NEITHER = "or run the job again into another directory"


class InputNames:
    """The names of a job's input files.

    Args:
        places: the keys of the job that say where its inputs are, with these paths; the first that
            contains a file names it.
    """

    def __init__(self, places: Mapping[str, str]) -> None:
        self._places = {key: Path(place) for key, place in places.items()}

    def of(self, file: InputFile) -> str:
        """The file's label; else its name by a key, as "data.root/cifar10.npz"; else its path."""
        return file.label or self._name(file.path)

    def _name(self, path: Path) -> str:
        for key, place in self._places.items():
            if path.is_relative_to(place):
                return str(Path(key) / path.relative_to(place))
        return str(path)

    def path(self, name: str) -> str:
        """The path of the file with this name; other names are returned as they are."""
        key, _, rest = name.partition("/")
        return str(self._places[key] / rest) if key in self._places else name


class Fingerprints:
    """Reads a job's input files by threads of its own while the job is loaded; a context manager.

    Args:
        data: the job's data section, its files fetched.
        cohort: the job's cohort section.
        places: the keys of the job that say where its inputs are, with these paths.

    Attributes:
        names: of the files.
    """

    def __init__(self, data: DataConfig, cohort: CohortConfig, places: Mapping[str, str]) -> None:
        own = data.input_files()
        self._loaded = type(data).__name__ if own is None else None
        self._files = [*(own or ())]
        if isinstance(data.partition, File):
            self._files.append(InputFile(Path(data.partition.path)))
        if isinstance(cohort, Replay) and cohort.path is not None:
            self._files.append(InputFile(Path(cohort.path)))
        self.names = InputNames(places)
        self._stamps = {file: stamp(file.path) for file in self._files}
        self._stopped = Event()
        self._threads = ThreadPoolExecutor(min(_THREADS, len(usable_cores())), "fingerprints")

    def __enter__(self) -> Self:
        self._digests = {
            file: self._threads.submit(file.digest, self._stopped) for file in self._files
        }
        return self

    def __exit__(self, *exception: object) -> None:
        self._stopped.set()
        self._threads.shutdown(cancel_futures=True)

    def of(self, dataset: Dataset) -> Digests:
        """The fingerprints, once all has been loaded.

        Data whose class does not tell its files have the fingerprint of what they load.

        Args:
            dataset: what ``data.load`` returned.

        Raises:
            DataError: a file cannot be read, or changed while it was loaded.
        """
        found = {self.names.of(file): digest.result() for file, digest in self._digests.items()}
        for file, before in self._stamps.items():
            if stamp(file.path) != before:
                raise DataError(f"{file.path}: changed while it was read; start again")
        if self._loaded is not None:
            found[f"what {self._loaded} loads"] = _loaded(dataset)
        return dict(sorted(found.items()))


def require_alike(inputs: Digests, names: InputNames, comm: Comm) -> None:
    """Collective: refuse ranks that read other inputs than rank 0, such as other copies on a host.

    Args:
        inputs: of this rank.
        names: for messages.
        comm: of all ranks.

    Raises:
        DataError: an input is another one on this rank.
    """
    first = parse_json(comm.bcast(json.dumps(dict(inputs))))
    with raise_collectively(comm):
        name = _differing(first, inputs)
        if name is not None:
            path = names.path(name)
            raise DataError(
                f"{path}: rank {comm.rank} on host {socket.gethostname()} reads another content "
                f"({_told(inputs, name)}) than rank 0 ({_told(first, name)}); copy the same file "
                "to every host"
            )


def require_same(
    before: Digests, now: Digests, names: InputNames, earlier: InputNames, run: Path
) -> None:
    """Refuse inputs that changed since a run began, as its rounds so far depend on them.

    Args:
        before: of the run's checkpoint.
        now: as they are.
        names: of the job as it is now.
        earlier: of the run's job, where the paths may be others.
        run: its directory.

    Raises:
        DataError: one is another, is missing, or came on top.
    """
    name = _differing(before, now)
    if name is None:
        return
    path = names.path(name)
    if name not in now:
        raise DataError(
            f"{path}: was read when {run} began ({_told(before, name)}), but is not any more; put "
            f"the file back, {_NEITHER}"
        )
    if name not in before:
        raise DataError(
            f"{path}: is read now, but was not when {run} began; move the file away, {_NEITHER}"
        )
    old = earlier.path(name)
    if old != path:
        raise DataError(
            f"{path}: has another content ({_told(now, name)}) than {old} had when {run} began "
            f"({_told(before, name)}); name the same file at its new place, {_NEITHER}"
        )
    raise DataError(
        f"{path}: its content changed since {run} began ({_told(now, name)} now, "
        f"{_told(before, name)} then); put the file back, {_NEITHER}"
    )


def _differing(before: Digests, now: Digests) -> str | None:
    """The first input that differs; added inputs before those that they replaced."""
    names = [*sorted(now.keys() - before.keys()), *sorted(before)]
    return next((name for name in names if before.get(name) != now.get(name)), None)


def _told(digests: Digests, name: str) -> str:
    return shown(digests[name]) if name in digests else "nothing"


def _loaded(dataset: Dataset) -> str:
    """A digest of all examples and their clients."""
    found = hashlib.sha256()
    for examples in (dataset.train, dataset.test):
        if examples is not None:
            for tensor in _tensors(examples):
                found.update(repr((tensor.dtype, tuple(tensor.shape))).encode())
                found.update(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data)
    for rows in dataset.natural or ():
        found.update(repr(len(rows)).encode())
        found.update(np.ascontiguousarray(rows, dtype=np.int64).data)
    found.update(repr((dataset.classes, dataset.loss)).encode())
    return f"sha256:{found.hexdigest()}"


def _tensors(examples: Examples) -> Iterator[Tensor]:
    """Inputs and labels; inputs in a file are read in pieces."""
    inputs, count = examples.inputs, len(examples.labels)
    if isinstance(inputs, Tensor):
        yield inputs
    else:
        for begin in range(0, count, _ROWS):
            yield inputs.read(np.arange(begin, min(begin + _ROWS, count)))
    yield examples.labels
