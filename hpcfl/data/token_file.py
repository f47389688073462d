"""A compact file of sentences, made once by ``hpcfl data prepare`` and mapped by every rank.

    /words                   [V] texts, the vocabulary
    /done                    [2] how many users of train and of test are written
    /train, /test: tokens    [n, length + 1] 16-bit classes, a user's sentences one after the other
                   last      [n] the last token of each before its padding
                   offsets   [users + 1] where each user's sentences begin, and the last one's end
                   users     [users] their names

HDF5 lays the file out whole, as NAME.part, before the first sentence is read; these are then
written to their places beside HDF5, ``done`` after every so many of them.  So a kill damages
nothing, the next call goes on behind the last ``done``, and the file gets its name when it is
whole.
"""

import os
import shutil
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import h5py
import numpy as np
import torch
from numpy.typing import NDArray
from rich.filesize import decimal
from torch import Tensor

from hpcfl.data.download import Track
from hpcfl.data.hdf5 import attribute, member, opened, strings
from hpcfl.data.vocabulary import Vocabulary, last_tokens
from hpcfl.errors import DataError, DiskError, is_disk_failure
from hpcfl.io.atomic import PART, remove_part, sync_folder

FORMAT = np.bytes_(b"hpcfl sentences 1")
SPLITS = ("train", "test")
BLOCK = 1 << 18  # sentences between two notes of what is done
_METADATA = 1 << 20  # bytes, generous
_AGAIN = "remove it and prepare the data again"


class Source(Protocol):
    """Where the sentences of a split come from."""

    @property
    def users(self) -> Mapping[str, int]:
        """How many sentences each user has, one at least."""
        ...

    def read(self, users: Sequence[str]) -> Iterator[Sequence[Sequence[str]]]:
        """The sentences of each of these users, each as its words."""
        ...


@dataclass(frozen=True)
class Split:
    """The sentences of one split, mapped into memory."""

    tokens: Tensor  # int16 [n, length + 1]
    last: Tensor  # int16 [n]
    offsets: NDArray[np.int64]  # [users + 1]

    @property
    def users(self) -> int:
        """How many there are."""
        return len(self.offsets) - 1


def pack(
    path: Path,
    about: str,
    origin: str,
    vocabulary: Vocabulary,
    length: int,
    sources: Mapping[str, Source],
    track: Track,
) -> None:
    """Make the file, or go on where an earlier call of the same kind was stopped.

    Args:
        path: of the file.
        about: what else it depends on, kept in it.
        origin: what tells the sources from others, kept in it.
        vocabulary: of the words.
        length: words of a sentence, at most.
        sources: of each split.
        track: shows how far it is.

    Raises:
        DataError: a source is damaged, or the disk is full.
    """
    part = path.with_name(path.name + PART)
    try:
        attributes = {"format": FORMAT, "about": _text(about), "origin": _text(origin)}
        if not _goes_on(part, attributes, vocabulary, length, sources):
            _lay_out(part, attributes, vocabulary, length, sources)
        with part.open("r+b") as file:
            for k, name in enumerate(SPLITS):
                _fill(file, part, k, name, vocabulary, length, sources[name], track)
        part.replace(path)
        sync_folder(path.parent)
    except (OSError, RuntimeError) as error:  # h5py's close raises the latter on a full disk
        reason = " ".join((getattr(error, "strerror", None) or str(error)).split())
        sound = isinstance(error, OSError) and error.errno and not is_disk_failure(error)
        raise (DataError if sound else DiskError)(f"{part}: cannot be written: {reason}") from error


def origin_of(path: Path) -> str:
    """What told the sources of the file from others; nothing if it does not say.

    Raises:
        DataError: it is damaged.
    """
    with opened(path) as file:
        return str(attribute(file, "origin") or b"", "utf-8")


def read(path: Path, about: str, size: int, length: int) -> tuple[Vocabulary, dict[str, Split]]:
    """Map the sentences into memory, after checking that the file is what a job takes it for.

    Args:
        path: of the file.
        about: what it was made of.
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
    """See whether tokens of the file, int16 [...], are classes.

    Raises:
        DataError: one is not.
    """
    most = tokens.numpy().view(np.uint16).max(initial=0)  # negative ones become large
    if most >= classes:
        raise DataError(
            f"{path}: found token {most.astype(np.int16)}, expected 0 to {classes - 1}: the file "
            f"is damaged; {_AGAIN}"
        )


def _goes_on(
    part: Path,
    attributes: Mapping[str, np.bytes_],
    vocabulary: Vocabulary,
    length: int,
    sources: Mapping[str, Source],
) -> bool:
    """Whether an unfinished file is there that holds the same users and words."""
    if not part.exists():
        return False
    try:
        with opened(part) as file:
            same = [
                *(attribute(file, name) == value for name, value in attributes.items()),
                file["words"][()].tolist() == _names(vocabulary.words).tolist(),
            ]
            for name, source in sources.items():
                same += [
                    file[name]["users"][()].tolist() == _names(source.users).tolist(),
                    file[name]["offsets"][()].tolist() == _offsets(source).tolist(),
                    file[name]["tokens"].shape[1] == length + 1,
                ]
            return all(same)
    except DataError:  # killed while it was laid out: it held nothing yet
        return False


def _lay_out(
    part: Path,
    attributes: Mapping[str, np.bytes_],
    vocabulary: Vocabulary,
    length: int,
    sources: Mapping[str, Source],
) -> None:
    """Write a file with everything but the sentences, and room for them."""
    totals = [sum(source.users.values()) for source in sources.values()]
    need = 2 * (length + 2) * sum(totals)
    free = shutil.disk_usage(part.parent).free
    if need + _METADATA > free:  # a full disk inside HDF5 ends in a segmentation fault
        raise DataError(f"{part}: needs {decimal(need)}, but {decimal(free)} are free; make room")
    new = part.with_name(part.name + PART)
    try:
        with h5py.File(new, "w", libver=("v108", "v108"), locking=False) as file:
            file.attrs.update(attributes)
            file["words"] = _names(vocabulary.words)
            file.create_dataset("done", data=np.zeros(len(SPLITS), dtype=np.int64))
            for (name, source), total in zip(sources.items(), totals, strict=True):
                group = file.create_group(name)
                group["users"], group["offsets"] = _names(source.users), _offsets(source)
                for field, shape in {"tokens": (total, length + 1), "last": (total,)}.items():
                    group.create_dataset(field, shape, np.int16, dcpl=_at_once())
        with new.open("r+b") as file:
            os.posix_fallocate(file.fileno(), 0, new.stat().st_size)
            os.fsync(file.fileno())
        new.replace(part)
    except (OSError, RuntimeError):
        remove_part(new)
        raise


def _at_once() -> Any:
    """Storage in one piece, that is there from the beginning."""
    plan = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    plan.set_layout(h5py.h5d.CONTIGUOUS)
    plan.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
    plan.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
    return plan


def _fill(
    file: BinaryIO,
    part: Path,
    split: int,
    name: str,
    vocabulary: Vocabulary,
    length: int,
    source: Source,
    track: Track,
) -> None:
    """Write the sentences of number ``split`` that are not there yet."""
    with opened(part) as layout:
        at = {field: layout[name][field].id.get_offset() for field in ("tokens", "last")}
        note = layout["done"].id.get_offset() + 8 * split
        done = int(layout["done"][split])
    users, offsets, fresh = list(source.users), _offsets(source), 0
    texts = track(source.read(users[done:]), f"writing {name} users", len(users) - done)
    for index, sentences in enumerate(texts, done):
        rows = vocabulary.encode(sentences, length)
        _write(file, at["tokens"] + int(offsets[index]) * rows[:1].nbytes, rows)
        _write(file, at["last"] + int(offsets[index]) * rows.itemsize, last_tokens(rows))
        fresh += len(rows)
        if fresh >= BLOCK:
            _note(file, note, index + 1)
            fresh = 0
    _note(file, note, len(users))


def _write(file: BinaryIO, place: int, array: NDArray[Any]) -> None:
    file.seek(place)
    file.write(array.data)


def _note(file: BinaryIO, place: int, users: int) -> None:
    """Put down how many users are done, after what they wrote has reached the disk."""
    file.flush()
    os.fsync(file.fileno())
    _write(file, place, np.array([users]))
    file.flush()
    os.fsync(file.fileno())


def _text(text: str) -> np.bytes_:
    return np.bytes_(text.encode())


def _names(names: Iterable[str]) -> NDArray[np.bytes_]:
    return np.array([name.encode() for name in names])


def _offsets(source: Source) -> NDArray[np.int64]:
    return np.cumsum([0, *source.users.values()], dtype=np.int64)


def _split(path: Path, file: Any, name: str, length: int) -> Split:
    """A split of an open file."""
    group = member(path, file, name, h5py.Group)
    offsets = _array(path, group, "offsets", np.int64)[()]
    if len(offsets) < 2 or offsets[0] or (offsets[1:] <= offsets[:-1]).any():
        raise DataError(f"{path}: /{name}/offsets do not rise from 0; {_AGAIN}")
    total = int(offsets[-1])
    return Split(
        _mapped(path, _array(path, group, "tokens", np.int16, (total, length + 1))),
        _mapped(path, _array(path, group, "last", np.int16, (total,))),
        offsets,
    )


def _array(
    path: Path, group: Any, name: str, dtype: type[Any], shape: tuple[int, ...] | None = None
) -> Any:
    """A dataset, not read yet, whose bytes lie in the file in one piece."""
    found = member(path, group, name, h5py.Dataset)
    _expect(path, f"the type of {found.name}", found.dtype, np.dtype(dtype))
    _expect(path, f"the shape of {found.name}", found.shape, shape or found.shape[:1])
    place = found.id.get_offset()
    if place is None or place + found.nbytes > path.stat().st_size:
        raise DataError(f"{path}: {found.name} does not lie in the file as a whole; {_AGAIN}")
    return found


def _mapped(path: Path, found: Any) -> Tensor:
    """A dataset as the file's pages, which only those who read them need."""
    array = np.memmap(path, found.dtype, "r", found.id.get_offset(), found.shape)
    with warnings.catch_warnings():  # nobody writes to it
        warnings.filterwarnings("ignore", "The given NumPy array is not writable")
        return torch.from_numpy(array)


def _expect(path: Path, what: str, found: Any, expected: Any) -> None:
    if found != expected:
        raise DataError(f"{path}: {what}: found {found}, expected {expected}; {_AGAIN}")
