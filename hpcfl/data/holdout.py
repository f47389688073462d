"""Hold examples out of training: some of every client for tests, and some for validation."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from hpcfl.data.partition import ExampleRows
from hpcfl.errors import DataError, JobError
from hpcfl.seeds import stream
from hpcfl.types import Part, Section, Seed


@dataclass(frozen=True, kw_only=True)
class Validation(Section):
    """Training data that is kept for choices: of the best round, of a rate."""

    share: Part
    """The part of every client's examples, or of the clients; rounded, at least one, but at least
    one remains for training."""
    of: Literal["examples", "clients"] = "examples"
    """Examples: some of each client; clients: all examples of some clients, which never train."""
    seed: Seed | None = None
    """The seed of the draw; the job's when absent."""

    def clients_of(self, population: int) -> int:
        """The number of clients, of so many, that are kept out of training."""
        return rounded(self.share, population) if self.of == "clients" else 0


def rounded(share: float, count: int) -> int:
    """``share`` of ``count``, rounded, at least one; but at least one of ``count`` remains."""
    return min(max(1, round(share * count)), count - 1)


def hold_out(
    clients: Sequence[ExampleRows], share: float, seed: int, purpose: str = "holdout"
) -> tuple[tuple[ExampleRows, ...], tuple[ExampleRows, ...]]:
    """Each client's training rows, and its held-out rows; both in their previous order.

    A client holds out ``share`` of its examples, rounded, at least one; but at least one remains
    for training, so that a client with a single example holds out none.

    Args:
        clients: the rows of each.
        share: of a client's rows.
        seed: of the draws.
        purpose: "holdout" or "validation": the key of ``data``, and the name of the random stream.

    Raises:
        DataError: no client has two examples.
    """
    train, held = [], []
    for client, rows in enumerate(clients):
        count = rounded(share, len(rows))
        chosen = np.zeros(len(rows), dtype=bool)
        chosen[stream(seed, purpose, client=client).permutation(len(rows))[:count]] = True
        train.append(rows[~chosen])
        held.append(rows[chosen])
    if not any(len(rows) for rows in held):
        raise DataError(f"data.{purpose}: no client has 2 examples, so nothing can be held out")
    return tuple(train), tuple(held)


def draw_validation_clients(config: Validation, population: int, seed: int) -> ExampleRows:
    """The clients, ascending, that are kept out of training.

    Args:
        config: their share.
        population: the number of clients.
        seed: the job's; ``config.seed`` overrides it.

    Raises:
        JobError: there is only one client.
    """
    if population < 2:
        raise JobError(
            "data.validation.of: clients, but there is only one client; say of: examples"
        )
    generator = stream(seed if config.seed is None else config.seed, "validation")
    return np.sort(generator.choice(population, size=config.clients_of(population), replace=False))
