"""What hpcfl carries as the last fields of a method's messages, uploads and client states.

Running statistics [Q] of the model, and the state of a client's optimiser where it is kept.  So
they are sent, averaged and stored beside a method's own tensors, whose hooks never see them.
"""

import re
from collections import namedtuple
from functools import cache
from typing import Any, NamedTuple

import torch
from torch.utils._pytree import (
    TreeSpec,
    keystr,
    tree_flatten,
    tree_flatten_with_path,
    tree_unflatten,
)

from hpcfl.errors import BrokenRuleError
from hpcfl.types import Vector

STATISTICS, OPTIMIZER = "statistics", "optimizer"


class Split(NamedTuple):
    """A tree of a method, and what lay beside it."""

    tree: Any
    statistics: Vector | None
    """None where the tree has none."""
    optimizer: Any
    """The state of the client's optimiser; None where the tree has none."""


class _Beside(NamedTuple):
    """What a wider type has behind the fields of a method's."""

    inner: Any  # the method's NamedTuple
    has_statistics: bool
    optimizer: TreeSpec | None  # the structure of the optimiser's state, whose leaves are fields


@cache
def _wider_type(beside: _Beside) -> Any:
    """The NamedTuple of a method's with more fields: one of statistics, one a tensor of a state.

    Raises:
        BrokenRuleError: the method has a field of one of these names.
    """
    inner, has_statistics, optimizer = beside
    names = [STATISTICS] * has_statistics + ([] if optimizer is None else _names(optimizer))
    for name in names:
        if name in inner._fields:
            why = "a model with batch normalisation" if name == STATISTICS else "a kept optimiser"
            raise BrokenRuleError(
                f"{inner.__name__} has a field {name}, which hpcfl adds for {why}; rename it"
            )
    fields = [*inner._fields, *names]  # none of which begins with an underscore
    made: Any = type(inner.__name__, (namedtuple("_", fields),), {"_beside": beside})
    return made


def _names(form: TreeSpec) -> list[str]:
    """Names of the tensors of an optimiser's state: "optimizer_m"; "optimizer" of one tensor."""
    paths, _ = tree_flatten_with_path(tree_unflatten([0] * form.num_leaves, form))
    return [re.sub(r"\W+", "_", f"{OPTIMIZER}{keystr(path)}").rstrip("_") for path, _ in paths]


def joined(tree: Any, statistics: Vector | None = None, optimizer: Any = None) -> Any:
    """A method's NamedTuple with what is not None as its last fields; itself without any."""
    if statistics is None and optimizer is None:
        return tree
    leaves, form = ([], None) if optimizer is None else tree_flatten(optimizer)
    wider = _wider_type(_Beside(type(tree), statistics is not None, form))
    return wider(*tree, *([] if statistics is None else [statistics]), *leaves)


def split(tree: Any) -> Split:
    """Undo ``joined``."""
    beside: _Beside | None = getattr(type(tree), "_beside", None)
    if beside is None:
        return Split(tree, None, None)
    own = len(beside.inner._fields)
    statistics = tree[own] if beside.has_statistics else None
    leaves, form = tree[own + beside.has_statistics :], beside.optimizer
    optimizer = None if form is None else tree_unflatten(leaves, form)
    return Split(beside.inner(*tree[:own]), statistics, optimizer)


def at_statistics(x: Vector, statistics: Vector | None) -> Vector:
    """The point [P + Q] at which a model is evaluated; ``x`` [P] itself without statistics."""
    return x if statistics is None else torch.cat([x, statistics])
