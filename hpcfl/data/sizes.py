"""Numbers of examples of clients, and pieces of such sizes."""

import numpy as np
from numpy.typing import NDArray

from hpcfl.data.partition import ExampleRows, Quantity
from hpcfl.errors import JobError
from hpcfl.types import IntArray

MOST_DRAWS = 1000  # of a whole partition, until every client has enough examples


def even_sizes(total: int, parts: int) -> IntArray:
    """Sizes of ``parts`` shares of ``total`` that differ by at most one, larger ones first."""
    return total // parts + (np.arange(parts) < total % parts).astype(np.int64)


def proportional_sizes(total: int, shares: NDArray[np.float64]) -> IntArray:
    """Sizes that sum to ``total``, each less than one from its share of it.

    Args:
        total: the number to divide.
        shares: not negative, with a positive sum; they need not sum to one.

    Every share is rounded down; the largest remainders get the rest, one each.
    """
    exact = total * (shares / shares.sum())
    sizes: IntArray = np.floor(exact).astype(np.int64)
    largest_first = np.argsort(sizes - exact, kind="stable")
    sizes[largest_first[: total - sizes.sum()]] += 1
    return sizes


def lognormal_sizes(
    total: int, parts: int, spread: float, generator: np.random.Generator
) -> IntArray:
    """Sizes of ``parts`` shares of ``total``, one at least, lognormal with this sigma."""
    shares = np.exp(spread * generator.standard_normal(parts))
    return 1 + proportional_sizes(total - parts, shares)


def cut(rows: ExampleRows, sizes: IntArray) -> tuple[ExampleRows, ...]:
    """Consecutive pieces of these sizes, each in ascending order; remaining rows are unused."""
    ends = np.cumsum(sizes)
    return tuple(np.sort(piece) for piece in np.split(rows[: ends[-1]], ends[:-1]))


def require_least(least: int, total: int, population: int) -> None:
    """Refuse a least size that not all clients can have.

    Raises:
        JobError: the examples are too few.
    """
    if least * population > total:
        raise JobError(
            f"data.partition.least: {population} clients of at least {least} need "
            f"{least * population} training examples, the data has {total}; set least or "
            "data.clients lower"
        )


def too_few(name: str, value: float, least: int, population: int, best: int) -> JobError:
    """The error of a distribution whose draws all left a client with fewer than ``least``."""
    return JobError(
        f"data.partition.least: in {MOST_DRAWS} draws with {name} {value:g} one of the "
        f"{population} clients always had fewer than {least} examples (at best {best}); set {name} "
        "higher, or least or data.clients lower"
    )


def quantity_sizes(
    partition: Quantity, total: int, population: int, generator: np.random.Generator
) -> IntArray:
    """The sizes [N] of clients that share ``total`` examples as ``partition`` says.

    Raises:
        JobError: not every client can have ``least`` examples, or no draw gave it so many.
    """
    least = partition.least
    require_least(least, total, population)
    if partition.form == "dirichlet":
        return _dirichlet_sizes(partition.parameter, least, total, population, generator)
    if partition.form == "lognormal":
        logarithms = partition.parameter * generator.standard_normal(population)
    else:
        logarithms = -partition.parameter * np.log(generator.permutation(population) + 1)
    shares = np.exp(logarithms - logarithms.max())
    return least + proportional_sizes(total - least * population, shares)


def _dirichlet_sizes(
    alpha: float, least: int, total: int, population: int, generator: np.random.Generator
) -> IntArray:
    """The first sizes of at least ``least`` whose shares are a draw from Dir(alpha, ..., alpha)."""
    best = 0
    for _ in range(MOST_DRAWS):
        shares = generator.dirichlet(np.full(population, alpha))
        if shares.sum() > 0:  # with a tiny alpha all may be zero, or not a number
            sizes = proportional_sizes(total, shares)
            if sizes.min() >= least:
                return sizes
            best = max(best, int(sizes.min()))
    raise too_few("alpha", alpha, least, population, best)
