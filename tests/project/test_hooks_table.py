"""The tables of docs/reference/hooks.md name every hook, and every field that hooks are given."""

import inspect
import re
from dataclasses import fields
from pathlib import Path

import pytest

from hpcfl.algorithms.base import Algorithm
from hpcfl.algorithms.facts import Client, Cohort, Facts, Forward
from hpcfl.algorithms.layout import Layout
from hpcfl.types import Section
from tests.project.pages import section

PAGE = (Path(__file__).parents[2] / "docs/reference/hooks.md").read_text()
GIVEN = section(PAGE, "What hooks are given")


def public(cls, base=object):
    return {name for name in dir(cls) if not name.startswith("_")} - set(dir(base))


def named(text):
    """The names in the first cells of a text's tables; of a function without its arguments."""
    cells = re.findall(r"^\| (.*?) \|", text, re.MULTILINE)
    return {name for cell in cells for name in re.findall(r"`(\w+)(?:\(.*?\))?`", cell)}


def test_every_hook_and_attribute():
    text = section(PAGE, "The hooks")
    expected = public(Algorithm, Section) | {"server_lr"}
    prose = {"layout", "with_facts", "has_personal_models", "facts"}
    assert prose <= set(re.findall(r"`(\w+)`", text.rpartition("\n|")[2]))
    assert named(text) | prose == expected | {"facts"}


@pytest.mark.parametrize(
    "hook", re.findall(r"^\| `(\w+\(.*?\))`", section(PAGE, "The hooks"), re.MULTILINE)
)
def test_hooks_have_these_arguments(hook):
    name, arguments = hook.rstrip(")").split("(")
    _, *known = inspect.signature(getattr(Algorithm, name)).parameters
    assert arguments.split(", ") == known


@pytest.mark.parametrize(
    ("cls", "known"),
    [
        *((cls, set(cls._fields)) for cls in (Client, Cohort, Facts, Forward)),
        (Layout, public(Layout) | {field.name for field in fields(Layout)}),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_every_field(cls, known):
    _, text = GIVEN.split(f"`{cls.__name__}`")
    table = re.search(r"^\|.*?(?=^[^|]|\Z)", text, re.MULTILINE | re.DOTALL)[0]
    assert named(table) == known
