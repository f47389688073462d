"""docs/troubleshooting.md quotes messages as the program still says them."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from hpcfl import errors

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/troubleshooting.md").read_text()
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
# Blocks of "text" are other programs' messages.
QUOTED = [line for kind, block in BLOCKS for line in block.splitlines() if not kind]
VALUE = "\0"


def said(node, names):
    """The texts that an expression makes, with a mark for each value in them."""
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=parts):
            return "".join(said(part, names) for part in parts)
        case ast.FormattedValue(value=value):
            return said(value, names)
        case ast.Name(id=name) if name in names:
            rest = {key: value for key, value in names.items() if key != name}
            return said(names[name], rest)
    return VALUE


def assigned(nodes):
    """What names stand for, by the last assignment of each."""
    return {
        target.id: node.value
        for node in nodes
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }


def texts():
    """Every text of the program, cut where a value stands."""
    trees = [ast.parse(path.read_text()) for path in sorted((ROOT / "hpcfl").rglob("*.py"))]
    constants = assigned(node for tree in trees for node in tree.body)
    for tree in trees:
        names = constants | assigned(ast.walk(tree))
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant | ast.JoinedStr):
                yield from said(node, names).split(VALUE)
    for path in sorted((ROOT / "slurm").glob("*.sh")):
        joined = re.sub(r'" \\\n *"', " ", path.read_text())  # one message over several lines
        yield joined
        for text in re.findall(r'"([^"\n]*)"', joined):
            yield re.sub(r"\$\(\(.*?\)\)|\$\{[^}]*\}|\$[\w*]+", "\n", text)


@cache
def source():
    """All of them, a line each."""
    return "\n".join(["", *{text for text in texts() if text.strip()}, ""])


def fixed(message):
    """The parts of a quoted message that are always the same, without the kind of error."""
    kind, colon, rest = message.partition(": ")
    if colon and kind.endswith("Error"):
        assert hasattr(errors, kind), kind
        message = rest
    return [part for part in message.split("...") if part.strip()]


def stands(part):
    """Whether a text holds it, or one ends and another begins with it: they are put together."""
    halves = ((part[:cut], part[cut:]) for cut in range(1, len(part)))
    said = source()
    return part in said or any(f"{a}\n" in said and f"\n{b}" in said for a, b in halves)


def absent(message):
    return [part for part in fixed(message) if not stands(part)]


@pytest.mark.parametrize("message", QUOTED)
def test_a_message_is_in_the_source(message):
    assert max(map(len, fixed(message))) > 12, "too little of it is quoted to find it"
    assert not absent(message)


def test_there_are_many():
    assert len(QUOTED) > 10


def test_another_message_is_not():
    message = "JobError: ...: the disk is too small: the run needs ... of patience"
    assert absent(message) == [" of patience"]
