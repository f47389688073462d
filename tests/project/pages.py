"""Read the code blocks of a page of documentation."""

import re
from collections.abc import Iterator


def blocks(page: str) -> list[tuple[str, str]]:
    """The language ("" for none) and the text of each fenced block of a page."""
    return re.findall(r"^```(\w*)\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)


def commands(page: str) -> Iterator[tuple[str, list[str]]]:
    """Each command after a "$ " in the blocks without a language, and the lines that follow it."""
    sessions = "".join(block for language, block in blocks(page) if not language)
    for part in re.split(r"^\$ ", sessions, flags=re.MULTILINE)[1:]:
        command, *printed = part.splitlines()
        yield command, printed


def section(page: str, heading: str) -> str:
    """The text of the section whose heading begins so."""
    (found,) = (part for part in page.split("\n## ") if part.startswith(heading))
    return found
