"""The parts of the site that docs/generate.py writes from the program are complete."""

import importlib.util
import re
import shlex
import sys
from pathlib import Path

import pytest

from hpcfl.algorithms import ALGORITHMS
from hpcfl.job.load import load
from hpcfl.runs.job_file.settings import flatten
from tests.project.pages import blocks

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
ITEM = re.compile(
    r"^- \[?`([a-z_.]+)`(?:\]\(#\w+\))? \((.*?)(?:; (required|default `.*?`))?\): (.*)$",
    re.MULTILINE,
)


@pytest.fixture(scope="module")
def generate():
    """docs/generate.py, which lies in no package."""
    spec = importlib.util.spec_from_file_location("generate", DOCS / "generate.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def keys(generate):
    """The lists of the page of keys: by the key its values, default and meaning."""
    text = generate.fill((DOCS / "reference/keys.md").read_text())
    return {key: rest for key, *rest in ITEM.findall(text)}


@pytest.mark.parametrize("page", ["quickstart.yaml", "cifar10/fedhbm_noniid.yaml"])
def test_every_key_of_a_job_is_listed(page, keys):
    job = flatten(load(ROOT / "jobs" / page).tree)
    named = {
        "data.kind",
        "data.partition.kind",
        "model.name",
        "cohort.kind",
        "algorithm.name",
        "store.kind",
    }
    other = {"algorithm.beta", "algorithm.first", "algorithm.nesterov", "algorithm.participation"}
    assert set(job) - named - other <= set(keys)


def test_every_key_says_what_it_means(keys):
    assert len(keys) > 80
    assert not [key for key, (values, _, meaning) in keys.items() if not values or not meaning]


def test_a_key_has_range_default_and_whether_it_may_change(keys):
    assert keys["local.lr"][:2] == ["number > 0", "required"]
    assert keys["checkpoint.every"][1] == "default `500`"
    assert keys["rounds"][0] == "whole number >= 1, &lt;= 1000000"
    assert keys["evaluate"][:2] == ["section", ""]
    assert keys["checkpoint.keep"][2].endswith("*May change at a resume.*")
    assert "resume" not in keys["local.lr"][2] + keys["evaluate.batch_size"][2]


def test_every_algorithm_and_command_has_a_heading(generate):
    page = generate.fill((DOCS / "reference/algorithms.md").read_text())
    assert set(re.findall(r"^### `(\w+)`$", page, re.MULTILINE)) == set(ALGORITHMS)
    page = generate.fill((DOCS / "reference/commands.md").read_text())
    headings = re.findall(r"^### `hpcfl ([a-z -]+)`$", page, re.MULTILINE)
    rows = re.findall(r"^\| `hpcfl ([a-z -]+?)(?: [A-Z-].*)?` \|", page, re.MULTILINE)
    assert len(headings) > 10
    assert set(headings) == set(rows)


def test_asterisks_are_no_emphasis(generate):
    text = generate.fill((DOCS / "reference/keys.md").read_text())
    assert r"LEAF's train/\*.json and test/\*.json" in text
    assert generate._cell("a * ``b*``|`c*`") == r"a \* ``b*``\|`c*`"


@pytest.mark.parametrize(("module", "cls"), [("mine", "FedProx"), ("lion", "Lion")])
def test_the_examples_of_classes_of_ones_own(tmp_path, monkeypatch, hpcfl, module, cls):
    page = (DOCS / "reference/algorithms.md").read_text()
    (example,) = [
        text for kind, text in blocks(page) if kind == "python" and f"class {cls}(" in text
    ]
    (tmp_path / f"{module}.py").write_text(example)
    monkeypatch.syspath_prepend(tmp_path)
    line = rf"^    PYTHONPATH=\. hpcfl run (\S+) (.*{module}\.{cls}.*)$"
    command = re.search(line, page, re.MULTILINE)
    done = hpcfl("check", ROOT / command[1], *shlex.split(command[2]))
    sys.modules.pop(module, None)
    assert done.code == 0, done.err


def test_a_part_that_does_not_exist(generate):
    with pytest.raises(KeyError, match="keyz"):
        generate.fill("a\n<!-- generate: keyz -->\n")
