"""Shakespeare: predict the next character of a role's lines; every role is a client.

LEAF's task (Caldas et al., arXiv:1812.01097): 80 characters in, the next one out, windows of
stride 1 that never cross from one role to another.  A role's snippets are joined by newlines into
one text and runs of spaces become one space.  (LEAF's present scripts also put 80 spaces before
every line; here every window holds 80 characters of the role's text.)
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

from hpcfl.data.archives import Archive, provide_members
from hpcfl.data.base import DataConfig, Dataset
from hpcfl.data.download import Track, check_count
from hpcfl.data.hdf5 import member, open_examples, strings
from hpcfl.data.partition import ExampleRows, consecutive_rows
from hpcfl.data.sources.arrays import to_indices
from hpcfl.errors import DataError, JobError
from hpcfl.types import Count, Examples, PathText

ALPHABET = "\n !\"&'(),-.0123456789:;>?ABCDEFGHIJKLMNOPQRSTUVWXYZ[]abcdefghijklmnopqrstuvwxyz}"
"""LEAF's 80 characters; a character's index is its class."""
WINDOW = 80  # characters of an input
_ROLES, _SNIPPETS = 715, {"train": 16_068, "test": 2_356}  # as TFF documents them

ARCHIVE = Archive(
    name="shakespeare.tar.bz2",
    url="https://storage.googleapis.com/tff-datasets-public/shakespeare.tar.bz2",
    sha256="0285be9906cb5f268092eee4edeeacfc2af4574f2941f7cc2f08a321d7f5c707",
    members={name: name for name in ("shakespeare_train.h5", "shakespeare_test.h5")},
)

# LEAF looks a character up by str.find, whose -1 for an unknown one means, as an index, the last.
_CODES = np.full(256, len(ALPHABET) - 1, dtype=np.uint8)
_CODES[np.frombuffer(ALPHABET.encode(), dtype=np.uint8)] = np.arange(len(ALPHABET))


@dataclass(frozen=True, kw_only=True)
class Shakespeare(DataConfig):
    """Windows of text uint8 [n, 80] and the next character; natural clients are the roles.

    The test examples are the windows of every role's test text; with ``min_examples`` only of the
    roles that have enough training examples, whether or not ``clients`` draws them.  With
    ``natural_clients`` they are those of the drawn roles.
    """

    root: PathText = "data"
    """The folder with shakespeare_train.h5 and shakespeare_test.h5 (examples/ROLE/snippets)."""
    min_examples: Count | None = None
    """Leave out roles with fewer training examples."""
    max_examples: Count | None = None
    """Keep the first so many training examples of each role."""
    max_test_examples: Count | None = None
    """Keep the first so many test examples of each role."""

    @property
    def padded_text(self) -> bool:
        """No: every window is filled with characters."""
        return False

    def prepare(self, track: Track) -> Path:
        """Fetch and unpack TFF's two files; count their roles and snippets."""
        root = Path(self.root)
        provide_members(root, ARCHIVE, track)
        for part, expected in _SNIPPETS.items():
            path = root / f"shakespeare_{part}.h5"
            with open_examples(path) as group:
                check_count(path, "roles", len(group), _ROLES)
                found = sum(len(_snippets(path, group, role)) for role in track(group, path.name))
            check_count(path, "snippets", found, expected)
        return root

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
        test_texts = _texts(Path(self.root) / "shakespeare_test.h5")
        if self.min_examples is not None:
            test_texts = {role: test_texts[role] for role in roles if role in test_texts}
        inputs, labels, natural = _windows([texts[role] for role in roles], self.max_examples)
        test_inputs, test_labels, test_rows = _windows(
            list(test_texts.values()), self.max_test_examples
        )
        rows = torch.from_numpy(np.concatenate([np.empty(0, dtype=np.int64), *test_rows]))
        tested = consecutive_rows([len(own) for own in test_rows]) if test_rows else []
        owned = dict(zip(test_texts, tested, strict=True))
        return Dataset(
            train=Examples(inputs, labels),
            test=Examples(test_inputs[rows], test_labels[rows]) if len(rows) else None,
            natural=natural,
            classes=len(ALPHABET),
            loss="cross_entropy",
            transform=to_indices,
            natural_tests=[owned.get(role, rows[:0].numpy()) for role in roles],
        )


def encode(text: bytes) -> NDArray[np.uint8]:
    """The class of each character, after runs of spaces have become one space."""
    return classes_of(np.frombuffer(re.sub(rb"  +", b" ", text), dtype=np.uint8))


def classes_of(characters: NDArray[Any]) -> NDArray[np.uint8]:
    """The class of each character code; one that is not in the alphabet becomes the last class."""
    codes: NDArray[np.uint8] = _CODES[np.minimum(characters, len(_CODES) - 1)]
    return codes


def _windows(
    texts: list[NDArray[np.uint8]], most: int | None
) -> tuple[Tensor, Tensor, list[ExampleRows]]:
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
    """The encoded text of each role, in the order of their names; snippets joined by newlines."""
    found = {}
    with open_examples(path) as group:
        for role in sorted(group):
            found[role] = encode(b"\n".join(_snippets(path, group, role)[()]))
    if not found:
        raise DataError(f"{path}: the group 'examples' holds no role")
    return found


def _snippets(path: Path, group: Any, role: str) -> Any:
    """The HDF5 data set of a role's pieces of text, not read yet."""
    return strings(path, member(path, group, role, h5py.Group), "snippets")
