"""Named random streams: every draw is keyed by (seed, purpose, round, client) and by nothing else.

A stream never depends on which rank asks, in which order, or on what ran before, so the same job
and seed give the same bits on any number of ranks and after any restart.
"""

from hashlib import blake2b
from struct import pack

import numpy as np

NO_ROUND = -1  # for draws made once per run
NO_CLIENT = -1  # for draws that belong to the server


def key(seed: int, purpose: str, round: int = NO_ROUND, client: int = NO_CLIENT) -> int:
    """A 63-bit number that only these four determine."""
    digest = blake2b(pack("<qqq", seed, round, client) + purpose.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def stream(
    seed: int, purpose: str, round: int = NO_ROUND, client: int = NO_CLIENT
) -> np.random.Generator:
    """A numpy generator of the stream's own."""
    return np.random.Generator(np.random.PCG64(key(seed, purpose, round, client)))
