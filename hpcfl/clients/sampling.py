"""Sample the clients of a round: a function of the seed and the round, the same on every rank.

``power_of_choice`` draws candidates so; which of them take part is known when the round begins.
"""

from abc import ABC, abstractmethod
from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import Discriminator

from hpcfl.errors import JobError
from hpcfl.io.files import parse_json, read_error
from hpcfl.io.regular import read
from hpcfl.seeds import stream
from hpcfl.types import Count, Fraction, IntArray, PathText, Section

Weights = NDArray[np.float64]
"""[N], positive, the job's weight of every client."""


class Drawing(NamedTuple):
    """What the clients of a round are drawn by."""

    round: int
    """Counted from zero."""
    population: int
    """N."""
    seed: int
    """The job's."""
    available: IntArray | None = None
    """Those who can be drawn, ascending; None: all."""
    weights: Weights | None = None
    """None: all alike."""

    @property
    def stream(self) -> np.random.Generator:
        """The random numbers of the round."""
        return stream(self.seed, "cohort", self.round)

    @property
    def ids(self) -> IntArray:
        """The clients that can be drawn."""
        return np.arange(self.population) if self.available is None else self.available

    def present(self, clients: IntArray) -> IntArray:
        """Those of the clients that are available."""
        return clients if self.available is None else clients[np.isin(clients, self.available)]

    def by_weight(self, size: int, *, replace: bool) -> IntArray:
        """Draw ``size`` clients one after the other by their weights; none where nobody is."""
        if not len(self.ids):
            return self.ids
        own = np.ones(len(self.ids)) if self.weights is None else self.weights[self.ids]
        return self.ids[self.stream.choice(len(self.ids), size, replace=replace, p=own / own.sum())]


@dataclass(frozen=True, kw_only=True)
class _Kind(Section, ABC):
    """A kind of cohorts."""

    def draw(
        self,
        round: int,
        population: int,
        seed: int,
        available: IntArray | None = None,
        weights: Weights | None = None,
    ) -> IntArray:
        """The round's clients, ascending, each once; see ``Drawing``."""
        return self._draw(Drawing(round, population, seed, available, weights))

    @abstractmethod
    def _draw(self, drawing: Drawing) -> IntArray: ...


@dataclass(frozen=True, kw_only=True)
class _WithSize(_Kind):
    """Cohorts with a key ``size``."""

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
class Sized(_WithSize):
    """Cohorts of ``size`` different clients, of which more may be asked (``over_select``)."""


@dataclass(frozen=True, kw_only=True)
class Uniform(Sized):
    """``size`` clients, without replacement."""

    kind: Literal["uniform"] = "uniform"

    def _draw(self, drawing: Drawing) -> IntArray:
        """The round's clients, ascending: out of all, or of those ``available``, or all of them."""
        ids = drawing.ids
        chosen = drawing.stream.choice(len(ids), min(self.size, len(ids)), replace=False)
        return np.sort(ids[chosen])


@dataclass(frozen=True, kw_only=True)
class Bernoulli(_Kind):
    """Each client independently with probability ``p``; a round may be empty."""

    kind: Literal["bernoulli"] = "bernoulli"
    p: Fraction
    """The probability with which a client takes part in a round."""

    def participation(self, population: int) -> float:
        """C, the expected fraction of the clients in a round."""
        return self.p

    def check(self, population: int, rounds: int) -> None:
        """Any population is valid; a run refuses cohorts that all turn out empty."""

    def _draw(self, drawing: Drawing) -> IntArray:
        """The round's clients, ascending; none that is not ``available``."""
        return drawing.present(np.flatnonzero(drawing.stream.random(drawing.population) < self.p))


@dataclass(frozen=True, kw_only=True)
class Cyclic(Sized):
    """Round t takes clients t * size to (t + 1) * size - 1, modulo the population."""

    kind: Literal["cyclic"] = "cyclic"

    def _draw(self, drawing: Drawing) -> IntArray:
        """The round's clients, ascending; none that is not ``available``."""
        members = (drawing.round * self.size + np.arange(self.size)) % drawing.population
        return drawing.present(np.sort(members))


@dataclass(frozen=True, kw_only=True)
class Replay(_Kind):
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

    def _draw(self, drawing: Drawing) -> IntArray:
        """The round's clients, ascending; none that is not ``available``."""
        return drawing.present(np.sort(np.asarray(self.cohorts[drawing.round], dtype=np.int64)))


@dataclass(frozen=True, kw_only=True)
class Importance(_WithSize):
    """``size`` draws with replacement, with the probabilities that ``weights`` gives.

    A client trains once, and counts in the mean as often as it was drawn.  The mean of a round is
    thus unbiased for the weighted mean over all clients: scheme I of Li et al. (2020).
    """

    kind: Literal["importance"] = "importance"
    size: Count
    """Draws of a round."""

    def draws(self, drawing: Drawing) -> IntArray:
        """The round's draws, ascending: a client as often as it was drawn."""
        return np.sort(drawing.by_weight(self.size, replace=True))

    def _draw(self, drawing: Drawing) -> IntArray:
        """The round's clients, ascending, each once; none that is not ``available``."""
        return np.unique(self.draws(drawing))


@dataclass(frozen=True, kw_only=True)
class PowerOfChoice(Sized):
    """The ``size`` clients with the largest loss, of ``candidates`` drawn as ``weights`` says.

    Power-of-choice (Cho, Wang, Joshi, 2020), pow-d: the candidates are drawn without replacement,
    receive the model, and send its loss on all their training examples.  Those with the largest
    losses train, and all of them weigh the same; the mean is biased towards them on purpose.
    """

    kind: Literal["power_of_choice"] = "power_of_choice"
    candidates: Count
    """d, clients of a round that send their loss."""

    def __post_init__(self) -> None:
        if self.candidates < self.size:
            raise ValueError(
                f"candidates: found {self.candidates}, expected {self.size} at least, the size"
            )

    def check(self, population: int, rounds: int) -> None:
        """Raise JobError where the cohorts do not fit the population."""
        if self.candidates > population:
            raise JobError(
                f"cohort.candidates: {self.candidates} clients, but the population has "
                f"{population}; use at most {population}"
            )

    def draw_candidates(self, drawing: Drawing) -> IntArray:
        """Those who send their loss, as drawn; all who are ``available`` where these are fewer."""
        return drawing.by_weight(min(self.candidates, len(drawing.ids)), replace=False)

    def _draw(self, drawing: Drawing) -> IntArray:
        """What a plan takes for the round's clients, as losses are not known: the first drawn."""
        return np.sort(self.draw_candidates(drawing)[: self.size])

    def choose(self, candidates: IntArray, losses: NDArray[np.float64]) -> IntArray:
        """The round's clients, ascending: those with the largest losses, or the lowest numbers."""
        order = np.lexsort((candidates, -losses))
        return np.sort(candidates[order[: self.size]])


CohortConfig = Annotated[
    Uniform | Bernoulli | Cyclic | Replay | Importance | PowerOfChoice, Discriminator("kind")
]
