"""Every method of the numpy reference has a test whose numbers were worked out by hand."""

import ast
from pathlib import Path

import pytest

from tests.algorithms.reference import METHODS

WORKED = {
    node.name
    for path in Path(__file__).parent.glob("test_*.py")
    if path != Path(__file__)
    for node in ast.walk(ast.parse(path.read_text()))
    if isinstance(node, ast.FunctionDef)
}


@pytest.mark.parametrize("name", METHODS)
def test_method_was_worked_by_hand(name):
    """By a test named after it: test_NAME, or test_NAME_... ."""
    assert any(test == f"test_{name}" or test.startswith(f"test_{name}_") for test in WORKED)
