"""The BibTeX of what a job uses."""

import re

import pytest

from hpcfl.algorithms import ALGORITHMS
from hpcfl.data import SOURCES
from hpcfl.models import MODELS
from hpcfl.report import bibliography


@pytest.mark.parametrize(
    ("table", "registered"),
    [
        (bibliography.METHODS, ALGORITHMS),
        (bibliography.MODELS, MODELS),
        (bibliography.DATA, SOURCES),
    ],
)
def test_everything_that_is_registered_has_its_line(table, registered):
    assert {name for name in table if " " not in name} == set(registered)
    assert {name.partition(" ")[0] for name in table} == set(registered)
    assert {key for keys in table.values() for key in keys} <= set(bibliography.ENTRIES)


def test_every_method_has_an_entry_and_every_entry_is_used():
    assert all(bibliography.METHODS.values())
    tables = (bibliography.METHODS, bibliography.MODELS, bibliography.DATA)
    used = {key for table in tables for keys in table.values() for key in keys}
    assert used == set(bibliography.ENTRIES)


@pytest.mark.parametrize("key", bibliography.ENTRIES)
def test_an_entry_is_well_formed(key):
    """Braces match, and it has an author, a title and the year that its key says."""
    text = bibliography.ENTRIES[key]
    assert text.isascii()
    assert text.count("{") == text.count("}")
    assert re.match(rf"@[a-z]+\{{{key},\n", text)
    assert re.search(r"^  author = \{.*, .*\},$", text, re.MULTILINE)
    assert f"  year = {{{key[-4:]}}},\n" in text
    assert re.search(r"^  title = \{.+\},$", text, re.MULTILINE)


def test_a_job_a_sweep_and_runs(job, tmp_path, hpcfl):
    done = hpcfl("cite", job)
    assert (done.code, done.text.count("@")) == (0, 1)
    assert "@misc{zaccone2023,\n" in done.text
    assert done.out[-2:] == ["% model linear: no entry", "% data arrays: no entry"]
    sweep = tmp_path / "sweep.yaml"
    methods = (
        "{a: {algorithm: {name: fedavg}}, b: {algorithm: {name: server_only, optimizer: adam}}}"
    )
    sweep.write_text(f"job: {job}\ngrid: {{method: {methods}, seed: [0, 1]}}\n")
    found = re.findall(r"@\w+{(\w+)", hpcfl("cite", sweep).text)
    assert found == ["mcmahan2017", "kingma2015"]
    assert hpcfl("run", job, "rounds=1", "--out", tmp_path / "runs" / "a").code == 0
    assert hpcfl("cite", tmp_path / "runs").text == done.text


def test_nothing_to_cite_is_refused(tmp_path, refused):
    (tmp_path / "empty").mkdir()
    assert f"{tmp_path / 'empty'}: holds no run" in refused("cite", tmp_path / "empty")
