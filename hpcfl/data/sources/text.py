"""Texts of the user's own: files, folders of texts by client, or Hugging Face data sets of texts.

A language model is trained on their tokens: windows of T of them, and the token that follows each.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hpcfl.data.base import DataConfig, Dataset
from hpcfl.data.partition import Contiguous, RowRanges, rows_of_owners
from hpcfl.data.prepared_file import changed_keys
from hpcfl.data.sources.arrays import to_indices
from hpcfl.data.sources.huggingface import TableSplit, train_and_test
from hpcfl.data.tables import is_parquet
from hpcfl.data.tokenizer import BYTES, require_utf8, tokenizer_of
from hpcfl.data.windows import Windows, windows
from hpcfl.errors import DataError, JobError
from hpcfl.io.files import read_error
from hpcfl.io.regular import read
from hpcfl.types import Count, Part, PathText

_SAVED = ("dataset_dict.json", "state.json")  # in a folder of ``save_to_disk``
_SUFFIX = ".txt"
_COLUMNS = ("column", "client", "train", "test")
_LISTED = 5  # clients in a note
_NO_TEST = "data: there is no test text (data.test_share, data.test_path): nothing is scored on one"


class _Text(NamedTuple):
    """A text that is not read yet."""

    where: str
    """It is from, for messages."""
    read: Callable[[], bytes]


_Texts = Mapping[str | None, _Text]
"""The text of each client by name, in the order of their numbers; or one of None, nobody's."""
_Tokens = Mapping[str | None, NDArray[Any]]
"""The tokens [n] of each of them."""


@dataclass(frozen=True, kw_only=True)
class Text(DataConfig):
    """Windows of ``length`` tokens and the token that follows each; the rest of a text is not used.

    A file is one text, which ``partition`` deals; in a folder of CLIENT.txt or CLIENT/*.txt, and in
    a Hugging Face data set with a column of clients, each client has one.
    """

    default_partition: ClassVar[type[Contiguous]] = Contiguous
    predict: ClassVar[str] = "every"  # as models of texts ask

    path: PathText
    """A file in UTF-8, a folder of texts by client, or a Hugging Face data set on disk."""
    length: Count
    """T, tokens of a window."""
    tokenizer: Literal["bytes"] | PathText = BYTES
    """Bytes: 256 tokens; or a tokenizer.json of the package ``tokenizers``."""
    separator: str = "\n"
    """Stands between the files, or rows, of one text."""
    test_share: Part | None = None
    """The share of the tokens of each text, at its end, that is for tests."""
    test_path: PathText | None = None
    """The text for tests: a file, or a folder as ``path`` has it."""
    column: str = "text"
    """The column of texts of a Hugging Face data set."""
    client: str | None = None
    """Its column that says who owns a text; if absent all rows are one text, nobody's."""
    train: str = "train"
    """Its split to train on; a folder or file without splits is one."""
    test: str | None = None
    """Its split to test on; if absent the split called test, where there is one."""

    def __post_init__(self) -> None:
        super().__post_init__()
        said = [key for key in ("test_share", "test_path", "test") if getattr(self, key)]
        if len(said) > 1:
            raise ValueError(f"{said[0]} and {said[1]} both say what to test on; remove one")
        if self.holdout is not None:
            raise ValueError(
                "holdout draws windows from among those that are trained on; remove it, and say "
                f"test_share: {self.holdout}, which cuts the end off each text"
            )

    @property
    def padded_text(self) -> bool:
        """No: every window is filled with tokens."""
        return False

    def load(self, seed: int) -> Dataset:
        """Read the texts, turn them into tokens, and cut these into windows.

        Raises:
            JobError: a package is not installed, or a key is of another kind of texts.
            DataError: a file is missing or not in UTF-8, or no text is as long as a window.
        """
        tokenizer = tokenizer_of(self.tokenizer)
        tokens, tests = (
            {name: tokenizer.encode(text.where, text.read()) for name, text in texts.items()}
            for texts in self._texts()
        )
        if self.test_share is not None:
            tests = {name: own[self._trained(own) :] for name, own in tokens.items()}
            tokens = {name: own[: self._trained(own)] for name, own in tokens.items()}
        train = self._windows("training", tokens)
        test = self._windows("test", tests) if tests else None
        natural = natural_tests = None
        if None not in tokens:
            present = np.flatnonzero(train.counts)
            natural, names = train.rows[present], [*tokens]
            if test is not None and None not in tests:
                natural_tests = _rows_of([names[k] for k in present], [*tests], test)
        return Dataset(
            train=train.examples,
            test=None if test is None else test.examples,
            natural=natural,
            natural_tests=natural_tests,
            classes=tokenizer.classes,
            loss="tokens",
            transform=to_indices,
            notes=(
                *_left_out([*tokens], train),
                *_unused("training", train),
                *((_NO_TEST,) if test is None else _unused("test", test)),
            ),
        )

    def _trained(self, tokens: NDArray[Any]) -> int:
        """How many of a text's tokens, its first, are not for tests."""
        return len(tokens) - round((self.test_share or 0) * len(tokens))

    def _windows(self, part: str, tokens: _Tokens) -> Windows:
        """The windows of each text, one at least in all."""
        found = windows([*tokens.values()], self.length)
        if not found.counts.any():
            raise DataError(
                f"data.length: a window of {self.length} needs {self.length + 1} tokens, but the "
                f"longest {part} text has {found.lengths.max()}; set it lower, or give longer texts"
            )
        return found

    def _texts(self) -> tuple[_Texts, _Texts]:
        """The texts to train on, and those for tests, perhaps none."""
        path = Path(self.path)
        if _is_saved(path):
            return self._saved(path)
        for key in changed_keys(self, _COLUMNS):
            raise JobError(
                f"data.{key}: is of a Hugging Face data set, and {path} is none: it has neither "
                f"parquet files nor what save_to_disk writes; remove {key}"
            )
        tests = {} if self.test_path is None else self._files(Path(self.test_path))
        return self._files(path), tests

    def _files(self, path: Path) -> _Texts:
        """The text of a file, or those of the clients of a folder."""
        if not path.is_dir():
            return {None: _Text(f"{path}", partial(_read, path))}
        return {
            client: _Text(f"{path}: {client}", partial(self._joined, files, _read))
            for client, files in _files_of_clients(path).items()
        }

    def _saved(self, path: Path) -> tuple[_Texts, _Texts]:
        """Those of a Hugging Face data set."""
        if self.test_path is not None:
            raise JobError(
                f"data.test_path: is of files, and {path} is a Hugging Face data set; remove it, "
                "and name a split by data.test, or say data.test_share"
            )
        train, test = train_and_test(path, self.train, self.test)
        if test is None or self.test_share is not None:
            return self._rows(train, self.client), {}
        known = self.client in test.table.column_names
        return self._rows(train, self.client), self._rows(test, self.client if known else None)

    def _rows(self, split: TableSplit, client: str | None) -> _Texts:
        """The texts of the clients in the rows of a split."""
        texts = split.texts(self.column)
        if client is None:
            return {None: _Text(split.where, partial(self._joined, texts, str.encode))}
        names, owner = np.unique(split.owners(client), return_inverse=True)
        return {
            f"{name}": _Text(
                f"{split.where}: {name}",
                partial(self._joined, [texts[row] for row in rows], str.encode),
            )
            for name, rows in zip(names, rows_of_owners(owner), strict=True)
        }

    def _joined(self, parts: Sequence[Any], read: Callable[[Any], bytes]) -> bytes:
        """One text of several, which are read."""
        return self.separator.encode().join(map(read, parts))


def _is_saved(path: Path) -> bool:
    """Whether a Hugging Face data set is at the path."""
    if not path.is_dir():
        return is_parquet(path)
    saved = any((path / name).exists() for name in _SAVED)
    return saved or any(path.glob("**/*.parquet"))


def _files_of_clients(folder: Path) -> dict[str, list[Path]]:
    """The files of each client, CLIENT.txt or CLIENT/*.txt, in the order of their names.

    Raises:
        DataError: there are none, a client is named twice or has none, or a folder cannot be read.
    """
    found = {entry.name: _texts_in(entry) for entry in _entries(folder) if entry.is_dir()}
    for file in _texts_in(folder):
        if file.stem in found:
            raise DataError(
                f"{folder}: has a folder {file.stem} and a file {file.name}; expected one of them"
            )
        found[file.stem] = [file]
    if empty := [client for client, files in found.items() if not files]:
        raise DataError(f"{folder / empty[0]}: has no {_SUFFIX} file; expected texts of a client")
    if not found:
        raise DataError(
            f"{folder}: has no {_SUFFIX} file and no folder; expected CLIENT.txt or CLIENT/*.txt"
        )
    return dict(sorted(found.items()))


def _texts_in(folder: Path) -> list[Path]:
    return [path for path in _entries(folder) if path.suffix == _SUFFIX and not path.is_dir()]


def _entries(folder: Path) -> list[Path]:
    """What is in a folder, but what is hidden, in the order of the names."""
    try:
        return sorted(path for path in folder.iterdir() if not path.name.startswith("."))
    except OSError as error:
        message = f"{folder}: cannot be listed: {error.strerror or error}"
        raise read_error(error, message, DataError) from error


def _read(path: Path) -> bytes:
    """A file in UTF-8."""
    try:
        content = read(path)
    except OSError as error:
        message = f"{path}: cannot be read: {error.strerror or error}"
        raise read_error(error, message, DataError) from error
    require_utf8(f"{path}", content)
    return content


def _rows_of(clients: Sequence[str | None], names: list[str | None], found: Windows) -> RowRanges:
    """The windows of each client, none of one without a text.

    Args:
        clients: their names.
        names: of the texts.
        found: the windows of the texts.
    """
    rows, place = found.rows, {name: k for k, name in enumerate(names)}
    with_none = RowRanges(np.append(rows.starts, 0), np.append(rows.sizes, 0))
    return with_none[np.array([place.get(client, len(names)) for client in clients])]


def _left_out(names: Sequence[str | None], train: Windows) -> tuple[str, ...]:
    """A line on the clients that have no window."""
    short = [f"{names[k]}" for k in np.flatnonzero(train.counts == 0).tolist()]
    if not short:
        return ()
    listed = ", ".join(short[:_LISTED]) + ", ..." * (len(short) > _LISTED)
    return (
        f"data: {len(short)} of {len(names)} clients have no window, and are left out: {listed}",
    )


def _unused(part: str, found: Windows) -> tuple[str, ...]:
    """A line on the tokens that are in no window."""
    if not found.unused:
        return ()
    return (
        f"data: {found.unused} of {found.lengths.sum()} {part} tokens fill no window and are left "
        "out",
    )
