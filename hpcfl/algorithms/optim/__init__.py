"""Optimisers of the clients' local steps: pure functions of one client's vectors."""

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import BeforeValidator, Discriminator, Tag

from hpcfl.algorithms.optim.adam import Adam, AdamW
from hpcfl.algorithms.optim.base import Descent, Optimizer
from hpcfl.algorithms.optim.muon import Muon
from hpcfl.algorithms.optim.own import Own
from hpcfl.algorithms.optim.sgd import Sgd
from hpcfl.user_code.named_section import kind_of, section_of

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


OptimizerConfig = Annotated[
    Annotated[Literal["sgd"], Tag("sgd")]
    | Annotated[Adam, Tag("adam")]
    | Annotated[AdamW, Tag("adamw")]
    | Annotated[Muon, Tag("muon")]
    | Annotated[Own, Tag("own")],
    Discriminator(kind_of),
    BeforeValidator(section_of(OPTIMIZERS, "sgd")),
]
"""``local.optimizer`` of a job."""
