"""A number and its noun."""

import pytest

from hpcfl.io.words import counted


@pytest.mark.parametrize(
    ("count", "form", "text"),
    [(0, "", "0 steps"), (1, "", "1 step"), (2, "", "2 steps"), (2.5, ".4g", "2.5 steps")],
)
def test_a_number_has_its_plural(count, form, text):
    assert counted(count, "step", form) == text
