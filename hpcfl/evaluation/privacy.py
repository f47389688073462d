"""The privacy of DP-FedAvg: an (epsilon, delta) guarantee for whole clients, by dp-accounting.

Renyi differential privacy composes the rounds.  Which bound it is follows from the cohorts:

    bernoulli  Poisson sampling; neighbours differ by one client's presence
    uniform    sampling without replacement (Wang, Balle, Kasiviswanathan, 2019); neighbours
               differ by one client replaced, which moves the sum by two clips
    others     every round counts for every client, as nobody draws the cohorts; neighbours
               differ by one client's data, there or replaced by nothing

With ``devices`` a cohort without replacement is drawn from fewer clients, of which the fast ones
count: it is one of the others.  Poisson sampling stays what it is, as nothing but a client's own
availability and time decides whether it counts.
"""

import logging
from decimal import ROUND_CEILING, Context
from functools import cached_property
from importlib import import_module
from typing import Any

from hpcfl.algorithms.base import Algorithm
from hpcfl.algorithms.dpfedavg import DPFedAvg
from hpcfl.clients.sampling import Bernoulli, CohortConfig, Uniform
from hpcfl.errors import JobError
from hpcfl.io.packages import installed

PACKAGE = "dp_accounting"
INSTALL = "pip install 'hpcfl[privacy]'"
# The orders of the Renyi divergence; epsilon is the least of their bounds.  The fractional ones
# matter where epsilon is above 1: the best order is then small, and may lie between 1 and 2.
_ORDERS = (*(k / 10 for k in range(11, 110)), *range(11, 65), 80, 96, 128, 192, 256, 512, 1024)
_LEAST_NOISE = 0.05  # where the search for a noise begins


class Accountant:
    """Finds the epsilon of a job's rounds, and the noise for an epsilon.

    Args:
        algorithm: the job's.
        cohort: the job's section of that name.
        population: N.
        alone: whether nothing but the cohort decides who takes part.
    """

    def __init__(
        self, algorithm: DPFedAvg, cohort: CohortConfig, population: int, *, alone: bool
    ) -> None:
        self._alone = alone
        self._noise, self._cohort, self._population = algorithm.noise, cohort, population
        self.delta: float = algorithm.delta or max(population, 2) ** -1.1

    @property
    def why_none(self) -> str:
        """Why there is no epsilon to report; empty where there is one."""
        if not self._noise:
            return "without noise it is infinite"
        return "" if installed(PACKAGE) else f"dp-accounting is not installed; {INSTALL}"

    @property
    def bound(self) -> str:
        """Which bound it is, for the user."""
        if self._sampled:
            return "one client replaced; cohorts drawn without replacement"
        if isinstance(self._cohort, Bernoulli):
            return "one client present or not; Poisson sampling"
        return "one client's data or none in its place; no sampling is counted on"

    def epsilon(self, rounds: int) -> float:
        """Epsilon after so many rounds; there must be noise.

        Raises:
            JobError: dp-accounting is not installed.
        """
        if not rounds:
            return 0.0
        divergences = rounds * self._divergences
        return float(_library().rdp.compute_epsilon(_ORDERS, divergences, self.delta)[0])

    def noise_for(self, epsilon: float, rounds: int) -> float:
        """The smallest noise of six digits with which so many rounds keep ``epsilon``.

        Raises:
            JobError: dp-accounting is not installed, or no noise is found.
        """
        library = _library()
        try:
            found = library.calibrate_dp_mechanism(
                lambda: self._accountant(library),
                lambda noise: library.SelfComposedDpEvent(self._event(library, noise), rounds),
                epsilon,
                self.delta,
                library.LowerEndpointAndGuess(_LEAST_NOISE, 1.0),
            )
        except (ValueError, library.mechanism_calibration.NoBracketIntervalFoundError) as e:
            raise JobError(f"--epsilon {epsilon:g}: no noise found: {e}") from e
        # Up, as a job that has six digits of it must not give more away.
        return float(Context(prec=6, rounding=ROUND_CEILING).create_decimal_from_float(found))

    @cached_property
    def _divergences(self) -> Any:
        """The Renyi divergence of one round at each order, an array of float64.

        Each evaluation needs it, and computing it may take longer than a round.

        Raises:
            JobError: dp-accounting is not installed.
        """
        library = _library()
        accountant = self._accountant(library)
        accountant.compose(self._event(library, self._noise))
        return accountant.rdp

    @property
    def _sampled(self) -> bool:
        """Whether a strict part of the clients is drawn without replacement."""
        uniform = isinstance(self._cohort, Uniform) and self._cohort.size < self._population
        return uniform and self._alone

    def _accountant(self, library: Any) -> Any:
        relation = library.NeighboringRelation
        neighbours = relation.REPLACE_ONE if self._sampled else relation.ADD_OR_REMOVE_ONE
        return library.rdp.RdpAccountant(_ORDERS, neighbours)

    def _event(self, library: Any, noise: float) -> Any:
        """A round."""
        if isinstance(self._cohort, Bernoulli):
            event = library.GaussianDpEvent(noise)
            return library.PoissonSampledDpEvent(self._cohort.p, event)
        if isinstance(self._cohort, Uniform) and self._sampled:
            event = library.GaussianDpEvent(noise / 2)
            size = self._cohort.size
            return library.SampledWithoutReplacementDpEvent(self._population, size, event)
        return library.GaussianDpEvent(noise)


def accountant(
    algorithm: Algorithm, cohort: CohortConfig, population: int, *, alone: bool = True
) -> Accountant | None:
    """The accountant of a job; None where its algorithm promises no privacy.

    Args:
        algorithm: the job's.
        cohort: the job's.
        population: N.
        alone: whether nothing but the cohort decides who takes part.
    """
    if not isinstance(algorithm, DPFedAvg):
        return None
    return Accountant(algorithm, cohort, population, alone=alone)


def _library() -> Any:
    if not installed(PACKAGE):
        raise JobError(
            f"algorithm.name: dpfedavg: its epsilon needs the package dp-accounting; {INSTALL}"
        )
    library = import_module(PACKAGE)
    logging.getLogger("absl").addFilter(_concerns_the_user)
    return library


def _concerns_the_user(record: logging.LogRecord) -> bool:
    """Whether a warning of dp-accounting is not about an order that it leaves out.

    It leaves out an order whose series converges slowly; the others still give a valid epsilon.
    """
    return "failed to converge" not in record.getMessage()
