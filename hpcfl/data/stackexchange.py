"""StackExchange: the next word of the posts of a site's users; every user of a site is a client.

A post is a line of JSON with a ``site``, a ``user`` and a ``text``; anything else in it is not
used, and no post whose user is null (deleted) or whose text holds no word.

A text is put in lower case and cut into sentences after each of . ? ! that white space follows,
and at line breaks.  Its words are runs of letters and digits, with the apostrophes between them
("isn't"); every other visible character is a word by itself.
"""

import gzip
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar
from zlib import error as ZlibError

from hpcfl.data.owners import Track
from hpcfl.data.sentences import Sentences
from hpcfl.data.token_file import Source
from hpcfl.errors import DataError
from hpcfl.seeds import stream
from hpcfl.types import Share

FILES = ("stackexchange_posts.jsonl", "stackexchange_posts.jsonl.gz")
_SENTENCE = re.compile(r"(?<=[.?!])\s+|[\r\n]+")
_WORD = re.compile(r"[^\W_]+(?:'[^\W_]+)*|\S")

_USER = str | int | None

Post = list[list[str]]  # its sentences, each as its words


@dataclass(frozen=True, kw_only=True)
class StackExchange(Sentences):
    """The posts of any of Stack Exchange's sites, a small stand-in for StackOverflow.

    A share of each user's posts, drawn when the data is prepared, the same for every job, is for
    testing; whoever has posts has one at least to train on.
    """

    test_share: Share = 0.1
    """The share of a user's posts that is for testing, on average."""

    kind: ClassVar[str] = "stackexchange"
    word_count: ClassVar[str] = "stackexchange_word_count.txt"
    prepared_by: ClassVar[tuple[str, ...]] = ("vocabulary", "length", "test_share")

    @property
    def about(self) -> str:
        """The test share decides who trains on what."""
        return f"{self.kind}, test_share {self.test_share}"

    def sources(self, track: Track) -> dict[str, Source]:
        """The posts of each user, dealt to train and test."""
        path = _find(Path(self.root))
        users: dict[str, list[Post]] = {}
        for user, post in track(_posts(path), f"reading {path.name}", None):
            users.setdefault(user, []).append(post)
        train, test = {}, {}
        for client, user in enumerate(sorted(users)):
            kept, tested = _deal(users[user], self.test_share, client)
            train[user] = [sentence for post in kept for sentence in post]
            if tested:
                test[user] = [sentence for post in tested for sentence in post]
        if not test:
            raise DataError(f"{path}: too few posts to test on {self.test_share} of each user's")
        return {"train": Texts(train), "test": Texts(test)}


@dataclass(frozen=True)
class Texts:
    """Sentences in memory."""

    texts: Mapping[str, Sequence[Sequence[str]]]

    @property
    def users(self) -> dict[str, int]:
        """How many sentences each user has."""
        return {user: len(sentences) for user, sentences in self.texts.items()}

    def read(self, users: Sequence[str]) -> Iterator[Sequence[Sequence[str]]]:
        """The sentences of each of these users."""
        return (self.texts[user] for user in users)


def sentences(text: str) -> Post:
    """The words of each sentence of a text; of sentences without a word nothing is left."""
    found = (_WORD.findall(sentence) for sentence in _SENTENCE.split(text.lower()))
    return [words for words in found if words]


def _deal(posts: Sequence[Post], share: float, client: int) -> tuple[list[Post], list[Post]]:
    """A user's posts to train on and to test on, in the order they have.

    Of n posts share * n are for testing, rounded up or down at random, and n - 1 at most.
    """
    draw = stream(0, "test posts", client=client)
    count = min(int(share * len(posts) + draw.random()), len(posts) - 1)
    tested = {*draw.permutation(len(posts))[:count].tolist()}
    train = [post for k, post in enumerate(posts) if k not in tested]
    return train, [posts[k] for k in sorted(tested)]


def _find(root: Path) -> Path:
    """The file of posts."""
    for name in FILES:
        if (root / name).exists():
            return root / name
    raise DataError(f"{root}: holds neither {' nor '.join(FILES)}; put one of them there")


def _posts(path: Path) -> Iterator[tuple[str, Post]]:
    """Site and user, and the sentences, of each post that has them.

    Raises:
        DataError: the file is damaged, or a line of it is no post.
    """
    number = 0
    try:
        with (
            gzip.open(path, "rt", encoding="utf-8")
            if path.suffix == ".gz"
            else path.open(encoding="utf-8") as file
        ):
            for line in file:
                number += 1
                site, user, text = _post(path, number, line)
                post = [] if user is None else sentences(text)
                if post:
                    yield f"{site}/{user}", post
    except (OSError, EOFError, ZlibError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: damaged after line {number}: {error}") from error


def _post(path: Path, number: int, line: str) -> tuple[str, str | int | None, str]:
    """What is used of a line."""
    try:
        found = json.loads(line)
        site, user, text = (found[key] for key in ("site", "user", "text"))
    except (ValueError, TypeError, KeyError, RecursionError):
        site, user, text = None, None, None
    if not isinstance(site, str) or not isinstance(user, _USER) or not isinstance(text, str):
        raise DataError(
            f"{path}: line {number} is {line.strip()[:60]!r}, expected a JSON object with a site "
            "and a text, both strings, and a user: a string, a number or null"
        )
    return site, user, text
