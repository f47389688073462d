"""A method that nobody worked out on paper must not pass."""

import ast
from pathlib import Path

import pytest

from hpcfl.algorithms import ALGORITHMS

WORKED = {
    node.name
    for path in Path(__file__).parent.glob("test_*.py")
    if path != Path(__file__)
    for node in ast.walk(ast.parse(path.read_text()))
    if isinstance(node, ast.FunctionDef)
}


@pytest.mark.parametrize("name", ALGORITHMS)
def test_method_was_worked_by_hand(name):
    """By a test named after it: test_NAME, or test_NAME_... ."""
    assert any(test == f"test_{name}" or test.startswith(f"test_{name}_") for test in WORKED)
