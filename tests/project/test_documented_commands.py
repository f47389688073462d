"""Every command of hpcfl that a document shows is one: its options, its job, the keys it sets."""

import re
import shlex
from pathlib import Path

import pytest

from hpcfl.cli.parser import parser
from hpcfl.job.json_schema import job_schema
from hpcfl.job.packaged import find_job
from tests.project.pages import blocks

ROOT = Path(__file__).parents[2]
OWN = ROOT / "docs/extending.md"  # it sets keys of its own classes, and test_extending.py runs it
DOCUMENTS = [ROOT / "README.md", *sorted({*(ROOT / "docs").rglob("*.md")} - {OWN})]
# Variables or a launcher may stand before hpcfl.
COMMAND = re.compile(
    r"^ *(?:\$ )?(?:\w+=\S+ +)*(?:(?:mpirun|srun|nice)(?: +-?[\w=-]+)* +)?hpcfl +([a-z]+ .*)$",
    re.MULTILINE,
)
INDENTED = re.compile(r"^ {4}.*$", re.MULTILINE)
ENDS = ("|", "&&", "&", ">", ">>", "2>&1", "done")
VARIABLE = re.compile(r"\$\w+|\$\{\w+\}")  # of the shell
SOME = "1"  # value of a variable
MISTAKES = {"algorithm.bet=1"}
"""Shown with the line that refuses them."""


def commands(path):
    """The arguments of each command in a document, up to what else the shell does."""
    text = re.sub(r"\\\n\s*", " ", path.read_text())
    code = [*(block for _, block in blocks(text)), *INDENTED.findall(text)]
    for line in COMMAND.findall("\n".join(code)):
        words = []
        for word in shlex.split(line, comments=True):
            if word in ENDS:
                break
            words.append(VARIABLE.sub(SOME, word).rstrip(";"))
            if word.endswith(";"):
                break
        yield words


def keys(tree):
    """All keys of jobs, of whatever section."""
    if isinstance(tree, list):
        return set().union(*map(keys, tree))
    if not isinstance(tree, dict):
        return set()
    return set(tree.get("properties", ())) | keys(list(tree.values()))


@pytest.fixture(scope="module")
def known():
    return keys(job_schema())


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_the_commands_of_a_document(path, known):
    for words in commands(path):
        options, rest = parser().parse_known_args(words)  # exits where an option is unknown
        assert not any(word.startswith("-") for word in rest), words
        overrides = [*getattr(options, "overrides", ()), *rest]
        for override in set(overrides) - MISTAKES:
            parts = override.partition("=")[0].split(".")
            assert "=" in override and set(parts) <= known, (words, override)
        job = str(getattr(options, "job", None))
        if job.startswith("jobs/"):
            assert any(ROOT.glob(job.replace(SOME, "*"))), words
        elif job.islower() and not job.endswith(".yaml"):
            find_job(job)  # a packaged one


def test_commands_are_found():
    assert sum(1 for path in DOCUMENTS for _ in commands(path)) > 100
