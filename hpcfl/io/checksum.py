"""Checksums inside of text files: of a JSON object, or of a line.

A JSON object ends with a key of its own, ``"crc32"``: the crc32 of all that stands before it, so
that any JSON reader still reads it.  A line of plain text ends with `` #`` and eight hexadecimal
digits.  A crc32 finds every flipped bit, and every burst of up to 32 bits.
"""

import re
from zlib import crc32

KEY = "crc32"
_JSON = re.compile(rb'(?P<body>\{.+), "crc32": (?P<sum>\d{1,10})\}', re.DOTALL)
_LINE = re.compile(rb"(?P<body>.*) #(?P<sum>[0-9a-f]{8})", re.DOTALL)
# A file is read while a line is being appended: its beginning is no damage, anything behind its end
# is, for instance a line break that became another character.
_OVERLONG_JSON = re.compile(rb', "crc32": \d{1,10}\}.', re.DOTALL)
_OVERLONG_LINE = re.compile(rb" #[0-9a-f]{8}.", re.DOTALL)


def add_to_json(text: str) -> bytes:
    """A JSON object, which is not empty, with its checksum as the last key; on as many lines."""
    body = text.removesuffix("}").rstrip().encode()
    return body + f', "{KEY}": {crc32(body)}}}'.encode()


def remove_from_json(content: bytes) -> bytes:
    """The JSON object that ``add_to_json`` was given, up to white space at its end.

    Raises:
        ValueError: it has no checksum, or another one.
    """
    found = _JSON.fullmatch(content)
    if found is None:
        raise ValueError(f'it does not end with a checksum, "{KEY}"')
    _compare(crc32(found["body"]), found["sum"], b"%d")
    return found["body"] + b"}"


def is_checked_json(content: bytes) -> bool:
    """Whether a checksum, right or wrong, is the last key."""
    return _JSON.fullmatch(content) is not None


def is_json_prefix(tail: bytes) -> bool:
    """Whether the bytes behind the last line break may be the beginning of a line of JSON."""
    return _OVERLONG_JSON.search(tail) is None


def add_to_line(text: bytes) -> bytes:
    """A line of text, without a line break, with its checksum."""
    return text + b" #%08x" % crc32(text)


def is_checked_line(line: bytes) -> bool:
    """Whether a line ends with a checksum, right or wrong."""
    return _LINE.fullmatch(line) is not None


def is_line_prefix(tail: bytes) -> bool:
    """Whether the bytes behind the last line break may be the beginning of a line of text."""
    return _OVERLONG_LINE.search(tail) is None


def remove_from_line(line: bytes) -> bytes:
    """The text that ``add_to_line`` was given.

    Raises:
        ValueError: the line has no checksum, or another one.
    """
    found = _LINE.fullmatch(line)
    if found is None:
        raise ValueError("it does not end with a checksum")
    _compare(crc32(found["body"]), found["sum"], b"%08x")
    return found["body"]


def _compare(found: int, written: bytes, form: bytes) -> None:
    if form % found != written:
        raise ValueError(f"checksum {(form % found).decode()}, expected {written.decode()}")
