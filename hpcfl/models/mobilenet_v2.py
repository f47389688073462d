"""MobileNetV2 (Sandler et al., 2018) of width multiplier 1, as in torchvision."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor, nn

from hpcfl.models.base import require_images
from hpcfl.models.normalization import Normed, he_convolution
from hpcfl.types import Decay

_STEM, _TOP = 32, 1280
_STAGES = (  # expansion factor, output channels, number of blocks, stride of the first block
    (1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2),
    (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1),
)  # fmt: skip
Norm = Callable[[int], nn.Module]


@dataclass(frozen=True, kw_only=True)
class MobileNetV2(Normed):
    """Seventeen blocks of 1x1, depthwise 3x3 and 1x1 convolutions; dropout before the last layer.

    2 223 872 + 1281 n parameters for n classes of colour images: 3 504 872 for ImageNet.
    Named and ordered as torchvision's, so that its weights fit.
    """

    divisor: ClassVar[int] = 8
    imagenet: ClassVar[str | None] = "mobilenet_v2-7ebf99e0.pth"

    dropout: Decay = 0.2
    """The share of features that is dropped before the last layer, in training."""

    def build(self, input_shape: tuple[int, ...], outputs: int) -> nn.Module:
        """Build the network for images [C, H, W] of any size."""
        require_images("mobilenet_v2", input_shape, 1)
        return MobileNet(input_shape[0], outputs, self.layer, self.dropout)


class MobileNet(nn.Module):
    """The blocks, the mean over all pixels, dropout and one dense layer."""

    def __init__(self, channels: int, outputs: int, norm: Norm, dropout: float) -> None:
        super().__init__()
        layers: list[nn.Module] = [_conv(channels, _STEM, 3, norm, stride=2)]
        before = _STEM
        for factor, width, blocks, stride in _STAGES:
            for number in range(blocks):
                first = stride if number == 0 else 1
                layers.append(Block(before, width, first, factor, norm))
                before = width
        layers.append(_conv(before, _TOP, 1, norm))
        self.features = nn.Sequential(*layers)
        head = nn.Linear(_TOP, outputs)
        nn.init.normal_(head.weight, 0, 0.01)
        nn.init.zeros_(head.bias)
        self.classifier = nn.Sequential(nn.Dropout(dropout), head)

    def forward(self, images: Tensor) -> Tensor:
        """Logits [B, n] of images [B, C, H, W]."""
        return self.classifier(self.features(images).mean((2, 3)))  # type: ignore[no-any-return]


class Block(nn.Module):
    """Inverted residual: expand, filter each channel, project; a shortcut if the shape stays."""

    def __init__(self, before: int, width: int, stride: int, factor: int, norm: Norm) -> None:
        super().__init__()
        hidden = before * factor
        self.shortcut = (before, stride) == (width, 1)
        expansion = [_conv(before, hidden, 1, norm)] if factor > 1 else []
        self.conv = nn.Sequential(
            *expansion,
            _conv(hidden, hidden, 3, norm, stride=stride, groups=hidden),
            he_convolution(hidden, width, 1),
            norm(width),
        )

    def forward(self, x: Tensor) -> Tensor:
        """[B, before, H, W] to [B, width, H', W']."""
        z: Tensor = self.conv(x)
        return x + z if self.shortcut else z


def _conv(
    before: int, width: int, side: int, norm: Norm, *, stride: int = 1, groups: int = 1
) -> nn.Module:
    """Convolution, normalisation and ReLU6."""
    conv = he_convolution(before, width, side, stride, groups)
    return nn.Sequential(conv, norm(width), nn.ReLU6(inplace=True))
