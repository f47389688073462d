"""docs/features.csv: who asked for each feature, its file, and a test that fails without it."""

import argparse
import csv
import re
from collections.abc import Iterator, Mapping
from inspect import get_annotations
from io import StringIO
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from hpcfl.algorithms import ALGORITHMS
from hpcfl.algorithms.base import Algorithm
from hpcfl.algorithms.optim import OPTIMIZERS
from hpcfl.cli.parser import parser
from hpcfl.clients.sampling import CohortConfig
from hpcfl.clients.step_schedule import STEP_SCHEDULES
from hpcfl.data import SOURCES
from hpcfl.data.base import DataConfig
from hpcfl.data.partition import Partition
from hpcfl.job.callbacks import _OF_HPCFL as CALLBACKS
from hpcfl.job.description import Setting, kinds, settings
from hpcfl.job.schema import SECTIONS, Job
from hpcfl.job.tasks import TASKS
from hpcfl.models import MODELS
from hpcfl.models.base import ModelConfig
from hpcfl.models.training_loss import TRAINING_LOSSES
from hpcfl.runs.job_file.packaged import packaged_jobs
from hpcfl.runs.score_names import SCORES

ROOT = Path(__file__).parents[2]
TABLE = ROOT / "docs/features.csv"


class Row(NamedTuple):
    """A line of the table."""

    kind: str
    name: str
    asked: str
    file: str
    test: str


class Choice(NamedTuple):
    """A section of a job whose class is chosen by name."""

    kind: str
    section: str
    classes: Mapping[str, type[Any]]
    base: type[Any] | None = None


CHOICES = (
    Choice("algorithm", "algorithm", ALGORITHMS, Algorithm),
    Choice("cohort", "cohort", kinds(CohortConfig)),
    Choice("data", "data", SOURCES, DataConfig),
    Choice("loss", "loss", TRAINING_LOSSES),
    Choice("model", "model", MODELS, ModelConfig),
    Choice("optimizer", "local.optimizer", OPTIMIZERS),
    Choice("partition", "data.partition", kinds(Partition)),
    Choice("step_schedule", "local.step_schedule", STEP_SCHEDULES),
)
NAMES: Mapping[str, Mapping[str, Any]] = {
    **{choice.kind: choice.classes for choice in CHOICES},
    "callback": CALLBACKS,
    "job": {name: job for name, job in packaged_jobs().items() if not name.startswith("papers/")},
    "score": SCORES,
    "task": TASKS,
}
TYPES = {"number", "text", "section", "true", "false"}  # what is no value by name


def features() -> set[tuple[str, str]]:
    """The kind and the name of each: ("key", "data.test_every of concrete")."""
    found = {(kind, name) for kind, known in NAMES.items() for name in known}
    for section, cls in {"": Job, **SECTIONS}.items():
        found.update(of for key in settings(cls) for of in _of_key(section, key))
    for choice in CHOICES:
        if choice.base:
            found.update(of for key in settings(choice.base) for of in _of_key(choice.section, key))
        for name, cls in choice.classes.items():
            for key in settings(cls, choice.base):
                found.update(_of_key(choice.section, key, _owner(choice, name, cls, key.name)))
    return found | {*_of_command(parser())}


def _owner(choice: Choice, name: str, cls: type[Any], key: str) -> str:
    """Whose key it is: a method that is derived from another has that one's; "": of all."""
    first = next(c for c in reversed(cls.__mro__) if key in get_annotations(c))
    if first is choice.base:
        return ""
    return next((name for name, known in choice.classes.items() if known is first), name)


def _of_key(section: str, key: Setting, owner: str = "") -> Iterator[tuple[str, str]]:
    """A key, and its values by name but the default: ("value", "executor=block")."""
    path = f"{section}.{key.name}".removeprefix(".")
    of = f" of {owner}" if owner else ""
    yield "key", path + of
    for value in key.values.split(" | "):
        if re.fullmatch(r"\w+", value) and value not in (*TYPES, key.default):
            yield "value", f"{path}={value}{of}"


def _of_command(command: argparse.ArgumentParser) -> Iterator[tuple[str, str]]:
    """A command with its options and their values but the default, and the commands below it."""
    name = command.prog.removeprefix("hpcfl").strip()
    if command.get_default("command"):
        yield "command", name
    for action in command._actions:
        if isinstance(action, argparse._SubParsersAction):
            for below in action.choices.values():
                yield from _of_command(below)
        elif action.option_strings and not isinstance(action, argparse._HelpAction):
            option = f"{name} {action.option_strings[-1]}".strip()
            yield "option", option
            for value in action.choices or ():
                if value != action.default:
                    yield "value", f"{option}={value}"


def rows_for(kind: str, name: str, table: Mapping[tuple[str, str], Row]) -> list[Row]:
    """The rows of a feature: its own, or that of a key which several data sets or models have."""
    names = {name, re.sub(" of .*", " of *", name)}
    return [row for name in names if (row := table.get((kind, name)))]


@pytest.fixture(scope="module")
def table() -> dict[tuple[str, str], Row]:
    rows = [Row(*cells) for cells in csv.reader(StringIO(TABLE.read_text()))]
    assert rows[0] == Row._fields
    return {(row.kind, row.name): row for row in rows[1:]}


def test_each_feature_has_a_row(table):
    found = {feature: rows_for(*feature, table) for feature in features()}
    lacking = "\n".join(
        f"{kind},{name},ASKED,FILE,TEST" for kind, name in sorted(found) if not found[kind, name]
    )
    assert not lacking, (
        f"add to {TABLE}, in order:\n{lacking}\nASKED is a sweep jobs/papers/NAME.yaml, `papers: ` "
        "and the first cell of a row of docs/papers.md, `promise: ` and a number of "
        "docs/explanation/promises.md, the https address of a paper or of a user's thread, or "
        "nobody; FILE has the feature; TEST fails without it"
    )
    assert [feature for feature, rows in found.items() if len(rows) > 1] == []


def test_each_row_is_of_a_feature(table):
    used = {(row.kind, row.name) for of in features() for row in rows_for(*of, table)}
    assert sorted(table.keys() - used) == []


def test_the_rows_are_in_order_and_quoted_where_needed(table):
    text = StringIO()
    csv.writer(text, lineterminator="\n").writerows([Row._fields, *sorted(table.values())])
    assert TABLE.read_text() == text.getvalue()


def test_who_asked_can_be_looked_up(table):
    promises = (ROOT / "docs/explanation/promises.md").read_text()
    papers = (ROOT / "docs/papers.md").read_text()
    known = {
        "nobody",
        *(f"promise: {number}" for number in re.findall(r"\*\*Promise (\d+)[:.]", promises)),
        *(f"papers: {cell}" for cell in re.findall(r"^\| (.*?) \|", papers, re.MULTILINE)),
        *(str(path.relative_to(ROOT)) for path in (ROOT / "jobs/papers").glob("*.yaml")),
    }
    address = re.compile(r"https://[\w.-]+/\S+")
    asked = {row.asked for row in table.values()}
    assert sorted(a for a in asked - known if not address.fullmatch(a)) == []


def test_the_files_and_tests_exist(table):
    """What nobody asked for may have no test."""
    tested = [row for row in table.values() if (row.asked, row.test) != ("nobody", "none")]
    named = {row.file for row in table.values()} | {row.test for row in tested}
    assert sorted(path for path in named if not (ROOT / path).is_file()) == []
    assert all(re.fullmatch(r"tests/(\w+/)*test_\w+\.py", row.test) for row in tested)


def test_the_promises_are_numbered_in_order():
    promises = (ROOT / "docs/explanation/promises.md").read_text()
    numbers = [0, *map(int, re.findall(r"\*\*Promise (\d+)[:.]", promises))]
    assert len(numbers) > 5
    assert all(second == first + 1 for first, second in pairwise(numbers))
