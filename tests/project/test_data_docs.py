"""What docs/data says is so: its index is complete, and its examples run."""

import csv
import json
import os
import re
import shlex
from pathlib import Path
from shutil import rmtree

import pytest

from hpcfl.data import SOURCES
from tests import image_layouts
from tests.forked import python

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs" / "data"


def blocks(page):
    """The files that a page shows, by the name in their first line."""
    found = re.findall(r"^```(?:python|yaml)\n(# (\S+)\n.*?)^```", page, re.MULTILINE | re.DOTALL)
    return {name: text for text, name in found}


JOBS = [path for path in sorted(DOCS.glob("*.md")) if ".yaml" in " ".join(blocks(path.read_text()))]


def test_the_index_names_every_kind():
    index = (DOCS / "README.md").read_text()
    for kind in SOURCES:
        assert f"| `{kind}`" in index, kind


def test_links_lead_somewhere():
    for page in (*DOCS.glob("*.md"), ROOT / "README.md"):
        for link in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
            assert (page.parent / link).exists(), f"{page.name}: {link}"


@pytest.mark.slow
def test_your_own(tmp_path):
    page = (DOCS / "your_own.md").read_text()
    for name, text in blocks(page).items():
        (tmp_path / name).write_text(text)
    commands = re.findall(r"^    \$ (?:PYTHONPATH=\. )?(.+)", page, re.MULTILINE)
    assert len(commands) == 16
    path = f"{tmp_path}{os.pathsep}{ROOT}"
    for command in commands:
        program, *arguments = shlex.split(command)
        words = ["-m", "hpcfl", *arguments] if program == "hpcfl" else arguments
        ended = python(1, *words, env={"PYTHONPATH": path}, folders=[tmp_path])
        assert ended.returncode == 0, ended.stderr
    shown = re.search(r"^(round,model,.*\n(?:.*,.*\n)+)```", page, re.MULTILINE)[1]
    made = (tmp_path / "runs/table/clients.csv").read_text()
    assert [line.split(",")[:5] for line in made.splitlines()] == [
        line.split(",")[:5] for line in shown.splitlines()
    ]
    runs = dict.fromkeys(("table", "arrays", "notes", "sensors"), "test_accuracy")
    for run, score in {**runs, "words": "test_perplexity"}.items():
        assert f'"{score}"' in (tmp_path / "runs" / run / "log.jsonl").read_text()


@pytest.mark.slow
def test_text(tmp_path):
    page = (DOCS / "text.md").read_text()
    for name, text in blocks(page).items():
        (tmp_path / name).write_text(text)
    for command in re.findall(
        r"^    \$ (?:PYTHONPATH=\. )?(python|hpcfl) (.+)", page, re.MULTILINE
    ):
        words = [*(["-m", "hpcfl"] if command[0] == "hpcfl" else []), *shlex.split(command[1])]
        path = f"{tmp_path}{os.pathsep}{ROOT}"
        ended = python(1, *words, env={"PYTHONPATH": path}, folders=[tmp_path])
        assert ended.returncode == 0, ended.stderr
    last = json.loads((tmp_path / "runs/text/log.jsonl").read_text().splitlines()[-1])
    # Of 14.25 bytes a line, two names and a verb are drawn: 2^(6 / 14.25) = 1.34 at best.
    assert 1.34 < last["test_perplexity"] < 1.6


@pytest.mark.slow
def test_image_folder(tmp_path):
    """Each client has test images of its own, but for one."""
    folder = image_layouts.image_folder(tmp_path / "images")
    rmtree(folder / "test")
    for number, place in enumerate(("10/class2", "9/class0", "10/class0")):
        image_layouts.image(folder / f"test/{place}/{number}.png", 100 + number)
    (tmp_path / "jobs").symlink_to(ROOT / "jobs")
    commands = re.findall(r"^    (hpcfl .+)", (DOCS / "image_folder.md").read_text(), re.MULTILINE)
    assert len(commands) == 3
    for command in commands:
        words = ["-m", *shlex.split(command)]
        ended = python(1, *words, env={"PYTHONPATH": str(ROOT)}, folders=[tmp_path])
        assert ended.returncode == 0, ended.stderr
    rows = [*csv.DictReader((tmp_path / "runs/images/clients.csv").read_text().splitlines())]
    assert {(row["client"], row["data"], row["examples"]) for row in rows} == {
        ("0", "test", "1"),
        ("1", "test", "2"),
    }


@pytest.mark.parametrize("path", JOBS, ids=lambda path: path.name)
def test_jobs_of_a_page_are_good_ones(path, tmp_path, hpcfl, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    files = blocks(path.read_text())
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    for name in files:
        if not name.endswith(".yaml"):
            continue
        assert hpcfl("check", tmp_path / name).code == 0
