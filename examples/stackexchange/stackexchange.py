"""StackExchange: the next word of the posts of a site's users; every user of a site is a client.

A post is a line of JSON with a ``site``, a ``user`` and a ``text``; anything else in it is not
used, and no post whose user is null (deleted) or whose text holds no word.

A text is put in lower case and cut into sentences after each of . ? ! that white space follows,
and at line breaks.  Its words are runs of letters and digits, with the apostrophes between them
("isn't"); every other visible character is a word by itself.

The file of posts is read twice, and a third time where words must be counted; only the offsets of
each user's posts are kept in memory.

A data set of one's own over ``hpcfl.data.text``: see docs/data/stackexchange.md.
"""

import gzip
import json
import re
from array import array
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from shutil import copyfileobj
from tempfile import TemporaryFile
from typing import IO, ClassVar, NamedTuple
from zlib import error as ZlibError

from hpcfl.data.download import Track
from hpcfl.data.prepared_file import source_fingerprint, stamps
from hpcfl.data.text import Sentences
from hpcfl.data.token_file import Source
from hpcfl.data.vocabulary import Vocabulary
from hpcfl.errors import DataError
from hpcfl.io.files import parse_json, read_error
from hpcfl.io.regular import open_binary
from hpcfl.seeds import stream
from hpcfl.types import Share

FILES = ("stackexchange_posts.jsonl", "stackexchange_posts.jsonl.gz")
_SENTENCE = re.compile(r"(?<=[.?!])\s+|[\r\n]+")
_WORD = re.compile(r"[^\W_]+(?:'[^\W_]+)*|\S")

_USER = str | int | None
_LONGEST = 1 << 26  # bytes of a post

Post = list[list[str]]  # its sentences, each as its words


@dataclass(frozen=True, kw_only=True)
class StackExchange(Sentences):
    """The posts of any of Stack Exchange's sites, a small stand-in for StackOverflow.

    A share of each user's posts, drawn when the data is prepared and the same for every job, is for
    testing; at least one post of a user is for training.  Without a file of word counts the words
    of all training posts are counted.
    """

    test_share: Share = 0.1
    """The share of a user's posts that is for testing, on average."""

    kind: ClassVar[str] = "stackexchange"
    word_count: ClassVar[str] = "stackexchange_word_count.txt"
    prepared_by: ClassVar[tuple[str, ...]] = ("vocabulary", "length", "test_share")

    @property
    def about(self) -> str:
        """The test share, which divides the posts."""
        return f"{self.kind}, test_share {self.test_share}"

    def origin(self) -> str:
        """The file of posts, if it is there."""
        root = Path(self.root)
        found = stamps(root, [name for name in FILES if (root / name).exists()][:1])
        return source_fingerprint(found) if found else ""

    def sources(self, track: Track) -> dict[str, Source]:
        """The posts of each user, divided into train and test."""
        if self.listed.exists():  # its errors are raised before all posts are read
            Vocabulary.read(self.listed, self.vocabulary)
        path = _find(Path(self.root))
        users: dict[str, Found] = {}
        for user, offset, count in track(_posts(path), f"reading {path.name}", None):
            found = users.setdefault(user, Found(array("q"), array("l")))
            found.offsets.append(offset)
            found.sentences.append(count)
        train, test = Posts(path), Posts(path)
        for client, user in enumerate(sorted(users)):
            kept, tested = _divide_posts(len(users[user].offsets), self.test_share, client)
            train.take(user, users[user], kept)
            if tested:
                test.take(user, users[user], tested)
        if not test.users:
            raise DataError(f"{path}: too few posts to test on {self.test_share} of each user's")
        return {"train": train, "test": test}

    def words(self, sources: Mapping[str, Source], track: Track) -> Vocabulary:
        """The vocabulary: of the file of word counts, or of the posts to train on."""
        if self.listed.exists():
            return super().words(sources, track)
        train, counts = sources["train"], Counter[str]()
        for posts in track(train.read([*train.users]), "counting words", len(train.users)):
            for words in posts:
                counts.update(words)
        return Vocabulary.counted(_find(Path(self.root)), counts, self.vocabulary)


class Found(NamedTuple):
    """A user's posts, in the order of the file."""

    offsets: "array[int]"
    """The offset of each post's line, in bytes."""
    sentences: "array[int]"
    """The number of sentences of each post."""


class Posts:
    """The sentences of some of the posts of a file, read when they are needed."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offsets: dict[str, array[int]] = {}
        self._users: dict[str, int] = {}

    def take(self, user: str, found: Found, posts: Sequence[int]) -> None:
        """Add these posts, from 0 to n - 1, of a user."""
        self._offsets[user] = array("q", [found.offsets[k] for k in posts])
        self._users[user] = sum(found.sentences[k] for k in posts)

    @property
    def users(self) -> dict[str, int]:
        """The number of sentences of each user."""
        return self._users

    def read(self, users: Sequence[str]) -> Iterator[Sequence[Sequence[str]]]:
        """The sentences of each of these users."""
        with _plain(self._path) as file:
            for user in users:
                yield [words for at in self._offsets[user] for words in _sentences_at(file, at)]


def sentences(text: str) -> Post:
    """The words of each sentence of a text; sentences without a word are left out."""
    found = (_WORD.findall(sentence) for sentence in _SENTENCE.split(text.lower()))
    return [words for words in found if words]


def _divide_posts(posts: int, share: float, client: int) -> tuple[list[int], list[int]]:
    """A user's posts for training and for testing, both in order.

    Of n posts share * n are for testing, rounded up or down at random, and n - 1 at most.
    """
    draw = stream(0, "test posts", client=client)
    count = min(int(share * posts + draw.random()), posts - 1)
    tested = {*draw.permutation(posts)[:count].tolist()}
    return [k for k in range(posts) if k not in tested], sorted(tested)


def _find(root: Path) -> Path:
    """The file of posts."""
    for name in FILES:
        if (root / name).exists():
            return root / name
    raise DataError(f"{root}: holds neither {' nor '.join(FILES)}; put one of them there")


def _posts(path: Path) -> Iterator[tuple[str, int, int]]:
    """Site and user, offset and number of sentences of each post with sentences.

    Raises:
        DataError: the file is damaged, or a line of it is no post.
        DiskError: the disk fails.
    """
    number = offset = 0
    try:
        with open_binary(path) as raw, gzip.open(raw) if path.suffix == ".gz" else raw as file:
            while line := file.readline(_LONGEST):
                number += 1
                if len(line) == _LONGEST:
                    raise DataError(f"{path}: line {number} has {_LONGEST} bytes, or more")
                site, user, text = _post(path, number, line.decode())
                count = 0 if user is None else len(sentences(text))
                if count:
                    yield f"{site}/{user}", offset, count
                offset += len(line)
    except (OSError, EOFError, ZlibError, UnicodeDecodeError) as error:
        message = f"{path}: damaged after line {number}: {error}"
        raise read_error(error, message, DataError) from error


@contextmanager
def _plain(path: Path) -> Iterator[IO[bytes]]:
    """The file, or a decompressed copy of it, for reading at any offset."""
    if path.suffix != ".gz":
        with open_binary(path) as file:
            yield file
        return
    with TemporaryFile(dir=path.parent) as copy:
        with open_binary(path) as raw, gzip.open(raw) as file:
            copyfileobj(file, copy, 1 << 20)
        yield copy


def _sentences_at(file: IO[bytes], offset: int) -> Post:
    """The sentences of the post whose line begins at ``offset``; it was checked before."""
    file.seek(offset)
    return sentences(json.loads(file.readline())["text"])


def _post(path: Path, number: int, line: str) -> tuple[str, str | int | None, str]:
    """The site, user and text of a line."""
    try:
        found = parse_json(line)
        site, user, text = (found[key] for key in ("site", "user", "text"))
        f"{site}{user}".encode()  # as the prepared file keeps it
    except (ValueError, TypeError, KeyError):
        site, user, text = None, None, None
    if not isinstance(site, str) or not isinstance(user, _USER) or not isinstance(text, str):
        raise DataError(
            f"{path}: line {number} is {line.strip()[:60]!r}, expected a JSON object with a site "
            "and a text, both strings, and a user: a string, a number or null"
        )
    return site, user, text
