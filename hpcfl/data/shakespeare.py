"""Shakespeare: the next character of a speaking role's lines; every role is a client.

LEAF's task (Caldas et al., arXiv:1812.01097): 80 characters in, the next one out, windows of
stride 1 that never cross from one role to another.  A role's snippets are joined by newlines into
one text and runs of spaces become one space.  (LEAF's present scripts also put 80 spaces before
every line; here every window holds 80 characters that the role says.)
"""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hpcfl.data.base import DataConfig, Dataset
from hpcfl.data.partition import Rows
from hpcfl.errors import DataError, JobError
from hpcfl.types import Count, Examples, PathText

ALPHABET = "\n !\"&'(),-.0123456789:;>?ABCDEFGHIJKLMNOPQRSTUVWXYZ[]abcdefghijklmnopqrstuvwxyz}"
"""LEAF's 80 characters; a character's place is its class."""
WINDOW = 80  # characters in
_DEFLATE = 1032  # the most that HDF5's usual compression can save

# LEAF looks a character up by str.find, whose -1 for an unknown one means, as an index, the last.
_CODES = np.full(256, len(ALPHABET) - 1, dtype=np.uint8)
_CODES[np.frombuffer(ALPHABET.encode(), dtype=np.uint8)] = np.arange(len(ALPHABET))


@dataclass(frozen=True, kw_only=True)
class Shakespeare(DataConfig):
    """Windows of text uint8 [n, 80] and the next character; natural clients are the roles.

    The test examples are the windows of every role's test text; with ``min_examples`` only of the
    roles that have enough training examples, whether or not ``clients`` draws them.
    """

    root: PathText = "data"
    """The folder with shakespeare_train.h5 and shakespeare_test.h5 (examples/ROLE/snippets)."""
    min_examples: Count | None = None
    """Leave out roles with fewer training examples."""
    max_examples: Count | None = None
    """Keep the first so many training examples of each role."""
    max_test_examples: Count | None = None
    """Keep the first so many test examples of each role."""

    def load(self, seed: int) -> Dataset:
        """Read both files; windows are views of the text, so they take no memory."""
        path = Path(self.root) / "shakespeare_train.h5"
        texts = _texts(path)
        least = self.min_examples or 1
        roles = [role for role, text in texts.items() if len(text) - WINDOW >= least]
        if not roles:
            most = max(0, *(len(text) - WINDOW for text in texts.values()))
            raise JobError(
                f"data.min_examples: no role of {path} has {least} examples; the largest has {most}"
            )
        spoken = _texts(Path(self.root) / "shakespeare_test.h5")
        if self.min_examples is not None:
            spoken = {role: spoken[role] for role in roles if role in spoken}
        inputs, labels, natural = _windows([texts[role] for role in roles], self.max_examples)
        heard, answers, tested = _windows(list(spoken.values()), self.max_test_examples)
        rows = torch.from_numpy(np.concatenate([np.empty(0, dtype=np.int64), *tested]))
        return Dataset(
            train=Examples(inputs, labels),
            test=Examples(heard[rows], answers[rows]) if len(rows) else None,
            natural=natural,
            classes=len(ALPHABET),
            loss="cross_entropy",
            transform=to_indices,
        )


def to_indices(inputs: Tensor, dtype: torch.dtype, generator: torch.Generator | None) -> Tensor:
    """The transform: characters stay integers, whatever the compute dtype is."""
    return inputs.to(torch.int64)


def encode(text: bytes) -> NDArray[np.uint8]:
    """The class of each character; one that is not in the alphabet becomes the last class."""
    return _CODES[np.frombuffer(re.sub(rb"  +", b" ", text), dtype=np.uint8)]


def _windows(texts: list[NDArray[np.uint8]], most: int | None) -> tuple[Tensor, Tensor, list[Rows]]:
    """Every window of the joined texts, its label, and the rows that stay within each text."""
    joined = torch.from_numpy(np.concatenate([*texts, np.zeros(WINDOW + 1, dtype=np.uint8)]))
    ends = np.cumsum([len(text) for text in texts], dtype=np.int64)
    rows = []
    for text, end in zip(texts, ends, strict=True):
        count = max(len(text) - WINDOW, 0)
        first = end - len(text)
        rows.append(np.arange(first, first + min(count, most or count)))
    inputs = joined.unfold(0, WINDOW, 1)[:-1]
    return inputs, joined[WINDOW:].to(torch.int64), rows


def _texts(path: Path) -> dict[str, NDArray[np.uint8]]:
    """The encoded text of each role, in the order of their names."""
    try:
        with h5py.File(path, "r") as file:
            group = _member(path, file, "examples", h5py.Group)
            texts = {role: encode(_text(path, group, role)) for role in sorted(group)}
    except (OSError, RuntimeError, KeyError, ValueError, TypeError) as error:
        raise DataError(f"{path}: not a readable HDF5 file: {error}") from error
    if not texts:
        raise DataError(f"{path}: the group 'examples' holds no role")
    return texts


def _text(path: Path, group: Any, role: str) -> bytes:
    """A role's snippets, joined by newlines."""
    client = _member(path, group, role, h5py.Group)
    snippets = _member(path, client, "snippets", h5py.Dataset)
    if snippets.external or snippets.is_virtual:
        raise DataError(f"{path}: {snippets.name} keeps its data in another file: not read")
    if snippets.ndim != 1 or h5py.check_string_dtype(snippets.dtype) is None:
        raise DataError(
            f"{path}: {snippets.name} is {snippets.dtype} of shape {snippets.shape}, expected a "
            "list of strings"
        )
    stored = min(snippets.id.get_storage_size(), path.stat().st_size)
    if snippets.nbytes > _DEFLATE * stored:  # HDF5 would make up the rest, however much it is
        raise DataError(
            f"{path}: {snippets.name} claims {snippets.nbytes} bytes, the file holds {stored}"
        )
    return b"\n".join(snippets[()])


def _member(path: Path, group: Any, name: str, kind: type[Any]) -> Any:
    """A member of a group that lies in this very file."""
    if not isinstance(group.get(name, getlink=True), h5py.HardLink):
        raise DataError(f"{path}: expected {name!r} in {group.name} of the file itself; not found")
    member = group[name]
    if not isinstance(member, kind):
        raise DataError(f"{path}: {member.name} is no {kind.__name__.lower()}")
    return member
