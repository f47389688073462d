"""Turn texts into tokens: their bytes, or those of a tokenizer.json of the package ``tokenizers``.

A text is UTF-8.  It is read in pieces, each to the end of a line, as what a tokenizer returns takes
a hundred bytes a token.
"""

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from hpcfl.errors import DataError
from hpcfl.io.files import read_error
from hpcfl.io.packages import require
from hpcfl.io.regular import read

BYTES = "bytes"
"""The name of the tokenizer whose tokens are the bytes of a text."""
_PIECE = 1 << 18  # bytes of a text that a tokenizer is given at once
_BATCH = 16  # pieces, which the threads of a tokenizer share
_KEY = "data.tokenizer"


class Tokenizer(Protocol):
    """Turns a text into tokens."""

    classes: int
    """The number of tokens that there are."""

    def encode(self, where: str, text: bytes) -> NDArray[Any]:
        """The tokens [n] of a text, in the smallest type of torch that holds all classes.

        Args:
            where: the text is from, for messages.
            text: in UTF-8.

        Raises:
            DataError: the tokenizer has no token for it.
        """
        ...


def require_utf8(where: str, text: bytes) -> None:
    """Refuse what is no text in UTF-8, such as one in another encoding.

    Raises:
        DataError: it is none; it names the first byte that is not.
    """
    begin = 0
    try:
        for piece in _pieces(text):
            piece.decode()
            begin += len(piece)
    except UnicodeDecodeError as error:
        place = begin + error.start
        raise DataError(
            f"{where}: byte {place}, 0x{text[place]:02x}, is not of a text in UTF-8 "
            f"({error.reason}); iconv -f ENCODING -t UTF-8 makes one of another encoding"
        ) from error


def tokenizer_of(name: str) -> Tokenizer:
    """The tokenizer of this name or file.

    Raises:
        DataError: the file is missing or of another kind.
        JobError: the package ``tokenizers`` is not installed.
    """
    return _Bytes() if name == BYTES else _OfFile(Path(name))


class _Bytes:
    """A byte is a token."""

    classes = 256

    def encode(self, where: str, text: bytes) -> NDArray[np.uint8]:
        """See ``Tokenizer``."""
        return np.frombuffer(text, np.uint8)


class _OfFile:
    """The tokens of a tokenizer.json, without those that it puts before or behind a text."""

    def __init__(self, path: Path) -> None:
        require("tokenizers", f"{_KEY}: {path}", "tokenizers")
        import tokenizers

        expected = f"expected {BYTES}, or the path of a tokenizer.json of the package tokenizers"
        try:
            self._tokenizer = tokenizers.Tokenizer.from_str(read(path).decode())
        except OSError as error:
            message = f"{_KEY}: {path}: cannot be read: {error.strerror or error}; {expected}"
            raise read_error(error, message, DataError) from error
        except Exception as error:  # the package raises nothing narrower
            raise DataError(f"{_KEY}: {path}: {_reason(error)}; {expected}") from error
        # A file may say to cut texts off, or to fill them up.
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        tokens = self._tokenizer.get_vocab().values()
        if not tokens:
            raise DataError(f"{_KEY}: {path}: has no token; train it first")
        self.classes = max(tokens) + 1
        self._path, self._dtype = path, _smallest_type(self.classes)

    def encode(self, where: str, text: bytes) -> NDArray[Any]:
        """See ``Tokenizer``."""
        found, pieces = [np.empty(0, self._dtype)], map(bytes.decode, _pieces(text))
        while batch := list(islice(pieces, _BATCH)):
            try:
                encoded = self._tokenizer.encode_batch_fast(batch, add_special_tokens=False)
            except Exception as error:  # the package raises nothing narrower
                raise DataError(
                    f"{where}: {self._path} cannot read it: {_reason(error)}"
                ) from error
            found += [np.array(one.ids, self._dtype) for one in encoded]
        return np.concatenate(found)


def _smallest_type(classes: int) -> type[np.integer[Any]]:
    """The smallest type of tokens 0 to ``classes`` - 1 that torch takes everywhere."""
    fitting = (kind for kind in (np.uint8, np.int16) if classes - 1 <= np.iinfo(kind).max)
    return next(fitting, np.int32)


def _pieces(text: bytes) -> Iterator[bytes]:
    """A text in pieces, each to the end of a line; of a longer line to a word, or a character."""
    begin = 0
    while begin < len(text):
        end = begin + _PIECE
        if end < len(text):
            end = _line(text, begin, end) or _word(text, begin, end) or _character(text, end)
        yield text[begin:end]
        begin = end


def _line(text: bytes, begin: int, end: int) -> int:
    """The place behind the last line of the text from ``begin`` to ``end``; 0: no line ends."""
    return text.rfind(b"\n", begin, end) + 1


def _word(text: bytes, begin: int, end: int) -> int:
    """The place of the last blank there, with which a word begins for a tokenizer; 0: none."""
    return max(text.rfind(b" ", begin + 1, end), 0)


def _character(text: bytes, place: int) -> int:
    """The beginning of the character of UTF-8 that this byte is of."""
    return next((k for k in range(place, place - 4, -1) if text[k] & 0xC0 != 0x80), place)


def _reason(error: Exception) -> str:
    return str(error).partition("\n")[0] or type(error).__name__
