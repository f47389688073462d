"""Normalisation: GroupNorm, batch normalisation, or batch normalisation that is frozen."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import batch_norm
from torch.nn.modules.batchnorm import _NormBase

from hpcfl.models.base import ModelConfig
from hpcfl.types import Count

STATISTICS = (".running_mean", ".running_var")  # end the names of frozen buffers


@dataclass(frozen=True, kw_only=True)
class Normed(ModelConfig):
    """The keys of a model that was published with batch normalisation."""

    divisor: ClassVar[int]
    """The greatest common divisor of the channels of its normalised layers."""

    norm: Literal["group", "batch", "frozen"] = "group"
    """GroupNorm, batch normalisation, or it with the statistics of ``init``, which never change."""
    groups: Count = 2
    """Groups of channels of each GroupNorm."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.norm == "frozen" and self.init is None:
            raise ValueError(
                "norm frozen takes its statistics from the file of init, and there is none; set "
                "init: torchvision, name a file, or set norm: group"
            )
        if self.divisor % self.groups:
            fit = [str(n) for n in range(1, self.divisor + 1) if self.divisor % n == 0]
            raise ValueError(f"groups: found {self.groups}, expected one of {', '.join(fit)}")

    @property
    def layer(self) -> Callable[[int], nn.Module]:
        """Makes the normalisation of so many channels."""
        if self.norm == "frozen":
            return FrozenNorm
        if self.norm == "batch":
            return nn.BatchNorm2d
        return lambda channels: nn.GroupNorm(self.groups, channels)


class FrozenNorm(nn.Module):
    """Batch normalisation with given statistics: buffers, under torchvision's names.

    Its weight and bias are trained like other parameters.
    """

    running_mean: Tensor
    running_var: Tensor

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(channels))
        self.bias = nn.Parameter(torch.zeros(channels))
        self.register_buffer("running_mean", torch.zeros(channels))
        self.register_buffer("running_var", torch.ones(channels))

    def forward(self, images: Tensor) -> Tensor:
        """Normalise images [B, C, H, W], each channel by its own mean and variance."""
        return batch_norm(images, self.running_mean, self.running_var, self.weight, self.bias)


LAYERS = (_NormBase, nn.GroupNorm, nn.LayerNorm, nn.RMSNorm, FrozenNorm)
"""The classes of normalisation layers; _NormBase: batch and instance normalisation."""


def he_convolution(
    before: int, width: int, side: int, stride: int = 1, groups: int = 1
) -> nn.Conv2d:
    """A convolution that divides the size by its stride, initialised as in He et al. (2015)."""
    conv = nn.Conv2d(before, width, side, stride, side // 2, groups=groups, bias=False)
    nn.init.kaiming_normal_(conv.weight, mode="fan_out", nonlinearity="relu")
    return conv
