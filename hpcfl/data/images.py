"""Turn stored images into a model's inputs: crop, flip, set the colours, normalise."""

from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated

import torch
from pydantic import AfterValidator
from torch import Tensor
from torch.nn.functional import pad

from hpcfl.types import Positive


def require_rgb(numbers: tuple[float, ...]) -> tuple[float, ...]:
    """The numbers of the three channels.

    Raises:
        ValueError: they are not three.
    """
    if len(numbers) != 3:
        raise ValueError(f"found {len(numbers)} numbers, expected 3: of red, green and blue")
    return numbers


Mean = Annotated[tuple[float, ...], AfterValidator(require_rgb)]  # of pixels in [0, 1]
Std = Annotated[tuple[Positive, ...], AfterValidator(require_rgb)]

IMAGENET_MEAN = (0.485, 0.456, 0.406)  # of red, green and blue in [0, 1]
IMAGENET_STD = (0.229, 0.224, 0.225)
_LUMA = (0.2989, 0.587, 0.114)  # of red, green and blue in the grey image, as torchvision has it


@dataclass(frozen=True)
class CropFlipNormalize:
    """Images uint8 [B, H, W, C] to normalised [B, C, H, W], channels last in memory.

    Augmentation, per image: a crop from the image padded with black, and a horizontal flip with
    probability 1/2.  Without it a crop of the centre.  The bits of an image follow from its own
    row and draw alone.

    ``brightness`` b and ``saturation`` s are fixed, not drawn, and are applied as by torchvision,
    on pixels p in [0, 1]: first p <- b p, then p <- s p + (1 - s) grey with
    grey = 0.2989 red + 0.587 green + 0.114 blue, each clamped to [0, 1].
    """

    mean: tuple[float, ...]
    """Per channel, of pixels in [0, 1]."""
    std: tuple[float, ...]
    padding: int = 4
    """Pixels of black on every side before the crop."""
    augment: bool = True
    """False: no augmentation, and no random numbers are drawn for it."""
    size: int | None = None
    """Side of the crops, at most that of the images; None: the image's own height and width."""
    brightness: float = 1.0
    """b; 0 is black, 1 changes nothing."""
    saturation: float = 1.0
    """s; 0 is grey, 1 changes nothing."""

    def __call__(self, inputs: Tensor, dtype: torch.dtype, draws: Tensor | None) -> Tensor:
        """Model inputs; without ``draws`` [B] the middle of each image."""
        height, width, channels = inputs.shape[1:]
        if self.size is not None:
            height = width = self.size
        if self.augment and draws is not None:
            inputs = crop_flip(inputs, self.padding, draws, (height, width))
        else:
            inputs = _middle(inputs, height, width)
        shift, scale = _affine(self.mean, self.std, width, dtype, inputs.device)
        lines = self._coloured(inputs.to(dtype)).reshape(-1, height, width * channels)
        images = lines.sub_(shift).mul_(scale) if dtype != inputs.dtype else (lines - shift) * scale
        return images.view(-1, height, width, channels).permute(0, 3, 1, 2)

    def _coloured(self, images: Tensor) -> Tensor:
        """Pixels in 0..255 [B, H, W, 3] with the brightness and saturation of this transform."""
        if self.brightness != 1:
            images = (images * self.brightness).clamp(0, 255)
        if self.saturation != 1:
            red, green, blue = (images[..., k] * weight for k, weight in enumerate(_LUMA))
            grey = (red + green + blue)[..., None]
            images = (images * self.saturation + grey * (1 - self.saturation)).clamp(0, 255)
        return images


def crop_flip(images: Tensor, padding: int, draws: Tensor, size: tuple[int, int]) -> Tensor:
    """A random crop of ``size`` from each padded image [H, W, C] of the batch, flipped at random.

    ``draws`` [B] has a random integer for each image.  Modulo 2 x rows x columns, the positions of
    a crop, it gives flip, row offset and column offset, from most to least significant.
    """
    count, _, _, channels = images.shape
    height, width = size
    padded = pad(images, (0, 0, padding, padding, padding, padding)).contiguous()
    rows, columns = padded.shape[1] - height + 1, padded.shape[2] - width + 1
    draw = draws % (2 * rows * columns)
    column, row, flip = draw % columns, draw // columns % rows, draw // (rows * columns)
    down, along = _gather_indices(height, width, channels, images.device)
    # Two gathers, of rows and of pixels within rows, take less memory than one of single pixels.
    first = torch.arange(count, device=images.device) * padded.shape[1] + row
    lines = padded.view(-1, padded.shape[2] * channels).index_select(
        0, (first[:, None] + down).view(-1)
    )
    pixels = along.index_select(0, flip).add_((column * channels)[:, None])
    cropped = lines.view(count, height, -1).gather(2, pixels[:, None].expand(-1, height, -1))
    return cropped.view(count, height, width, channels)


@lru_cache(maxsize=8)
def _gather_indices(
    height: int, width: int, channels: int, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Rows of an image [H]; and pixels of a row [2, W * C], in order and mirrored."""
    along = torch.arange(width * channels, device=device).view(width, channels)
    return torch.arange(height, device=device), torch.stack([along, along.flip(0)]).flatten(1)


def _middle(images: Tensor, height: int, width: int) -> Tensor:
    """The middle of each image [H, W, C]."""
    top, left = (images.shape[1] - height) // 2, (images.shape[2] - width) // 2
    return images[:, top : top + height, left : left + width]


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
