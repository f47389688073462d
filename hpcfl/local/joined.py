"""Running statistics [Q] as the last field of a message, an upload or a client's state.

So they are sent, averaged and stored beside a method's own tensors, whose hooks never see them.
"""

from collections import namedtuple
from functools import cache
from typing import Any, NamedTuple

import torch

from hpcfl.errors import BrokenRuleError
from hpcfl.types import Vector

FIELD = "statistics"


class Split(NamedTuple):
    """A tree of a method, and the running statistics that lay beside it."""

    tree: Any
    statistics: Vector | None
    """None where the tree has none."""


@cache
def _type_with_statistics(inner: Any) -> Any:
    """The NamedTuple of a method's with one field more.

    Raises:
        BrokenRuleError: the method has a field of this name.
    """
    if FIELD in inner._fields:
        raise BrokenRuleError(
            f"{inner.__name__} has a field {FIELD}, which hpcfl adds for a model with batch "
            "normalisation; rename it"
        )
    names = [*inner._fields, FIELD]
    made: Any = type(inner.__name__, (namedtuple("_", names),), {"without_statistics": inner})
    return made


def joined(tree: Any, statistics: Vector | None) -> Any:
    """A method's NamedTuple with the statistics as its last field; itself without any."""
    kind: Any = type(tree)
    return tree if statistics is None else _type_with_statistics(kind)(*tree, statistics)


def split(tree: Any) -> Split:
    """Undo ``joined``."""
    if not hasattr(type(tree), "without_statistics"):
        return Split(tree, None)
    *fields, statistics = tree
    return Split(type(tree).without_statistics(*fields), statistics)


def at_statistics(x: Vector, statistics: Vector | None) -> Vector:
    """The point [P + Q] at which a model is evaluated; ``x`` [P] itself without statistics."""
    return x if statistics is None else torch.cat([x, statistics])
