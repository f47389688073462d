"""StackOverflow: the next word of a user's questions and answers; every user is a client.

The files are those of TensorFlow Federated, whose texts are in lower case and split into
sentences, one a row, and into words by spaces.  Vocabulary and sentences are made as Reddi et al.
(Adaptive Federated Optimization, arXiv:2003.00295) made them; ``held_out`` users are not used.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import h5py

from hpcfl.data.archives import Archive, provide_members
from hpcfl.data.download import Track
from hpcfl.data.hdf5 import member, opened, strings
from hpcfl.data.prepared_file import source_fingerprint, stamps
from hpcfl.data.text import Sentences
from hpcfl.data.token_file import SentenceSplit, Source
from hpcfl.errors import DataError
from hpcfl.types import Count

_URL = "https://storage.googleapis.com/tff-datasets-public/"
WORD_COUNT = "stackoverflow.word_count"
FILES = {"train": "stackoverflow_train.h5", "test": "stackoverflow_test.h5"}
TEXTS = Archive(
    name="stackoverflow.tar.bz2",
    url=_URL + "stackoverflow.tar.bz2",
    sha256="99eca2f8b8327a09e5fc123979df2d237acbc5e52322f6d86bf523ee47b961a2",
    members={name: name for name in FILES.values()},
)
COUNTS = Archive(
    name="stackoverflow.word_count.tar.bz2",
    url=_URL + "stackoverflow.word_count.tar.bz2",
    sha256="1dc00256d6e527c54b9756d968118378ae14e6692c0b3b6cad470cdd3f0c519c",
    members={WORD_COUNT: WORD_COUNT},
)
PUBLISHED = {"train": (342_477, 135_818_730), "test": (204_088, 16_586_035)}
"""Users and sentences of each file."""


@dataclass(frozen=True, kw_only=True)
class StackOverflow(Sentences):
    """342 477 users with 135 818 730 sentences from before 2018; those of 2018 are for testing."""

    test_examples: Count | None = 10_000
    """Number of test sentences, drawn at random by the job's seed; all when null."""
    subset: bool = False
    """Whether the files may hold other numbers of users and sentences than the published ones."""

    kind: ClassVar[str] = "stackoverflow"
    word_count: ClassVar[str] = WORD_COUNT
    prepared_by: ClassVar[tuple[str, ...]] = ("vocabulary", "length", "subset")

    def sources(self, track: Track) -> dict[str, Source]:
        """The publisher's HDF5 files (examples/USER/tokens), fetched and unpacked if need be."""
        root = Path(self.root)
        provide_members(root, COUNTS, track)
        provide_members(root, TEXTS, track)
        found: dict[str, Source] = {}
        for split, name in FILES.items():
            found[split] = Users(root / name, track)
            count = len(found[split].users), sum(found[split].users.values())
            self._check_numbers(root / name, split, count)
        return found

    def origin(self) -> str:
        """Both HDF5 files and the word counts, if all are there."""
        found = stamps(Path(self.root), (*FILES.values(), WORD_COUNT))
        return source_fingerprint(found) if all(stamp for _, stamp in found) else ""

    def check(self, splits: dict[str, SentenceSplit]) -> None:
        """Compare with the published numbers, unless ``subset`` is set."""
        for name, split in splits.items():
            self._check_numbers(self.prepared, name, (split.users, len(split.last)))

    def _check_numbers(self, path: Path, split: str, found: tuple[int, int]) -> None:
        if not self.subset and found != PUBLISHED[split]:
            raise DataError(
                f"{path}: {found[0]} users with {found[1]} {split} sentences, the published file "
                f"has {PUBLISHED[split][0]} with {PUBLISHED[split][1]}; for a part of it, say "
                "subset: true"
            )


class Users:
    """The users of one of the publisher's files, in the order of their names."""

    def __init__(self, path: Path, track: Track) -> None:
        self._path = path
        self._users: dict[str, int] = {}
        with opened(path) as file:
            group = member(path, file, "examples", h5py.Group)
            names = sorted(group)
            for user in track(names, f"counting {path.name}", len(names)):
                self._users[user] = len(_tokens(path, group, user))
                if not self._users[user]:
                    raise DataError(f"{path}: user {user!r} has no sentence, expected one at least")
        if not self._users:
            raise DataError(f"{path}: the group 'examples' holds no user")

    @property
    def users(self) -> dict[str, int]:
        """The number of sentences of each user."""
        return self._users

    def read(self, users: Sequence[str]) -> Iterator[Sequence[Sequence[str]]]:
        """The sentences of each of these users, one user at a time in memory."""
        with opened(self._path) as file:
            for user in users:
                texts = _tokens(self._path, file["examples"], user)[()].tolist()
                try:
                    yield [text.decode().split() for text in texts]
                except UnicodeDecodeError as error:
                    raise DataError(f"{self._path}: a text of user {user!r}: {error}") from error


def _tokens(path: Path, examples: Any, user: str) -> Any:
    return strings(path, member(path, examples, user, h5py.Group), "tokens")
