"""The random vectors that algorithms ask for, each from a stream of its own."""

import torch

from hpcfl.algorithms.facts import Draws
from hpcfl.errors import BrokenRuleError
from hpcfl.seeds import NO_CLIENT, stream
from hpcfl.types import Vector


def drawn(
    draws: Draws, x: Vector, seed: int, round: int, client: int = NO_CLIENT
) -> dict[str, Vector]:
    """The vectors of a round, by their names.

    Drawn on the CPU, so that every device has the same.

    Args:
        draws: their names and distributions.
        x: [P], a vector of their dtype and device.
        seed: of the job.
        round: counted from zero.
        client: whose they are; the server's when absent.

    Raises:
        BrokenRuleError: a distribution is unknown.
    """
    made = {}
    for name, distribution in draws.items():
        if distribution not in ("uniform", "normal"):
            raise BrokenRuleError(
                f"draws: {name}: found {distribution!r:.60}, expected uniform or normal"
            )
        if x.is_meta:
            made[name] = torch.empty_like(x)
            continue
        # By numpy: torch's generator takes 32 bits of a seed, few enough to try them all.
        generator = stream(seed, f"draw {name}", round, client)
        draw = generator.standard_normal if distribution == "normal" else generator.random
        made[name] = torch.from_numpy(draw(x.shape)).to(x.device, x.dtype)
    return made
