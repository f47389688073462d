"""Random streams: each is determined by (seed, purpose, round, client) and by nothing else.

A stream depends neither on the rank nor on the draws before it, so the same job and seed give the
same bits on any number of ranks and after any restart.
"""

from hashlib import blake2b
from struct import pack

import numpy as np
from numpy.random.bit_generator import ISeedSequence
from numpy.typing import NDArray

NO_ROUND = -1  # for draws made once per run
NO_CLIENT = -1  # for draws that belong to the server


def key(seed: int, purpose: str, round: int = NO_ROUND, client: int = NO_CLIENT) -> int:
    """A 63-bit seed, determined by the four arguments, for torch's generators and for dropout."""
    return int.from_bytes(_digest(8, seed, purpose, round, client), "little") >> 1


def stream(
    seed: int, purpose: str, round: int = NO_ROUND, client: int = NO_CLIENT
) -> np.random.Generator:
    """A new numpy generator, at the beginning of the stream."""
    words = np.frombuffer(_digest(32, seed, purpose, round, client), dtype="<u8")
    return np.random.Generator(np.random.PCG64(_Words(words)))  # type: ignore[arg-type]


class _Words:
    """Passes a digest to PCG64 as its state.

    numpy's SeedSequence would hash it again, which takes longer than the digest.
    """

    def __init__(self, words: NDArray[np.uint64]) -> None:
        self._words = words

    def generate_state(self, count: int, dtype: type = np.uint64) -> NDArray[np.uint64]:
        """The four words of PCG64's state.

        Raises:
            NotImplementedError: another generator requests other words.
        """
        if (count, dtype) != (4, np.uint64):
            raise NotImplementedError(f"{count} words of {dtype}; a stream is PCG64's")
        return self._words


ISeedSequence.register(_Words)


def _digest(size: int, seed: int, purpose: str, round: int, client: int) -> bytes:
    return blake2b(pack("<qqq", seed, round, client) + purpose.encode(), digest_size=size).digest()
