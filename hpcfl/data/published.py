"""The sizes of a data set, as its publisher states them."""

from dataclasses import dataclass
from typing import Annotated

from annotated_types import Interval

from hpcfl.types import Count, Natural, Section


@dataclass(frozen=True, kw_only=True)
class PublishedSizes(Section):
    """The sizes of a data set: enough to plan a job before its files are there."""

    train: Count
    """Training examples."""
    test: Natural = 0
    """Test examples."""
    clients: Count | None = None
    """Natural clients with training examples; None: the data set names no clients."""
    classes: Count | None = None
    """Number of classes, or None for targets."""
    shape: tuple[Count, ...] | None = None
    """Of an input as it is stored, without the examples' dimension; None: the job's keys say it."""
    spread: Annotated[float, Interval(ge=0, le=10)] = 1.0
    """Standard deviation of the logarithm of a natural client's examples: sizes are drawn from a
    lognormal distribution."""

    def __post_init__(self) -> None:
        if self.clients is not None and self.clients > self.train:
            raise ValueError(
                f"clients is {self.clients}, but there are {self.train} training examples; "
                "expected one at least for each client"
            )

    def __str__(self) -> str:
        clients = "" if self.clients is None else f"{self.clients} clients, "
        classes = "" if self.classes is None else f", {self.classes} classes"
        return f"{clients}{self.train} training and {self.test} test examples{classes}"
