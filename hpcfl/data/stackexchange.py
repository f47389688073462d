"""StackExchange: the next word of the posts of a site's users; every user of a site is a client.

A post is a line of JSON with a ``site``, a ``user`` and a ``text``; anything else in it is not
used.  A text is put in lower case and cut into sentences after each of . ? ! that white space
follows, and at line breaks.  Its words are runs of letters and digits, with the apostrophes
between them ("isn't"); every other visible character is a word by itself.
"""

import gzip
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar
from zlib import error as ZlibError

import numpy as np

from hpcfl.data.owners import Track
from hpcfl.data.sentences import Sentences
from hpcfl.data.token_file import Source
from hpcfl.errors import DataError
from hpcfl.seeds import stream
from hpcfl.types import Share

FILES = ("stackexchange_posts.jsonl", "stackexchange_posts.jsonl.gz")
_SENTENCE = re.compile(r"(?<=[.?!])\s+|[\r\n]+")
_WORD = re.compile(r"[^\W_]+(?:'[^\W_]+)*|\S")

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
            if post:
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
    chosen = np.zeros(len(posts), dtype=bool)
    chosen[draw.permutation(len(posts))[:count]] = True
    split: tuple[list[Post], list[Post]] = ([], [])
    for post, tested in zip(posts, chosen, strict=True):
        split[tested].append(post)
    return split


def _find(root: Path) -> Path:
    """The file of posts."""
    for name in FILES:
        if (root / name).exists():
            return root / name
    raise DataError(f"{root}: holds neither {' nor '.join(FILES)}; put one of them there")


def _posts(path: Path) -> Iterator[tuple[str, Post]]:
    """Site and user, and the sentences, of each post.

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
                site, user, text = _post(json.loads(line))
                yield f"{site}/{user}", sentences(text)
    except (OSError, EOFError, ZlibError, ValueError, RecursionError) as error:
        raise DataError(f"{path}: line {number}: {error}") from error


def _post(found: Any) -> tuple[str, str | int, str]:
    """What is used of a line."""
    if not isinstance(found, dict):
        raise ValueError(f"found {str(found)[:40]}, expected an object")  # noqa: TRY004
    site, user, text = (found.get(key) for key in ("site", "user", "text"))
    if not isinstance(site, str) or not isinstance(user, str | int) or not isinstance(text, str):
        raise ValueError("expected a site and a text, both strings, and a user, string or number")  # noqa: TRY004
    return site, user, text
