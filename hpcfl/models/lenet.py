"""LeNet: the LeNet-5 variant of Hsu et al. (2020), as the FedHBM paper trains it on CIFAR."""

from dataclasses import dataclass

from torch import Tensor, nn
from torch.nn.functional import relu

from hpcfl.models.base import ModelConfig, require_images
from hpcfl.models.flatten import flat
from hpcfl.models.fused import pooled_relu


@dataclass(frozen=True, kw_only=True)
class LeNet(ModelConfig):
    """Two 5x5 convolutions of 64 channels with pooling, then 384, 192 and the outputs.

    797 962 parameters for 10 classes of 3x32x32 images, 815 332 for 100.
    """

    def build(self, input_shape: tuple[int, ...], outputs: int) -> nn.Module:
        """Takes images [C, H, W] of at least 16x16."""
        require_images("lenet", input_shape, 16)
        return LeNet5(input_shape, outputs)


class LeNet5(nn.Module):
    """conv 5x5, pool, conv 5x5, pool, three dense layers; relu between."""

    def __init__(self, input_shape: tuple[int, ...], outputs: int) -> None:
        super().__init__()
        channels, height, width = input_shape
        self.conv1 = nn.Conv2d(channels, 64, 5)
        self.conv2 = nn.Conv2d(64, 64, 5)
        self.fc1 = nn.Linear(64 * _pooled(height) * _pooled(width), 384)
        self.fc2 = nn.Linear(384, 192)
        self.fc3 = nn.Linear(192, outputs)

    def forward(self, images: Tensor) -> Tensor:
        """Logits [B, n] of images [B, C, H, W]."""
        z = pooled_relu(self.conv1(images))
        z = pooled_relu(self.conv2(z))
        z = relu(self.fc1(flat(z)))
        return self.fc3(relu(self.fc2(z)))  # type: ignore[no-any-return]


def _pooled(side: int) -> int:
    """The side of images after two unpadded convolutions and two poolings."""
    return ((side - 4) // 2 - 4) // 2
