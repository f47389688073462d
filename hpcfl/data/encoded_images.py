"""Encoded images: shrink them once before packing, decode them for training.

Whatever data set they are of, palettes and inks (CMYK) become red, green and blue, transparent
images are composed over white, and orientation tags are ignored, as by the usual loaders of these
data sets.  Images of more than 8 bits a channel would lose bits, so they count as damaged.
"""

from __future__ import annotations

import struct
from io import BytesIO
from typing import TYPE_CHECKING, Literal
from zlib import error as ZlibError

import numpy as np
from numpy.typing import NDArray

from hpcfl.io.packages import require

if TYPE_CHECKING:
    from PIL import Image

QUALITY = 90  # of the JPEG of a shrunk image
_FORMATS = ("JPEG", "PNG", "TIFF", "WEBP")
_GREY = {"1", "L", "LA"}  # Pillow's modes
_MODES = {*_GREY, "P", "RGB", "RGBA", "CMYK"}  # with 8 bits a channel at most
DAMAGED = (
    OSError,
    SyntaxError,
    ValueError,
    LookupError,
    TypeError,
    EOFError,
    ArithmeticError,
    struct.error,
    ZlibError,
)
"""The exceptions for files that are no images, or damaged ones."""


def require_pillow() -> None:
    """Refuse images before they are fetched, packed or decoded.

    Raises:
        JobError: Pillow is not installed.
    """
    require("PIL", "a data set of encoded images", "images")


def shrunk(content: bytes, side: int) -> bytes:
    """The same image as a square of ``side`` pixels, in JPEG of quality 90.

    The shorter side is scaled to ``side`` and the middle cut out.  Where it is no longer than
    ``side`` the file stays as it is, byte for byte.

    Raises:
        DAMAGED: it cannot be decoded.
    """
    with _opened(content) as image:
        if min(image.size) <= side:
            image.load()
            return content
        image.draft(None, (2 * side, 2 * side))  # JPEG can be decoded at half its size, or less
        out = BytesIO()
        _square(image, side).save(out, "JPEG", quality=QUALITY)
    return out.getvalue()


def pixels(content: bytes, side: int | None = None) -> NDArray[np.uint8]:
    """Red, green and blue, [side, side, 3]: the middle of the image, scaled; None: all of it.

    Raises:
        DAMAGED: it cannot be decoded.
    """
    with _opened(content) as image:
        return np.asarray(in_colour(image) if side is None else _square(image, side))


def grey_or_colour(content: bytes, mode: Literal["L", "RGB"] | None = None) -> NDArray[np.uint8]:
    """All of an image, [H, W, 1] if it is grey, else [H, W, 3].

    Args:
        content: the file.
        mode: L makes every image grey, RGB none; None: as it is.

    Raises:
        DAMAGED: it cannot be decoded.
    """
    with _opened(content) as image:
        found = in_colour(image)
        if mode == "L" or (mode is None and image.mode in _GREY):
            return np.asarray(found.convert("L"))[..., None]
        return np.asarray(found)


def reason(error: Exception) -> str:
    """Why a file could not be read, without its name."""
    return getattr(error, "strerror", None) or str(error) or type(error).__name__


def _opened(content: bytes) -> Image.Image:
    from PIL import Image, UnidentifiedImageError

    try:
        image = Image.open(BytesIO(content), formats=_FORMATS)
    except UnidentifiedImageError as e:  # its text names an object in memory
        raise ValueError("it is no JPEG, PNG, TIFF or WebP") from e
    except Image.DecompressionBombError as e:
        raise ValueError(str(e)) from e
    if image.mode not in _MODES:
        raise ValueError(f"its pixels are {image.mode}, expected 8 bits a channel")
    return image


def in_colour(image: Image.Image) -> Image.Image:
    """Red, green and blue."""
    if not image.has_transparency_data:
        return image.convert("RGB")
    from PIL import Image

    over = Image.new("RGBA", image.size, "white")
    over.alpha_composite(image.convert("RGBA"))
    return over.convert("RGB")


def _square(image: Image.Image, side: int) -> Image.Image:
    """In colour; the shorter side scaled to ``side``, the middle cut out."""
    width, height = image.size
    if width == height == side:
        return in_colour(image)
    short = min(width, height)
    left, top = (width - short) // 2, (height - short) // 2
    middle = (left, top, left + short, top + short)
    from PIL.Image import Resampling

    return in_colour(image).resize((side, side), Resampling.BICUBIC, middle)
