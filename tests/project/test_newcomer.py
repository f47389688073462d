"""What a newcomer reads first exists."""

from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FIRST = [
    "jobs/quickstart.yaml",
    "hpcfl/algorithms/base.py",
    "hpcfl/algorithms/fedhbm.py",
    "hpcfl/engine/round.py",
    "hpcfl/local/sequential.py",
]
README_WORDS = 1200


@pytest.mark.parametrize("path", FIRST)
def test_the_first_five_files_exist(path):
    assert (ROOT / path).is_file()


def test_the_readme_lists_them():
    readme = (ROOT / "README.md").read_text()
    assert [path for path in FIRST if f"`{path}`" not in readme] == []


def test_the_readme_is_one_page():
    assert len((ROOT / "README.md").read_text().split()) <= README_WORDS


def test_files_are_plain():
    for path in sorted((ROOT / "hpcfl").rglob("*.py")):
        text = path.read_text()
        assert text.isascii(), path
        assert [word for word in ("TODO", "FIXME", "XXX", "../shared") if word in text] == [], path
