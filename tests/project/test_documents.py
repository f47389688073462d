"""The documents: what they point at exists."""

import re
from dataclasses import fields
from pathlib import Path
from pkgutil import resolve_name

import pytest

from hpcfl.job.schema import Job
from hpcfl.runs.job_file.settings import WITHOUT_EFFECT

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


def test_another_page_leads_to_every_page():
    """Not the side bar alone, which a reader of one page does not search."""
    linked = {
        (path.parent / to).resolve()
        for path in DOCUMENTS
        for to in LINK.findall(path.read_text())
        if (path.parent / to).resolve() != path
    }
    assert not {path for path in DOCUMENTS if path.parent != ROOT} - linked


PATH = re.compile(r"`([\w./-]+(?:\.(?:py|yaml|bib|sh)|/))`")
"""A file or a folder that a page names in code: `hpcfl/errors.py`, `jobs/`."""


@pytest.mark.parametrize("page", ["architecture.md", "contributing.md"])
def test_the_files_that_a_page_names_exist(page):
    """By their path from the top, or from hpcfl, or, in the text on a package, from there."""
    named = set(PATH.findall((ROOT / "docs" / page).read_text()))
    assert len(named) > 10
    tops = [
        ROOT,
        *(path for path in (ROOT / "hpcfl", *(ROOT / "hpcfl").rglob("*")) if path.is_dir()),
    ]
    assert [name for name in named if not any((top / name).exists() for top in tops)] == []


GROUPS = {"hpcfl.algorithm", "hpcfl.data", "hpcfl.model"}  # of entry points


def test_what_pages_name_by_a_dotted_path_can_be_imported():
    """In code, with or without arguments: `hpcfl.read_runs(DIRS)`."""
    dotted = re.compile(r"`(hpcfl(?:\.\w+)+)(?:\([^`]*\))?`")
    named = {name for path in DOCUMENTS for name in dotted.findall(path.read_text())} - GROUPS
    assert len(named) > 10
    absent = []
    for name in named:
        try:
            resolve_name(name)
        except (ImportError, AttributeError):
            absent.append(name)
    assert absent == []


SECTIONS = {field.name for field in fields(Job)}


def test_the_sections_that_pages_name_are_of_a_job():
    """By `section.*`, which is every key of it."""
    named = {name for path in DOCUMENTS for name in re.findall(r"`(\w+)\.\*`", path.read_text())}
    assert len(named) > 5
    assert named <= SECTIONS


def test_the_keys_that_count_in_no_report_are_named():
    text = (ROOT / "docs/howto/reports.md").read_text()
    listed = re.search(r"These keys may differ, too: ([^.]*(?:\.\w+[^.]*)*)\. ", text)[1]
    named = {name.partition(".")[0] for name in re.findall("`([a-z_.]+)`", listed)}
    assert named == {*WITHOUT_EFFECT} & SECTIONS | {"store", "threads", "device"}
