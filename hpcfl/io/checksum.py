"""Add and compare checksums inside text files: of a JSON object, or of a line.

The last key of a JSON object is ``"crc32"``, the crc32 of the text before it, so any JSON reader
still reads the object.  A line of plain text ends with `` #`` and eight hexadecimal digits.  A
crc32 detects every flipped bit, and every damage within 32 consecutive bits.
"""

import re
from zlib import crc32

KEY = "crc32"
_JSON = re.compile(rb'(?P<body>\{.+), "crc32": (?P<sum>\d{1,10})\}', re.DOTALL)
_LINE = re.compile(rb"(?P<body>.*) #(?P<sum>[0-9a-f]{8})", re.DOTALL)
# A line that is being appended may be incomplete, which is no damage.  Bytes after its checksum
# are damage, for instance a line break that became another character.
_OVERLONG_JSON = re.compile(rb', "crc32": \d{1,10}\}.', re.DOTALL)
_END_OF_JSON = re.compile(rb', "crc32": \d{1,10}\}')
_OVERLONG_LINE = re.compile(rb" #[0-9a-f]{8}.", re.DOTALL)


def add_to_json(text: str) -> bytes:
    """Add the checksum as the last key to the text of a JSON object, which is not empty."""
    body = text.removesuffix("}").rstrip().encode()
    return body + f', "{KEY}": {crc32(body)}}}'.encode()


def remove_from_json(content: bytes) -> bytes:
    """Compare and remove the checksum that ``add_to_json`` added.

    Raises:
        ValueError: it has no checksum, or another one.
    """
    found = _JSON.fullmatch(content)
    if found is None:
        raise ValueError(f'it does not end with a checksum, "{KEY}"')
    _compare(crc32(found["body"]), found["sum"], b"%d")
    return found["body"] + b"}"


def is_checked_json(content: bytes) -> bool:
    """Whether the last key is a checksum, right or wrong."""
    return _JSON.fullmatch(content) is not None


def is_json_prefix(tail: bytes) -> bool:
    """Whether bytes after the last line break may be the beginning of a JSON line."""
    return _OVERLONG_JSON.search(tail) is None


def ends_json(content: bytes) -> bool:
    """Whether there is the end of a JSON line in bytes, which may be damaged otherwise."""
    return _END_OF_JSON.search(content) is not None


def add_to_line(text: bytes) -> bytes:
    """Add the checksum to a line of text without a line break."""
    return text + b" #%08x" % crc32(text)


def is_checked_line(line: bytes) -> bool:
    """Whether a line ends with a checksum, right or wrong."""
    return _LINE.fullmatch(line) is not None


def is_line_prefix(tail: bytes) -> bool:
    """Whether bytes after the last line break may be the beginning of a line of text."""
    return _OVERLONG_LINE.search(tail) is None


def remove_from_line(line: bytes) -> bytes:
    """Compare and remove the checksum that ``add_to_line`` added.

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
