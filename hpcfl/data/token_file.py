"""A compact file of sentences: made once by ``hpcfl data prepare``, mapped into memory by ranks.

    /words                   [V] texts, the vocabulary
    /done                    [2] how many users of train and of test are written
    /train, /test: tokens    [n, length + 1] 16-bit classes, a user's sentences one after the other
                   last      [n] the last token of each before its padding
                   offsets   [users + 1] where each user's sentences begin, and the last one's end
                   users     [users] their names

HDF5 creates NAME.part with all datasets at their full size before the first sentence is read.  The
sentences are then written to their offsets in that file without HDF5, and ``done`` is updated after
every ``BLOCK`` of them.  A kill thus damages nothing: the next call resumes after the last
``done``, and the file gets its final name when it is complete.
"""

import os
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, Protocol

import h5py
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hpcfl.data.download import Track
from hpcfl.data.hdf5 import attribute, member, opened, strings
from hpcfl.data.prepared_file import commit, preparation_errors
from hpcfl.data.vocabulary import Vocabulary, last_tokens
from hpcfl.errors import DataError
from hpcfl.io.atomic import PART, remove_part
from hpcfl.io.new_hdf5 import new_hdf5
from hpcfl.io.regular import open_binary, open_fd
from hpcfl.types import IntArray

FORMAT = np.bytes_(b"hpcfl sentences 1")
SPLITS = ("train", "test")
BLOCK = 1 << 18  # sentences between two updates of ``done``, each of which waits for the disk
_AGAIN = "remove it and prepare the data again"


class Source(Protocol):
    """Where the sentences of a split come from."""

    @property
    def users(self) -> Mapping[str, int]:
        """The number of sentences of each user, at least one."""
        ...

    def read(self, users: Sequence[str]) -> Iterator[Sequence[Sequence[str]]]:
        """The sentences of each of these users, each a sequence of words."""
        ...


@dataclass(frozen=True)
class SentenceSplit:
    """The sentences of one split, mapped into memory."""

    tokens: Tensor  # int16 [n, length + 1]
    last: Tensor  # int16 [n]
    offsets: IntArray  # [users + 1]

    @property
    def users(self) -> int:
        """The number of users."""
        return len(self.offsets) - 1


class _Contents(NamedTuple):
    """Everything that a file is to hold."""

    attributes: Mapping[str, np.bytes_]
    """Its format, and the inputs that it is made from."""
    vocabulary: Vocabulary
    length: int
    """Words of a sentence, at most."""
    sources: Mapping[str, Source]
    """The sentences of each split."""


def pack(
    path: Path,
    about: str,
    origin: str,
    vocabulary: Vocabulary,
    length: int,
    sources: Mapping[str, Source],
    track: Track,
) -> None:
    """Make the file, or resume an earlier call with the same arguments that was stopped.

    Args:
        path: of the file.
        about: the settings that the sentences depend on, kept in the file.
        origin: identifies the source files, kept in the file.
        vocabulary: of the words.
        length: words of a sentence, at most.
        sources: of each split.
        track: shows the progress.

    Raises:
        DataError: a source is damaged, or the file cannot be written.
        DiskError: the disk is full or fails.
    """
    part = path.with_name(path.name + PART)
    with preparation_errors(path):
        attributes = {"format": FORMAT, "about": _text(about), "origin": _text(origin)}
        contents = _Contents(attributes, vocabulary, length, sources)
        if not _can_resume(part, contents):
            _create(part, contents)
        with os.fdopen(open_fd(part, os.O_RDWR), "r+b") as file:
            for name in SPLITS:
                _write_split(file, part, name, contents, track)
        commit(part, path)


def read(
    path: Path, about: str, size: int, length: int
) -> tuple[Vocabulary, dict[str, SentenceSplit]]:
    """Check that the file is the one that a job needs, and map its sentences into memory.

    Args:
        path: of the file.
        about: the settings that its sentences must have been made with.
        size: of the vocabulary.
        length: words of a sentence, at most.

    Raises:
        DataError: it is missing, damaged, unfinished or of another kind.
    """
    with opened(path) as file:
        _expect(path, "its format", attribute(file, "format"), FORMAT)
        _expect(path, "made of", attribute(file, "about"), _text(about))
        words = [word.decode() for word in strings(path, file, "words")[()]]
        _expect(path, "words", len(words), size)
        splits = {name: _split(path, file, name, length) for name in SPLITS}
        done = tuple(_array(path, file, "done", np.int64, (len(SPLITS),))[()].tolist())
        _expect(path, "users written", done, tuple(split.users for split in splits.values()))
        return Vocabulary(words), splits


def check_tokens(path: Path, tokens: Tensor, classes: int) -> None:
    """Check that tokens of the file, int16 [...], are classes.

    Raises:
        DataError: one is not.
    """
    # As unsigned numbers, so that a negative token is larger than every class.
    most = tokens.numpy().view(np.uint16).max(initial=0)
    if most >= classes:
        raise DataError(
            f"{path}: found token {most.astype(np.int16)}, expected 0 to {classes - 1}: the file "
            f"is damaged; {_AGAIN}"
        )


def _can_resume(part: Path, contents: _Contents) -> bool:
    """Whether there is an unfinished file of the same contents."""
    if not part.exists():
        return False
    try:
        with opened(part) as file:
            same = [
                *(attribute(file, name) == value for name, value in contents.attributes.items()),
                file["words"][()].tolist() == _names(contents.vocabulary.words).tolist(),
            ]
            for name, source in contents.sources.items():
                same += [
                    file[name]["users"][()].tolist() == _names(source.users).tolist(),
                    file[name]["offsets"][()].tolist() == _offsets(source).tolist(),
                    file[name]["tokens"].shape[1] == contents.length + 1,
                ]
            return all(same)
    except DataError:  # killed while it was created: it holds no sentence yet
        return False


def _create(part: Path, contents: _Contents) -> None:
    """Write a file of all contents but the sentences, for which it reserves space."""
    length, sources = contents.length, contents.sources
    totals = [sum(source.users.values()) for source in sources.values()]
    words, users = _names(contents.vocabulary.words), [_names(s.users) for s in sources.values()]
    room = words.nbytes + sum(names.nbytes + 8 * len(names) for names in users)
    room += 2 * (length + 2) * sum(totals)
    new = part.with_name(part.name + PART)
    try:
        with new_hdf5(new, room) as file:
            file.attrs.update(contents.attributes)
            file["words"] = words
            file.create_dataset("done", data=np.zeros(len(SPLITS), dtype=np.int64))
            for (name, source), total, own in zip(sources.items(), totals, users, strict=True):
                group = file.create_group(name)
                group["users"], group["offsets"] = own, _offsets(source)
                for field, shape in {"tokens": (total, length + 1), "last": (total,)}.items():
                    group.create_dataset(field, shape, np.int16, dcpl=_contiguous())
        new.replace(part)
    except OSError:
        remove_part(new)
        raise


def _contiguous() -> Any:
    """Creation properties of a dataset in one piece of the file, allocated at its creation."""
    properties = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    properties.set_layout(h5py.h5d.CONTIGUOUS)
    properties.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
    properties.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
    return properties


def _write_split(file: BinaryIO, part: Path, name: str, contents: _Contents, track: Track) -> None:
    """Write the sentences of a split that are not in the file yet."""
    number, source = SPLITS.index(name), contents.sources[name]
    with opened(part) as datasets:
        start = {field: datasets[name][field].id.get_offset() for field in ("tokens", "last")}
        done_at = datasets["done"].id.get_offset() + 8 * number
        done = int(datasets["done"][number])
    users, offsets, unrecorded = list(source.users), _offsets(source), 0
    texts = track(source.read(users[done:]), f"writing {name} users", len(users) - done)
    for index, sentences in enumerate(texts, done):
        rows = contents.vocabulary.encode(sentences, contents.length)
        _write(file, start["tokens"] + int(offsets[index]) * rows[:1].nbytes, rows)
        _write(file, start["last"] + int(offsets[index]) * rows.itemsize, last_tokens(rows))
        unrecorded += len(rows)
        if unrecorded >= BLOCK:
            _record_done(file, done_at, index + 1)
            unrecorded = 0
    _record_done(file, done_at, len(users))


def _write(file: BinaryIO, offset: int, array: NDArray[Any]) -> None:
    file.seek(offset)
    file.write(array.data)


def _record_done(file: BinaryIO, offset: int, users: int) -> None:
    """Record the number of users that are written, after their sentences have reached the disk.

    In the other order, a crash could leave users that count as written but are not.
    """
    file.flush()
    os.fsync(file.fileno())
    _write(file, offset, np.array([users]))
    file.flush()
    os.fsync(file.fileno())


def _text(text: str) -> np.bytes_:
    return np.bytes_(text.encode())


def _names(names: Iterable[str]) -> NDArray[np.bytes_]:
    return np.array([name.encode() for name in names])


def _offsets(source: Source) -> IntArray:
    return np.cumsum([0, *source.users.values()], dtype=np.int64)


def _split(path: Path, file: Any, name: str, length: int) -> SentenceSplit:
    """A split of an open file."""
    group = member(path, file, name, h5py.Group)
    offsets = _array(path, group, "offsets", np.int64)[()]
    if len(offsets) < 2 or offsets[0] or (offsets[1:] <= offsets[:-1]).any():
        raise DataError(f"{path}: /{name}/offsets do not rise from 0; {_AGAIN}")
    total = int(offsets[-1])
    return SentenceSplit(
        _mapped(path, _array(path, group, "tokens", np.int16, (total, length + 1))),
        _mapped(path, _array(path, group, "last", np.int16, (total,))),
        offsets,
    )


def _array(
    path: Path, group: Any, name: str, dtype: type[Any], shape: tuple[int, ...] | None = None
) -> Any:
    """A dataset, not read yet, whose bytes are in one piece of the file."""
    found = member(path, group, name, h5py.Dataset)
    _expect(path, f"the type of {found.name}", found.dtype, np.dtype(dtype))
    _expect(path, f"the shape of {found.name}", found.shape, shape or found.shape[:1])
    offset = found.id.get_offset()
    if offset is None or offset + found.nbytes > path.stat().st_size:
        raise DataError(f"{path}: {found.name} is not in one piece of the file; {_AGAIN}")
    return found


def _mapped(path: Path, found: Any) -> Tensor:
    """A dataset as pages of the file, read from the disk when they are first used."""
    with open_binary(path) as content:
        array = np.memmap(content, found.dtype, "r", found.id.get_offset(), found.shape)
    with warnings.catch_warnings():  # the tensor is only read
        warnings.filterwarnings("ignore", "The given NumPy array is not writable")
        return torch.from_numpy(array)


def _expect(path: Path, what: str, found: Any, expected: Any) -> None:
    if found != expected:
        raise DataError(f"{path}: {what}: found {found}, expected {expected}; {_AGAIN}")
