"""Damage in random places of a file, and the law that every reader obeys."""

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from hpcfl.errors import HpcflError
from tests.long_form import LONG, TIMES

ODD = [b"\0", b"\xff", b"\x7f", b"\x80", b"\n", b"[" * 2000, b"9" * 5000, b"\0" * 8, b"\xff" * 8]


def many(examples):
    """So many examples, and in CI half of them, always the same."""
    return settings(
        max_examples=examples * TIMES if LONG else (examples + 1) // 2,
        deadline=None,
        derandomize=not LONG,
        database=None,
        suppress_health_check=list(HealthCheck),
    )


@st.composite
def damaged(draw, content):
    """The content with one to three flips, cuts, insertions or moved pieces."""
    for _ in range(draw(st.integers(1, 3))):
        size = len(content)
        at = draw(st.integers(0, max(size - 1, 0)))
        piece = draw(st.one_of(st.sampled_from(ODD), st.binary(min_size=1, max_size=16)))
        match draw(st.sampled_from(["flip", "flip", "over", "insert", "delete", "cut", "copy"])):
            case "flip":
                flipped = (content[at : at + 1] or b"\0")[0] ^ (1 << draw(st.integers(0, 7)))
                content = content[:at] + bytes([flipped]) + content[at + 1 :]
            case "over":
                content = content[:at] + piece + content[at + len(piece) :]
            case "insert":
                content = content[:at] + piece + content[at:]
            case "delete":
                content = content[:at] + content[at + draw(st.integers(1, 64)) :]
            case "cut":
                content = content[:at]
            case "copy":
                to = draw(st.integers(0, size))
                content = content[:to] + content[at : at + 64] + content[to + 64 :]
    return content


def ends_well(read):
    """The law: success, or an error of ours in one line."""
    try:
        read()
    except HpcflError as error:
        line = str(error)
        assert line
        assert line.isprintable(), line
