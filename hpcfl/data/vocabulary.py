"""Map words to classes: 0 is padding, 1 to V are words, V + 1 to V + 3 other special tokens.

These are, in TensorFlow Federated's order: out of vocabulary, begin of sentence, end of sentence.
A sentence becomes a row of ``length`` + 1 tokens: begin, its first ``length`` words, the end if it
has fewer words than ``length``, and padding.  So every row has at least two tokens.
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated

import numpy as np
from annotated_types import Interval
from numpy.typing import NDArray

from hpcfl.errors import DataError
from hpcfl.io.files import read_error
from hpcfl.io.regular import open_text
from hpcfl.types import PAD

_DIGITS = 18  # of a count, at most
SPECIAL = 4  # padding and the last three classes
Words = Annotated[int, Interval(ge=1, le=2**15 - SPECIAL)]  # tokens are kept in 16 bits


class Vocabulary:
    """Words and their classes."""

    def __init__(self, words: Sequence[str]) -> None:
        """Number the words from 1 in the given order, the most frequent word first."""
        self.words = tuple(words)
        self.classes = len(words) + SPECIAL
        self.oov, self.bos, self.eos = (len(words) + k for k in (1, 2, 3))
        self._classes = {word: k for k, word in enumerate(words, 1)}

    @property
    def scored(self) -> range:
        """The classes of words: neither padding nor special tokens."""
        return range(PAD + 1, self.oov)

    @classmethod
    def read(cls, path: Path, size: int) -> "Vocabulary":
        """Read the first ``size`` words of a file of lines ``WORD COUNT``, the most frequent first.

        Raises:
            DataError: the file is missing or too short, or a line is malformed or out of order.
        """
        words: dict[str, int] = {}
        before = ""
        try:
            with open_text(path) as file:
                for number, line in zip(range(1, size + 1), file, strict=False):
                    word, count = _counted(path, number, line)
                    if word in words or count > words.get(before, count):
                        raise DataError(
                            f"{path}: line {number}: {word!r} stands there twice, or is more "
                            "frequent than the word before it; expected the most frequent first"
                        )
                    words[word], before = count, word
        except (OSError, UnicodeDecodeError) as error:
            message = f"{path}: not a readable file of word counts: {error}"
            raise read_error(error, message, DataError) from error
        if len(words) < size:
            raise DataError(
                f"{path}: {len(words)} words, but data.vocabulary asks for {size}; ask for fewer"
            )
        return cls(tuple(words))

    @classmethod
    def counted(cls, path: Path, counts: Mapping[str, int], size: int) -> "Vocabulary":
        """The ``size`` most frequent printable words; equally frequent ones in alphabetical order.

        Args:
            path: the file that was counted, for the message.
            counts: by word.
            size: the number of words.

        Raises:
            DataError: there are fewer words.
        """
        words = sorted(filter(str.isprintable, counts), key=lambda word: (-counts[word], word))
        if len(words) < size:
            raise DataError(
                f"{path}: the posts to train on hold {len(words)} different words, but "
                f"data.vocabulary asks for {size}; ask for fewer"
            )
        return cls(words[:size])

    def encode(self, sentences: Iterable[Sequence[str]], length: int) -> NDArray[np.int16]:
        """Rows [n, length + 1] of tokens."""
        rows, classes, oov = [], self._classes, self.oov
        padding = [PAD] * (length + 1)
        for sentence in sentences:
            row = [self.bos, *(classes.get(word, oov) for word in sentence[:length])]
            if len(row) <= length:
                row.append(self.eos)
            rows.append(row + padding[len(row) :])
        return np.array(rows, dtype=np.int16).reshape(-1, length + 1)


def _counted(path: Path, number: int, line: str) -> tuple[str, int]:
    """The word and the count of one line."""
    parts = line.split()
    if len(parts) != 2 or not parts[1].isdecimal() or len(parts[1]) > _DIGITS:
        found = f"{line.strip()!r:.60}"
        raise DataError(f"{path}: line {number} is {found}, expected a word and its count")
    return parts[0], int(parts[1])


def last_tokens(rows: NDArray[np.int16]) -> NDArray[np.int16]:
    """[n], the last token of each row before its padding."""
    last: NDArray[np.int16] = rows[np.arange(len(rows)), np.count_nonzero(rows, axis=1) - 1]
    return last
