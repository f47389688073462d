"""ResNet-18 (He et al., 2016) as in torchvision: 7x7 stem, max pool, four stages of two blocks."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor, nn
from torch.nn.functional import max_pool2d

from hpcfl.models.base import require_images
from hpcfl.models.fused import norm_relu
from hpcfl.models.normalization import Normed, he_convolution

Norm = Callable[[int], nn.Module]


@dataclass(frozen=True, kw_only=True)
class ResNet18(Normed):
    """A 7x7 convolution, max pool and four stages of two blocks, 64 to 512 channels.

    11 176 512 + 513 n parameters for n classes of colour images: 11 689 512 for ImageNet.
    Named and ordered as torchvision's, so that its weights fit.
    """

    divisor: ClassVar[int] = 64
    imagenet: ClassVar[str | None] = "resnet18-f37072fd.pth"

    def build(self, input_shape: tuple[int, ...], outputs: int) -> nn.Module:
        """Build the network for images [C, H, W] of any size."""
        require_images("resnet18", input_shape, 1)
        return ResNet(input_shape[0], outputs, self.layer)


class ResNet(nn.Module):
    """The stem, the stages, the mean over all pixels and one dense layer."""

    def __init__(self, channels: int, outputs: int, norm: Norm) -> None:
        super().__init__()
        self.conv1 = he_convolution(channels, 64, 7, 2)
        self.bn1 = norm(64)
        self.layer1 = _stage(64, 64, 1, norm)
        self.layer2 = _stage(64, 128, 2, norm)
        self.layer3 = _stage(128, 256, 2, norm)
        self.layer4 = _stage(256, 512, 2, norm)
        self.fc = nn.Linear(512, outputs)

    def forward(self, images: Tensor) -> Tensor:
        """Logits [B, n] of images [B, C, H, W]."""
        z = max_pool2d(norm_relu(self.bn1, self.conv1(images)), 3, 2, padding=1)
        z = self.layer4(self.layer3(self.layer2(self.layer1(z))))
        return self.fc(z.mean((2, 3)))  # type: ignore[no-any-return]


class Block(nn.Module):
    """Two 3x3 convolutions, and a shortcut: a 1x1 convolution where the shape changes."""

    def __init__(self, before: int, width: int, stride: int, norm: Norm) -> None:
        super().__init__()
        self.conv1 = he_convolution(before, width, 3, stride)
        self.bn1 = norm(width)
        self.conv2 = he_convolution(width, width, 3, 1)
        self.bn2 = norm(width)
        self.downsample = (
            nn.Sequential(he_convolution(before, width, 1, stride), norm(width))
            if (before, stride) != (width, 1)
            else nn.Identity()
        )

    def forward(self, x: Tensor) -> Tensor:
        """[B, before, H, W] to [B, width, H', W']."""
        z = self.conv2(norm_relu(self.bn1, self.conv1(x)))
        return norm_relu(self.bn2, z, self.downsample(x))


def _stage(before: int, width: int, stride: int, norm: Norm) -> nn.Sequential:
    """Two blocks, of which the first may halve the image."""
    return nn.Sequential(Block(before, width, stride, norm), Block(width, width, 1, norm))
