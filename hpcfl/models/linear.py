"""Linear: softmax regression for classes, linear regression for targets."""

from dataclasses import dataclass
from math import prod

from torch import nn

from hpcfl.models.base import ModelConfig


@dataclass(frozen=True, kw_only=True)
class Linear(ModelConfig):
    """One linear layer over the flattened input: outputs * (inputs + 1) parameters."""

    bias: bool = True
    """Whether the layer has a bias."""

    def build(self, input_shape: tuple[int, ...], outputs: int) -> nn.Module:
        """Any input shape fits."""
        return nn.Sequential(nn.Flatten(), nn.Linear(prod(input_shape), outputs, bias=self.bias))
