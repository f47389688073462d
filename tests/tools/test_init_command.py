"""`hpcfl init`: what it makes runs as its README.md says."""

import re
from pathlib import Path

import pytest

from hpcfl.tools.init import TEMPLATE
from tests.project.pages import blocks

ROOT = Path(__file__).parents[2]
COMMAND = re.compile(r"^ {4,7}(?:mpirun -n 2 )?hpcfl (.+)$", re.MULTILINE)


@pytest.fixture
def folder(tmp_path, monkeypatch, own_process, hpcfl):
    """A new folder, the current directory, where Python finds modules."""
    made = tmp_path / "mine"
    assert hpcfl("init", made).code == 0
    monkeypatch.chdir(made)
    monkeypatch.syspath_prepend(made)
    monkeypatch.setenv("PYTHONPATH", str(made))
    return made


@pytest.mark.slow
@pytest.mark.usefixtures("forked_python")
def test_the_commands_of_its_page_run(folder, hpcfl):
    commands = COMMAND.findall((folder / "README.md").read_text())
    assert len(commands) == 12
    assert commands.pop().endswith(" --submit")
    for command in commands:
        some = ["--only", "fedavg,seed0"] if command.startswith("sweep ") else []  # quicker
        done = hpcfl(*command.split(), *some)
        assert done.code == 0, (command, done.err)
    runs = {str(path.parent) for path in Path("runs").rglob("job.yaml")}
    rates = {f"runs/rates/fedavg-lr{rate}-seed0" for rate in ("0.03", "0.1", "0.3")}
    assert runs == {"runs/quickstart", "runs/fedvarp", "runs/methods/fedavg-seed0", *rates}


def test_its_page_says_how_to_compare(folder, hpcfl):
    """Rates are chosen on validation data, the same seeds and settings for every method."""
    said = " ".join((folder / "README.md").read_text().split())
    for part in ("on validation data", "The seeds are the same for all methods", "`n` counts"):
        assert part in said
    listed = hpcfl("sweep", "jobs/sweeps/rates.yaml", "--dry-run").out
    assert sum("data.validation={share: 0.1}" in line for line in listed) == 18


def test_its_algorithm_passes_the_checks(folder, hpcfl):
    done = hpcfl("check", "jobs/fedvarp.yaml", "--data")
    assert done.code == 0, done.err
    assert "fedvarp" in done.text


def test_its_algorithm_is_the_one_of_the_page_on_extending():
    page = (ROOT / "docs/extending.md").read_text()
    texts = dict(text.split("\n", 1) for kind, text in blocks(page) if kind)
    assert (TEMPLATE / "fedvarp.py").read_text() == texts["# fedvarp.py"]
    job = (TEMPLATE / "jobs/fedvarp.yaml").read_text()
    assert job.split("\n", 2)[2] == texts["# fedvarp.yaml"]


def test_its_page_names_its_files(folder):
    said = (folder / "README.md").read_text()
    made = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    assert {name for name in made if f"`{name}`" not in said} == {"README.md"}


def test_a_folder_with_content_is_refused(tmp_path, refused, hpcfl):
    (tmp_path / "note").write_text("mine")
    line = refused("init", tmp_path)
    assert line.startswith(
        f"JobError: init: {tmp_path}: found a folder with content, expected a new"
    )
    assert [path.name for path in tmp_path.iterdir()] == ["note"]
    assert "found a file, expected a new" in refused("init", tmp_path / "note")
    assert "note/below: Not a directory" in refused("init", tmp_path / "note" / "below")
    (tmp_path / "empty").mkdir()
    assert hpcfl("init", tmp_path / "empty").code == 0
