"""From stored images to a model's inputs: crop, flip, normalise."""

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor
from torch.nn.functional import pad


@dataclass(frozen=True)
class CropFlipNormalize:
    """Images uint8 [B, H, W, C] to normalised [B, C, H, W], channels last in memory.

    Augmentation, per image: a crop of the image's size from the image padded with black, and a
    horizontal flip with probability 1/2.  Only the rows and the generator determine the bits.
    """

    mean: tuple[float, ...]
    """Per channel, of pixels in [0, 1]."""
    std: tuple[float, ...]
    padding: int = 4
    """Pixels of black on every side before the crop."""
    augment: bool = True
    """False: no augmentation even where a generator is given."""

    def __call__(
        self, inputs: Tensor, dtype: torch.dtype, generator: torch.Generator | None
    ) -> Tensor:
        """Model inputs; ``generator`` None means no augmentation."""
        if self.augment and generator is not None:
            inputs = crop_flip(inputs, self.padding, generator)
        height, width, channels = inputs.shape[1:]
        shift, scale = _affine(self.mean, self.std, width, dtype, inputs.device)
        lines = inputs.to(dtype).reshape(-1, height, width * channels)
        images = lines.sub_(shift).mul_(scale) if dtype != inputs.dtype else (lines - shift) * scale
        return images.view(-1, height, width, channels).permute(0, 3, 1, 2)


def crop_flip(images: Tensor, padding: int, generator: torch.Generator) -> Tensor:
    """Each image [H, W, C] of the batch shifted by up to ``padding`` pixels and perhaps flipped.

    One draw per image holds its flip, row and column offset (most to least significant).
    """
    count, height, width, channels = images.shape
    offsets = 2 * padding + 1
    draw = torch.randint(
        2 * offsets**2, (count,), generator=generator, device=images.device, dtype=torch.int64
    )
    column, row, flip = draw % offsets, draw // offsets % offsets, draw // offsets**2
    along = torch.arange(width, device=images.device)
    down = torch.arange(height, device=images.device)
    channel = torch.arange(channels, device=images.device)
    padded = pad(images, (0, 0, padding, padding, padding, padding))
    # Whole lines first, then pixels within the lines: two cheap gathers.
    first = torch.arange(count, device=images.device) * (height + 2 * padding) + row
    lines = padded.view(-1, (width + 2 * padding) * channels).index_select(
        0, (first[:, None] + down).view(-1)
    )
    columns = column[:, None] + torch.where(flip[:, None] > 0, width - 1 - along, along)
    pixels = (columns[:, :, None] * channels + channel).view(count, 1, width * channels)
    cropped = lines.view(count, height, -1).gather(2, pixels.expand(-1, height, -1))
    return cropped.view(count, height, width, channels)


@lru_cache(maxsize=8)
def _affine(
    mean: tuple[float, ...],
    std: tuple[float, ...],
    width: int,
    dtype: torch.dtype,
    device: torch.device,
) -> tuple[Tensor, Tensor]:
    """Shift and scale of one line [W * C] of pixels in 0..255.

    Repeated along the line because arithmetic on a last dimension of 3 is ten times slower.
    """
    shift = torch.tensor(mean, dtype=torch.float64) * 255
    scale = 1 / (torch.tensor(std, dtype=torch.float64) * 255)
    return shift.repeat(width).to(device, dtype), scale.repeat(width).to(device, dtype)
