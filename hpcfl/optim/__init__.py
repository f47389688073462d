"""Optimisers of the clients' local steps: pure functions of one client's vectors."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Discriminator, Tag

from hpcfl.optim.adam import Adam, AdamW
from hpcfl.optim.base import Descent, Optimizer
from hpcfl.optim.muon import Muon
from hpcfl.optim.own import Own
from hpcfl.optim.sgd import Sgd

__all__ = [
    "OPTIMIZERS",
    "Adam",
    "AdamW",
    "Descent",
    "Muon",
    "Optimizer",
    "OptimizerConfig",
    "Own",
    "Sgd",
]


OPTIMIZERS: Mapping[str, type[Optimizer]] = {
    "adam": Adam,
    "adamw": AdamW,
    "muon": Muon,
    "own": Own,
}
"""By their kinds; ``sgd`` has no section, as its keys are those of ``local``."""


def _section(given: Any) -> Any:
    """A name alone as a section: ``adamw`` is ``{kind: adamw}``, ``mine.Lion`` a class."""
    if isinstance(given, str) and given != "sgd":
        given = {"kind": "own", "of": given} if "." in given else {"kind": given}
    if _kind(given) not in {"sgd", *OPTIMIZERS}:
        found = given.get("kind") if isinstance(given, dict) else given
        known = ", ".join(kind for kind in OPTIMIZERS if kind != "own")
        raise ValueError(f"found {found!r:.60}, expected one of sgd, {known}, or a dotted path")
    return given


def _kind(given: Any) -> Any:
    """The tag of an optimiser: its name, or the ``kind`` of its section."""
    return given.get("kind") if isinstance(given, dict) else getattr(given, "kind", given)


OptimizerConfig = Annotated[
    Annotated[Literal["sgd"], Tag("sgd")]
    | Annotated[Adam, Tag("adam")]
    | Annotated[AdamW, Tag("adamw")]
    | Annotated[Muon, Tag("muon")]
    | Annotated[Own, Tag("own")],
    Discriminator(_kind),
    BeforeValidator(_section),
]
"""``local.optimizer`` of a job."""
