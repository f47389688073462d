"""The documents: what they point at exists."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
LINK = re.compile(r"\]\((?!https?:|#)([^)#]+)(?:#[^)]*)?\)")


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(path):
    absent = [to for to in LINK.findall(path.read_text()) if not (path.parent / to).exists()]
    assert not absent


def test_links_are_found():
    assert LINK.findall("[a](b.md), ![c](d/e.png) and [f](g.md#h)") == ["b.md", "d/e.png", "g.md"]
    assert not LINK.findall("[a](https://b.c) [d](#e)")
