"""The places of parameters in the flat vector."""

import pytest

from hpcfl.algorithms.layout import Layout


@pytest.mark.parametrize(
    ("sizes", "count", "expected"),
    [
        ((12, 3), 2, ["a", "b"]),
        ((12, 3), 1, ["ab"]),
        ((1, 1, 1, 1, 1), 2, ["ab", "cde"]),  # 2 and 3 are as near to 2.5
        ((50, 10, 10, 10, 10, 10), 4, ["a", "bc", "d", "ef"]),  # a is large; then 50 / 3, 30 / 2
        ((1, 1, 50), 3, ["a", "b", "c"]),  # one of each at least
        ((12, 3), 4, ["", "", "a", "b"]),
    ],
)
def test_parameters_divided(sizes, count, expected):
    names = tuple("abcdef"[: len(sizes)])
    layout = Layout(names, tuple((size,) for size in sizes))
    assert ["".join(part) for part in layout.divided(count)] == expected
