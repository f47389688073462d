"""The table of block sizes of the Triton kernels.

Block sizes fix the order in which a kernel sums, and so a client's bits: nothing is tuned while a
run lasts.  Those of convolutions take at most a quarter longer than the fastest of the sizes that
an H200 timed for LeNet, ResNet-20 and pfl's CNN in tf32, most of them less than a tenth.  They hold
for all GPUs from compute capability 8.0 on: every kernel fits into the 99 KiB of shared memory that
the smallest of them has, and spills at most two registers
(``tests/triton_kernels/test_compile.py``).
"""

from typing import NamedTuple

VERSION = 3  # raise it with every change of a size or of a kernel's arithmetic

MOST_NORMED = 1024  # channels of a group that one program normalises
MOST_HIDDEN = 128  # hidden numbers of an LSTM that one program keeps
LSTM_EXAMPLES, LSTM_WARPS = 16, 8
_NORMED = 2048  # numbers that a program of a normalisation reads at once
_PROGRAMS = 128  # of a client, up to which the gradient of the kernels is divided into parts


class Tile(NamedTuple):
    """The block of a matrix product that one program computes."""

    rows: int
    columns: int
    inner: int  # summed at a time
    warps: int
    stages: int  # of the pipeline that loads


class Blocks(NamedTuple):
    """The blocks of a convolution and of its gradients."""

    forward: Tile  # rows are pixels, columns output channels
    inputs: Tile  # rows are pixels, columns input channels
    kernels: Tile  # rows are output channels, columns taps and input channels
    split: int  # parts of the pixels, summed one by one into the gradient of the kernels


def convolution_blocks(channels: int, outputs: int, taps: int, size: int) -> Blocks:
    """The blocks of a convolution.

    Args:
        channels: of the images.
        outputs: channels of the outputs.
        taps: numbers of a kernel for one channel, 9 for 3x3.
        size: bytes of a number of the images: 4 or 2.
    """
    inner = 128 // size
    rows, columns = _power(outputs, 32), _power(taps * channels, 128)
    tiles = -(-outputs // rows) * -(-taps * channels // columns)
    return Blocks(
        _pixels(outputs, inner),
        _pixels(channels, inner),
        Tile(rows, columns, 32, 4, 3),
        max(1, _PROGRAMS // tiles),
    )


def _pixels(channels: int, inner: int) -> Tile:
    """The block of pixels by channels; a larger one of 32 channels would spill."""
    columns = _power(channels, 64)
    return Tile(64 if columns == 32 else 128, columns, inner, 8 if columns == 64 else 4, 3)


def norm_block(pixels: int, channels: int) -> tuple[int, int]:
    """Pixels, and channels of one group, that a program of a normalisation reads at once."""
    columns = _next_power(channels)
    return min(_next_power(pixels), max(1, _NORMED // columns)), columns


def hidden_block(hidden: int) -> int:
    """The hidden numbers of an LSTM, rounded up to what a product of blocks takes."""
    return _power(hidden, MOST_HIDDEN)


def _power(number: int, most: int) -> int:
    """The next power of two, from 16, the least that a product of blocks takes, to ``most``."""
    return min(most, max(16, _next_power(number)))


def _next_power(number: int) -> int:
    return 1 << (number - 1).bit_length()
