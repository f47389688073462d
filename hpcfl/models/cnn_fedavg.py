"""The CNN of FedAvg's paper (McMahan et al., 2017) for handwritten digits and letters."""

from dataclasses import dataclass

from torch import Tensor, nn
from torch.nn.functional import relu

from hpcfl.models.base import ModelConfig, require_images
from hpcfl.models.flatten import flat
from hpcfl.models.fused import pooled_relu


@dataclass(frozen=True, kw_only=True)
class CnnFedAvg(ModelConfig):
    """Two padded 5x5 convolutions of 32 and 64 channels with pooling, then 512 and the outputs.

    1 663 370 parameters for 10 classes of 1x28x28 images, 1 682 351 for 47.
    """

    def build(self, input_shape: tuple[int, ...], outputs: int) -> nn.Module:
        """Takes images [C, H, W] of at least 4x4."""
        require_images("cnn_fedavg", input_shape, 4)
        return Cnn(input_shape, outputs)


class Cnn(nn.Module):
    """conv 5x5, pool, conv 5x5, pool, two dense layers; relu between."""

    def __init__(self, input_shape: tuple[int, ...], outputs: int) -> None:
        super().__init__()
        channels, height, width = input_shape
        self.conv1 = nn.Conv2d(channels, 32, 5, padding=2)
        self.conv2 = nn.Conv2d(32, 64, 5, padding=2)
        self.fc1 = nn.Linear(64 * (height // 4) * (width // 4), 512)
        self.fc2 = nn.Linear(512, outputs)

    def forward(self, images: Tensor) -> Tensor:
        """Logits [B, n] of images [B, C, H, W]."""
        z = pooled_relu(self.conv1(images))
        z = pooled_relu(self.conv2(z))
        return self.fc2(relu(self.fc1(flat(z))))  # type: ignore[no-any-return]
