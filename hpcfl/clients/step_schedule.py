"""Schedules of the learning rate by local steps; n = t H + k counts those of a run from zero.

t is the round, k the step of the round, H = ``local.steps``, T = rounds H.  A client that was
absent has missed its steps: n follows from the round, and needs no state.

    rate of step n = lr lr_decay^t s(n)
    s(n) = (n + 1) / W                    n < W          (warm-up of W steps)
    s(n) = shape((n - W) / (T - W))       n >= W
    shape(q) = 1                                                 constant
               1 - (1 - floor) q                                 linear
               floor + (1 - floor) (1 + cos(pi q)) / 2           cosine
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial
from math import cos, inf, pi
from numbers import Real
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Discriminator, Tag

from hpcfl.errors import BrokenRuleError
from hpcfl.types import DottedPath, Natural, Section, Share
from hpcfl.user_code.accepts import Accepts
from hpcfl.user_code.find_object import find_object
from hpcfl.user_code.named_section import kind_of, section_of


@dataclass(frozen=True, kw_only=True)
class StepSchedule(Section, ABC):
    """Factors on the learning rate, by the number of the local step."""

    @abstractmethod
    def factor(self, n: int, steps: int) -> float:
        """The factor s(n) of step ``n``, counted from zero, out of ``steps`` of the run."""


STEP_SCHEDULE = Accepts(
    expected="a function of your own that takes n and T and gives a factor, or a class whose "
    "objects are called as one",
    base=StepSchedule,
    functions=True,
)


@dataclass(frozen=True, kw_only=True)
class _Shape(StepSchedule):
    """A warm-up, and a shape after it."""

    warmup: Natural = 0
    """W, the steps in which the factor grows to 1; the first is not zero."""

    def factor(self, n: int, steps: int) -> float:
        if n < self.warmup:
            return (n + 1) / self.warmup
        return self.shape((n - self.warmup) / (steps - self.warmup))

    @abstractmethod
    def shape(self, q: float) -> float:
        """The factor after the share ``q`` of the steps behind the warm-up."""


@dataclass(frozen=True, kw_only=True)
class ConstantSchedule(_Shape):
    """The same rate after the warm-up."""

    kind: Literal["constant"] = "constant"

    def shape(self, q: float) -> float:
        """1."""
        return 1.0


@dataclass(frozen=True, kw_only=True)
class LinearSchedule(_Shape):
    """A rate that falls by the same amount in every step after the warm-up."""

    kind: Literal["linear"] = "linear"
    floor: Share = 0.0
    """The factor that it falls to."""

    def shape(self, q: float) -> float:
        """The line from 1 to the floor."""
        return 1 - (1 - self.floor) * q


@dataclass(frozen=True, kw_only=True)
class CosineSchedule(_Shape):
    """A rate that falls along half a cosine after the warm-up."""

    kind: Literal["cosine"] = "cosine"
    floor: Share = 0.0
    """The factor that it falls to."""

    def shape(self, q: float) -> float:
        """The half cosine from 1 to the floor."""
        return self.floor + (1 - self.floor) * (1 + cos(pi * q)) / 2


@dataclass(frozen=True, kw_only=True)
class OwnSchedule(StepSchedule):
    """A function of the user's, or a class whose objects are called as one."""

    kind: Literal["own"] = "own"
    of: DottedPath
    """Its dotted path; called with n and T, it gives the factor, a number above 0."""
    keys: Mapping[str, Any] = field(default_factory=dict)
    """Further arguments of the function, or those of the class."""

    @cached_property
    def made(self) -> Any:
        """The function; ``hpcfl.job.load`` refuses what cannot be made."""
        found = find_object(self.of, STEP_SCHEDULE)
        return found(**self.keys) if isinstance(found, type) else partial(found, **self.keys)

    def factor(self, n: int, steps: int) -> float:
        """What the function returns.

        Raises:
            BrokenRuleError: it is no finite number above 0.
        """
        found = self.made(n, steps)
        factor = float(found) if not isinstance(found, bool) and isinstance(found, Real) else 0.0
        if not 0 < factor < inf:
            raise BrokenRuleError(
                f"local.step_schedule: {self.of} gives {found!r:.60} for step {n} of {steps}, "
                "expected a finite number above 0"
            )
        return factor


STEP_SCHEDULES: Mapping[str, type[StepSchedule]] = {
    "constant": ConstantSchedule,
    "linear": LinearSchedule,
    "cosine": CosineSchedule,
    "own": OwnSchedule,
}
"""By their kinds."""


StepScheduleConfig = Annotated[
    Annotated[ConstantSchedule, Tag("constant")]
    | Annotated[LinearSchedule, Tag("linear")]
    | Annotated[CosineSchedule, Tag("cosine")]
    | Annotated[OwnSchedule, Tag("own")],
    Discriminator(kind_of),
    BeforeValidator(section_of(STEP_SCHEDULES)),
]
"""``local.step_schedule`` of a job, where it has one."""
