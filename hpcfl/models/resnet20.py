"""ResNet-20 for 32x32 images (He et al., 2016, section 4.2), GroupNorm instead of BatchNorm."""

from dataclasses import dataclass
from typing import Literal

from torch import Tensor, nn
from torch.nn.functional import pad

from hpcfl.models.base import ModelConfig, require_images
from hpcfl.models.fused import norm_relu

_GROUPS = 2
_DEPTH = 3  # blocks of each width
_WIDTHS = (16, 32, 64)


@dataclass(frozen=True, kw_only=True)
class ResNet20(ModelConfig):
    """Three stages of three blocks, 16 to 64 channels, option-A shortcuts, GroupNorm of 2 groups.

    269 722 parameters for 10 classes of colour images, 275 572 for 100.
    """

    random: Literal["torch", "kaiming"] = "torch"
    """Random weights as PyTorch's layers draw them, or normal ones of variance 2 / fan-in (He et
    al., 2015), as in Idelbayev's pytorch_resnet_cifar10, which the FedHBM paper follows."""

    def build(self, input_shape: tuple[int, ...], outputs: int) -> nn.Module:
        """Build the network for images [C, H, W] of at least 4x4."""
        require_images("resnet20", input_shape, 4)
        network = ResNet(input_shape[0], outputs)
        if self.random == "kaiming":
            for layer in network.modules():
                if isinstance(layer, nn.Conv2d | nn.Linear):
                    nn.init.kaiming_normal_(layer.weight)
        return network


class ResNet(nn.Module):
    """A convolution, the stages, the mean over all pixels and one dense layer."""

    def __init__(self, channels: int, outputs: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, _WIDTHS[0], 3, padding=1, bias=False)
        self.norm = nn.GroupNorm(_GROUPS, _WIDTHS[0])
        blocks = []
        before = _WIDTHS[0]
        for width in _WIDTHS:
            for _ in range(_DEPTH):
                blocks.append(Block(before, width))
                before = width
        self.blocks = nn.Sequential(*blocks)
        self.fc = nn.Linear(before, outputs)

    def forward(self, images: Tensor) -> Tensor:
        """Logits [B, n] of images [B, C, H, W]."""
        z = self.blocks(norm_relu(self.norm, self.conv(images)))
        return self.fc(z.mean((2, 3)))  # type: ignore[no-any-return]


class Block(nn.Module):
    """Two 3x3 convolutions, and a shortcut without parameters (option A)."""

    def __init__(self, before: int, width: int) -> None:
        super().__init__()
        self.added = width - before  # channels; where some are added, the image is halved
        stride = 2 if self.added else 1
        self.conv1 = nn.Conv2d(before, width, 3, stride, padding=1, bias=False)
        self.norm1 = nn.GroupNorm(_GROUPS, width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.norm2 = nn.GroupNorm(_GROUPS, width)

    def forward(self, x: Tensor) -> Tensor:
        """[B, before, H, W] to [B, width, H', W']."""
        z = self.conv2(norm_relu(self.norm1, self.conv1(x)))
        if self.added:
            # Option A: every second pixel, and zeros for the added channels.
            half = self.added // 2
            x = pad(x[:, :, ::2, ::2], (0, 0, 0, 0, half, self.added - half))
        return norm_relu(self.norm2, z, x)
