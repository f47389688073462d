"""Multinomial logistic regression: ``linear`` for classes only, initialised to zero.

The problem is convex, so that a random start would add nothing but noise; SCAFFOLD's experiments
start at zero.
"""

from dataclasses import dataclass
from typing import ClassVar

from torch import nn

from hpcfl.models.linear import Linear


@dataclass(frozen=True, kw_only=True)
class Logistic(Linear):
    """Multinomial logistic regression: as linear, but for classes only and initialised to 0."""

    classifies: ClassVar[bool] = True

    def build(self, input_shape: tuple[int, ...], outputs: int) -> nn.Module:
        """Any input shape fits."""
        model = super().build(input_shape, outputs)
        for parameter in model.parameters():
            nn.init.zeros_(parameter)
        return model
