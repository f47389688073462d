"""Sample the clients of a round: a function of the seed and the round, the same on every rank."""

from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Discriminator

from hpcfl.errors import JobError
from hpcfl.io.files import parse_json, read_error
from hpcfl.io.regular import read
from hpcfl.seeds import stream
from hpcfl.types import Count, Fraction, IntArray, PathText, Section


@dataclass(frozen=True, kw_only=True)
class Sized(Section):
    """Cohorts of one size."""

    size: Count
    """|S|, clients of a round."""

    def participation(self, population: int) -> float:
        """C, the expected fraction of the clients in a round."""
        return self.size / population

    def check(self, population: int, rounds: int) -> None:
        """Raise JobError where the cohorts do not fit the population."""
        if self.size > population:
            raise JobError(
                f"cohort.size: cohorts of {self.size} clients, but the population has "
                f"{population}; use at most {population}"
            )


@dataclass(frozen=True, kw_only=True)
class Uniform(Sized):
    """``size`` clients, without replacement."""

    kind: Literal["uniform"] = "uniform"

    def draw(
        self, round: int, population: int, seed: int, available: IntArray | None = None
    ) -> IntArray:
        """The round's clients, ascending: out of all, or of those ``available``, or all of them."""
        ids = np.arange(population) if available is None else available
        size = min(self.size, len(ids))
        chosen = stream(seed, "cohort", round).choice(len(ids), size, replace=False)
        return np.sort(ids[chosen])


@dataclass(frozen=True, kw_only=True)
class Bernoulli(Section):
    """Each client independently with probability ``p``; a round may be empty."""

    kind: Literal["bernoulli"] = "bernoulli"
    p: Fraction
    """The probability with which a client takes part in a round."""

    def participation(self, population: int) -> float:
        """C, the expected fraction of the clients in a round."""
        return self.p

    def check(self, population: int, rounds: int) -> None:
        """Any population is valid; a run refuses cohorts that all turn out empty."""

    def draw(
        self, round: int, population: int, seed: int, available: IntArray | None = None
    ) -> IntArray:
        """The round's clients, ascending; none that is not ``available``."""
        present = stream(seed, "cohort", round).random(population) < self.p
        return _present(np.flatnonzero(present), available)


@dataclass(frozen=True, kw_only=True)
class Cyclic(Sized):
    """Round t takes clients t * size to (t + 1) * size - 1, modulo the population."""

    kind: Literal["cyclic"] = "cyclic"

    def draw(
        self, round: int, population: int, seed: int, available: IntArray | None = None
    ) -> IntArray:
        """The round's clients, ascending; none that is not ``available``."""
        members: IntArray = (round * self.size + np.arange(self.size)) % population
        return _present(np.sort(members), available)


@dataclass(frozen=True, kw_only=True)
class Replay(Section):
    """Given cohorts: a list of client ids for every round."""

    kind: Literal["replay"] = "replay"
    rounds: tuple[tuple[int, ...], ...] | None = None
    """The clients of each round, counted from 0."""
    path: PathText | None = None
    """A JSON file with the same list, instead of ``rounds``."""

    def __post_init__(self) -> None:
        if (self.rounds is None) == (self.path is None):
            raise ValueError("give the cohorts as rounds or as path, one of the two")

    @cached_property
    def cohorts(self) -> tuple[tuple[int, ...], ...]:
        """The cohorts in order.

        Raises:
            JobError: the file is missing or not a list of lists of integers.
        """
        if self.path is None:
            return self.rounds or ()
        try:
            lists: Any = parse_json(read(Path(self.path)))
        except (OSError, ValueError) as e:
            message = f"cohort.path: {self.path}: cannot be read as JSON: {e}"
            raise read_error(e, message, JobError) from e
        if not isinstance(lists, list) or not all(
            isinstance(ids, list) and all(type(i) is int for i in ids) for ids in lists
        ):
            raise JobError(f"cohort.path: {self.path}: expected a list of lists of client ids")
        return tuple(tuple(ids) for ids in lists)

    def participation(self, population: int) -> float:
        """C, the mean size of the cohorts over the population."""
        return sum(map(len, self.cohorts)) / len(self.cohorts) / population

    def check(self, population: int, rounds: int) -> None:
        """Raise JobError where the cohorts do not fit the population or the rounds."""
        if len(self.cohorts) < rounds:
            raise JobError(
                f"cohort: {len(self.cohorts)} cohorts are given for {rounds} rounds; "
                f"give one list a round or set rounds to {len(self.cohorts)}"
            )
        for t, ids in enumerate(self.cohorts):
            unknown = sorted({i for i in ids if not 0 <= i < population})
            if unknown:
                raise JobError(
                    f"cohort.rounds[{t}]: client {unknown[0]} is unknown; "
                    f"the population's ids are 0 to {population - 1}"
                )
            if len(set(ids)) < len(ids):
                ((double, _),) = Counter(ids).most_common(1)
                raise JobError(f"cohort.rounds[{t}]: client {double} is listed twice")
        if not any(self.cohorts):
            raise JobError("cohort.rounds: every cohort is empty")

    def draw(
        self, round: int, population: int, seed: int, available: IntArray | None = None
    ) -> IntArray:
        """The round's clients, ascending; none that is not ``available``."""
        return _present(np.sort(np.asarray(self.cohorts[round], dtype=np.int64)), available)


def _present(clients: IntArray, available: IntArray | None) -> IntArray:
    """Those of the clients that are available; all where None says nothing of it."""
    return clients if available is None else clients[np.isin(clients, available)]


CohortConfig = Annotated[Uniform | Bernoulli | Cyclic | Replay, Discriminator("kind")]
