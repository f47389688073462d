"""The CNN of pfl-research's CIFAR-10 benchmark (Granqvist et al., 2024, arXiv:2404.06430)."""

from dataclasses import dataclass

from torch import Tensor, nn
from torch.nn.functional import relu

from hpcfl.models.base import ModelConfig, require_images
from hpcfl.models.flatten import flat
from hpcfl.models.fused import pooled_relu


@dataclass(frozen=True, kw_only=True)
class CnnPfl(ModelConfig):
    """Two 3x3 convolutions of 32 and 64 channels, one pooling, then 128 and the outputs.

    Dropout of 1/4 and 1/2 before the dense layers; Glorot's uniform initial weights.
    1 626 442 parameters for 10 classes of 3x32x32 images.
    """

    def build(self, input_shape: tuple[int, ...], outputs: int) -> nn.Module:
        """Takes images [C, H, W] of at least 6x6."""
        require_images("cnn_pfl", input_shape, 6)
        return Cnn(input_shape, outputs)


class Cnn(nn.Module):
    """conv 3x3, conv 3x3, pool, dropout, dense, dropout, dense; relu between."""

    def __init__(self, input_shape: tuple[int, ...], outputs: int) -> None:
        super().__init__()
        channels, height, width = input_shape
        self.conv1 = nn.Conv2d(channels, 32, 3)
        self.conv2 = nn.Conv2d(32, 64, 3)
        self.dropout1 = nn.Dropout(0.25)
        self.fc1 = nn.Linear(64 * ((height - 4) // 2) * ((width - 4) // 2), 128)
        self.dropout2 = nn.Dropout(0.5)
        self.fc2 = nn.Linear(128, outputs)
        for layer in (self.conv1, self.conv2, self.fc1, self.fc2):
            nn.init.xavier_uniform_(layer.weight)

    def forward(self, images: Tensor) -> Tensor:
        """Logits [B, n] of images [B, C, H, W]."""
        z = pooled_relu(self.conv2(relu(self.conv1(images))))
        z = self.dropout1(flat(z))
        return self.fc2(self.dropout2(relu(self.fc1(z))))  # type: ignore[no-any-return]
