"""A compact file of sentences: made once by ``hpcfl data prepare``, mapped into memory by ranks.

    /words                   [V] texts, the vocabulary
    /train, /test: tokens    [n, length + 1] 16-bit classes, a user's sentences one after the other
                   last      [n] the last token of each before its padding
                   offsets   [users + 1] where each user's sentences begin, and the last one's end
                   users     [users] their names

The sentences of a user are written as they are read, into arrays of their full size.
"""

import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import h5py
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hpcfl.data.download import Track
from hpcfl.data.hdf5 import attribute, member, opened, strings
from hpcfl.data.prepared_file import new_prepared_file
from hpcfl.data.vocabulary import Vocabulary, last_tokens
from hpcfl.errors import DataError
from hpcfl.io.regular import open_binary
from hpcfl.types import IntArray

FORMAT = np.bytes_(b"hpcfl sentences 1")
SPLITS = ("train", "test")
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


def pack(
    path: Path,
    about: str,
    origin: str,
    vocabulary: Vocabulary,
    length: int,
    sources: Mapping[str, Source],
    track: Track,
) -> None:
    """Make the file.

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
    totals = {name: sum(source.users.values()) for name, source in sources.items()}
    words, users = _names(vocabulary.words), {n: _names(s.users) for n, s in sources.items()}
    room = words.nbytes + sum(names.nbytes + 8 * (len(names) + 1) for names in users.values())
    room += 2 * (length + 2) * sum(totals.values())
    attributes = {"format": FORMAT, "about": _text(about), "origin": _text(origin)}
    with new_prepared_file(path, room, **attributes) as file:
        file["words"] = words
        for name, source in sources.items():
            group, offsets = file.create_group(name), _offsets(source)
            group["users"], group["offsets"] = users[name], offsets
            tokens = group.create_dataset("tokens", (totals[name], length + 1), np.int16)
            last = group.create_dataset("last", (totals[name],), np.int16)
            read = source.read(list(source.users))
            texts = track(read, f"writing {name} users", len(source.users))
            for begin, sentences in zip(offsets, texts, strict=False):
                rows = vocabulary.encode(sentences, length)
                own = slice(begin, begin + len(rows))
                tokens[own], last[own] = rows, last_tokens(rows)


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
