"""Every command of hpcfl that a document shows is one: its options, its job, what it sets.

Those that the header of a paper's sweep shows also name runs that pass the check.
"""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from hpcfl.cli.main import main
from hpcfl.cli.parser import parser
from hpcfl.errors import JobError
from hpcfl.job.json_schema import job_schema
from hpcfl.job.load import load
from hpcfl.runs.job_file.packaged import find_job
from hpcfl.tools.sweep.grid import read_sweep
from tests.project.pages import blocks

ROOT = Path(__file__).parents[2]
OWN = ROOT / "docs/extending.md"  # it sets keys of its own classes, and test_extending.py runs it
DOCUMENTS = [ROOT / "README.md", *sorted({*(ROOT / "docs").rglob("*.md")} - {OWN})]
HEADERS = sorted(path for name in ("papers", "sweeps") for path in ROOT.glob(f"jobs/{name}/*.yaml"))
# Variables or a launcher may stand before hpcfl.
COMMAND = re.compile(
    r"^ *(?:\$ )?(?:\w+=\S+ +)*(?:(?:mpirun|srun|nice)(?: +-?[\w=-]+)* +)?hpcfl +([a-z]+ .*)$",
    re.MULTILINE,
)
INDENTED = re.compile(r"^ {4}.*$", re.MULTILINE)
ENDS = ("|", "&&", "&", ">", ">>", "2>&1", "done")
VARIABLE = re.compile(r"\$\w+|\$\{\w+\}")  # of the shell
SOME = "1"  # value of a variable
MISTAKES = {"algorithm.bet=1", "local.lr=0,1"}
"""Shown with the line that refuses them."""


def commands(path):
    """The arguments of each command in a document."""
    text = re.sub(r"\\\n\s*", " ", path.read_text())
    code = [*(block for _, block in blocks(text)), *INDENTED.findall(text)]
    return arguments("\n".join(code))


def commands_of_header(path):
    """The arguments of each command in the comments at the top of a job or sweep."""
    comments = re.match(r"(?:#.*\n)*", path.read_text())[0]
    return arguments(re.sub(r"\\\n\s*", " ", re.sub(r"^# ?", "", comments, flags=re.MULTILINE)))


def arguments(code: str) -> Iterator[list[str]]:
    """The arguments of each command in lines of the shell, up to what else the shell does."""
    for line in COMMAND.findall(code):
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
        for override in {*overrides} - MISTAKES:
            parts = override.partition("=")[0].split(".")
            assert "=" in override and set(parts) <= known, (words, override)
        job = str(getattr(options, "job", None) or getattr(options, "sweep", None))
        if (ROOT / job).is_file() and not MISTAKES & {*overrides}:
            check_values(words, ROOT / job, overrides)
        elif job.startswith("jobs/"):
            assert any(ROOT.glob(job.replace(SOME, "*"))), words
        elif job.islower() and not job.endswith(".yaml"):
            find_job(job)  # a packaged one


def check_values(words: list[str], job: Path, overrides: list[str]) -> None:
    """Check what the command sets in this job or sweep, but for classes of the reader's own."""
    try:
        (read_sweep if words[0] == "sweep" else load)(job, overrides)
    except JobError as error:
        assert "cannot be imported" in str(error), words


def test_commands_are_found():
    assert sum(1 for path in DOCUMENTS for _ in commands(path)) > 100


@pytest.mark.slow
@pytest.mark.parametrize("path", HEADERS, ids=lambda path: str(path.relative_to(ROOT)))
def test_the_commands_of_a_header(path, monkeypatch, capsys):
    """Sweeps are read with the overrides and labels of the command, and no data."""
    monkeypatch.chdir(ROOT)
    for words in commands_of_header(path):
        if words[0] == "sweep":
            assert main([*words, "--dry-run"]) == 0, (words, capsys.readouterr().err)
        elif words[0] == "run":
            assert main(["check", *words[1:]]) == 0, (words, capsys.readouterr().err)


def test_every_header_of_a_paper_shows_its_sweep():
    for path in HEADERS:
        shown = [words[1] for words in commands_of_header(path) if words[0] == "sweep"]
        assert str(path.relative_to(ROOT)) in shown
