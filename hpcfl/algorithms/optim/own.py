"""An optimiser of a user's own, by the dotted path of its class."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

from hpcfl.algorithms.layout import Layout
from hpcfl.algorithms.optim.base import Optimizer
from hpcfl.types import DottedPath, Vector
from hpcfl.user_code.accepts import Accepts
from hpcfl.user_code.find_object import find_object

OPTIMIZER = Accepts(
    expected="a class derived from hpcfl.algorithms.optim.Optimizer", base=Optimizer
)


@dataclass(frozen=True, kw_only=True)
class Own(Optimizer):
    """A class derived from ``hpcfl.algorithms.optim.Optimizer``, and its keys."""

    kind: Literal["own"] = "own"
    of: DottedPath
    """The dotted path of the class."""
    keys: Mapping[str, Any] = field(default_factory=dict)
    """The arguments of its constructor."""

    @cached_property
    def made(self) -> Optimizer:
        """The object of the class; ``hpcfl.job.schema`` refuses what cannot be made."""
        made: Optimizer = find_object(self.of, OPTIMIZER)(**self.keys)
        return made

    def init(self, y: Vector, layout: Layout) -> Any:
        return self.made.init(y, layout)

    def step(
        self, d: Vector, point: Vector, state: Any, decay: float, layout: Layout
    ) -> tuple[Vector, Any]:
        return self.made.step(d, point, state, decay, layout)
