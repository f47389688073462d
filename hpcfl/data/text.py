"""The base of data sets of sentences: next-word prediction, every user a client."""

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from hpcfl.data.base import DataConfig, Dataset, Transform
from hpcfl.data.download import Track
from hpcfl.data.partition import RowRanges
from hpcfl.data.prepared_file import (
    changed_keys,
    origin_and_size,
    origin_of,
    prepare_command,
    require_same_sources,
)
from hpcfl.data.token_file import SentenceSplit, Source, check_tokens, pack, read
from hpcfl.data.vocabulary import Vocabulary, Words
from hpcfl.errors import DataError, JobError
from hpcfl.seeds import stream
from hpcfl.types import PAD, Count, Examples, PathText


@dataclass(frozen=True, kw_only=True)
class Sentences(DataConfig):
    """Sentences as rows of word classes (``hpcfl.data.vocabulary``), in a prepared file.

    ``predict: every`` asks for each word after the ones before it: inputs are a row's tokens but
    the last, labels those but the first, and padding among the labels does not count.  It is the
    task of Reddi et al. (2021).  ``predict: last`` asks once a sentence, for its last token before
    the padding, given those before it: the word number ``length`` of a sentence that has so many,
    and the end of the sentence of any other.
    """

    maps_files: ClassVar[bool] = True

    root: PathText = "data"
    """The folder of the publisher's files and of the prepared one."""
    predict: Literal["every", "last"] = "every"
    """The word after each word, or only the last one."""
    vocabulary: Words = 10_000
    """V, the number of the most frequent words that have classes of their own."""
    length: Count = 20
    """Words of a sentence; further ones are cut off."""
    min_examples: Count | None = None
    """Leave out users with fewer training sentences."""
    max_examples: Count | None = None
    """Keep the first so many training sentences of each user."""
    test_examples: Count | None = None
    """Number of test sentences, drawn at random by the job's seed; all when absent."""

    kind: ClassVar[str]
    """The data set's name."""
    word_count: ClassVar[str]
    """The file of its word counts."""
    prepared_by: ClassVar[tuple[str, ...]] = ("vocabulary", "length")
    """The keys that the prepared file depends on."""

    @property
    def about(self) -> str:
        """The settings, besides vocabulary and length, that the prepared file depends on."""
        return self.kind

    @property
    def prepared(self) -> Path:
        """The prepared file."""
        return Path(self.root) / f"{self.kind}_{self.vocabulary}_words_{self.length}.h5"

    @property
    def listed(self) -> Path:
        """The file of word counts."""
        return Path(self.root) / self.word_count

    @abstractmethod
    def sources(self, track: Track) -> dict[str, Source]:
        """The publisher's train and test sentences.

        Raises:
            DataError: a file is missing or damaged.
        """

    def words(self, sources: Mapping[str, Source], track: Track) -> Vocabulary:
        """The vocabulary: of the file of word counts.

        Raises:
            DataError: it is missing or damaged.
        """
        return Vocabulary.read(self.listed, self.vocabulary)

    @abstractmethod
    def origin(self) -> str:
        """Identifies the publisher's files; empty where they are not there any more."""

    def check(self, splits: dict[str, SentenceSplit]) -> None:
        """Raise DataError where sentences are missing."""

    def prepare(self, track: Track) -> Path:
        """Make the prepared file, if it is not there yet.

        Raises:
            DataError: it is there, but made from other files.
        """
        if not self.prepared.exists():
            sources = self.sources(track)
            vocabulary, origin = self.words(sources, track), self.origin()
            pack(self.prepared, self.about, origin, vocabulary, self.length, sources, track)
        elif origin := self.origin():
            require_same_sources(self.prepared, origin_of(self.prepared), origin)
        self._read()
        return self.prepared

    def load(self, seed: int) -> Dataset:
        """Map the prepared file; only the pages that are used take memory."""
        vocabulary, splits = self._read()
        return Dataset(
            train=self._examples(splits["train"], vocabulary.classes),
            test=self._examples(self._tests(splits["test"], seed), vocabulary.classes),
            natural=self._users(splits["train"]),
            classes=vocabulary.classes,
            loss="tokens",
            padding=PAD,
            scored=vocabulary.scored,
            transform=self._transform(vocabulary),
            mapped=True,
            origin=origin_and_size(self.prepared),
        )

    @property
    def padded_text(self) -> bool:
        """Yes: sentences are filled up to one length."""
        return True

    def _read(self) -> tuple[Vocabulary, dict[str, SentenceSplit]]:
        path, listed = self.prepared, self.listed
        if not path.exists():
            named = type(self).__module__.startswith("hpcfl.")
            name = self.kind if named else f"{type(self).__module__}.{type(self).__qualname__}"
            command = prepare_command(name, self.root, changed_keys(self, self.prepared_by))
            raise DataError(f"{path}: not there; make it by: {command}")
        vocabulary, splits = read(path, self.about, self.vocabulary, self.length)
        if listed.exists() and Vocabulary.read(listed, self.vocabulary).words != vocabulary.words:
            raise DataError(
                f"{path}: its words are not the first {self.vocabulary} of {listed}; put that "
                "file back, or remove this one and prepare the data again"
            )
        self.check(splits)
        return vocabulary, splits

    def _examples(self, split: SentenceSplit, classes: int) -> Examples:
        """Whole rows, so that the transform sees, and checks, all labels."""
        if self.predict == "every":
            return Examples(split.tokens, split.tokens[:, 1:])
        check_tokens(self.prepared, split.last, classes)
        return Examples(split.tokens, split.last)

    def _transform(self, vocabulary: Vocabulary) -> Transform:
        tokens = but_the_last(self.prepared, vocabulary.classes)
        return tokens if self.predict == "every" else without(vocabulary.eos, tokens)

    def _tests(self, split: SentenceSplit, seed: int) -> SentenceSplit:
        """All test sentences, or those drawn, in the order of the file."""
        wanted = self.test_examples
        if wanted is None:
            return split
        count = len(split.last)
        if wanted > count:
            raise JobError(
                f"data.test_examples: {wanted}, but there are {count} test sentences; ask for "
                "fewer, or null for all"
            )
        drawn = stream(seed, "test").choice(count, size=wanted, replace=False, shuffle=False)
        rows = torch.from_numpy(np.sort(drawn))
        return replace(split, tokens=split.tokens[rows], last=split.last[rows])

    def _users(self, split: SentenceSplit) -> RowRanges:
        """The training rows of each user with enough of them."""
        sizes = np.diff(split.offsets)
        enough = sizes >= (self.min_examples or 1)
        if not enough.any():
            raise JobError(
                f"data.min_examples: no user of {self.prepared} has {self.min_examples} training "
                f"sentences; the one with most has {sizes.max()}"
            )
        most = self.max_examples or sizes.max()
        return RowRanges(split.offsets[:-1][enough], np.minimum(sizes, most)[enough])


def but_the_last(path: Path, classes: int) -> Transform:
    """The transform of rows of tokens to indices, without the last token of each.

    It looks at every token on the way, but on a GPU, where looking means waiting.

    Raises:
        DataError: one is no class.
    """

    def transform(inputs: Tensor, dtype: torch.dtype, draws: Tensor | None) -> Tensor:
        if inputs.device.type == "cpu":
            check_tokens(path, inputs, classes)
        return inputs[:, :-1].to(torch.int64)

    return transform


def without(token: int, tokens: Transform) -> Transform:
    """The transform that also replaces one token by padding: the end, if it is the label."""

    def transform(inputs: Tensor, dtype: torch.dtype, draws: Tensor | None) -> Tensor:
        found = tokens(inputs, dtype, draws)
        return found.masked_fill(found == token, PAD)

    return transform
