"""Simulate the devices of clients: who is available, who answers, when, and after how many steps.

Client i of round t, with the speed s_i, the rates d_i down and u_i up, a standard normal z_it and
the job's jitter j, answers after

    exp(j z_it) (8 down bytes / d_i  +  examples / s_i  +  8 up bytes / u_i)

where ``examples`` are those whose gradient it takes: each batch once for every gradient of a local
step, and all of its own for every full gradient.  Times are rounded to microseconds: so they do
not depend on the last bits of exp, which differ between processors.

The server asks the cohort's members among the available ones, and waits until as many have answered
as it wants, until nobody is left to answer or fail, or until the deadline.  All of this follows
from the seed, the round and the client.
"""

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from math import ceil, inf
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

import numpy as np
from annotated_types import Ge
from numpy.typing import NDArray

from hpcfl.clients.device_trace import DeviceTrace, read_trace
from hpcfl.clients.participation import Participation, Wait
from hpcfl.clients.sampling import CohortConfig, Drawing, Importance, PowerOfChoice, Sized
from hpcfl.errors import JobError
from hpcfl.seeds import stream
from hpcfl.types import Decay, Fraction, IntArray, NonNegative, PathText, Positive, Section

FloatArray = NDArray[np.float64]
_US = 1e6  # microseconds of a second


@dataclass(frozen=True, kw_only=True)
class Lognormal(Section):
    """Numbers whose logarithm is normal, one drawn for each client."""

    median: Positive
    """Half of the clients are drawn below it."""
    sigma: NonNegative
    """The standard deviation of the logarithm."""


Rate = Positive | Lognormal


@dataclass(frozen=True, kw_only=True)
class Devices(Section):
    """The devices of the clients, whose time is simulated."""

    examples_per_s: Rate | None = None
    """Examples whose gradient a client takes in a second: a number for all, or the ``median`` and
    ``sigma`` of a lognormal distribution; absent: computing takes no time."""
    down_mbps: Rate | None = None
    """Megabits (10^6) that a client receives in a second, likewise; absent: it takes no time."""
    up_mbps: Rate | None = None
    """Megabits that a client sends in a second, likewise."""
    jitter: NonNegative = 0.0
    """Sigma of a lognormal factor of median 1 on the time of each client in each round."""
    available: Fraction = 1.0
    """The probability that a client can be asked in a round."""
    fails: Decay = 0.0
    """The probability that a client that was asked does not answer."""
    path: PathText | None = None
    """A CSV file with columns client, examples_per_s, down_mbps, up_mbps, available, fails, of
    which each takes the place of the key; with a column round, a row holds from this round on."""
    deadline_s: Positive | None = None
    """Simulated seconds after which a round ends; absent: the server waits for all."""
    late: Literal["drop", "shorten"] = "drop"
    """drop: a client that would miss the deadline does not count; shorten: it takes only the local
    steps by which it meets the deadline."""
    over_select: Annotated[float, Ge(1)] = 1.0
    """The server asks ceil(over_select size) clients, and a round ends when cohort.size of them
    have answered."""

    def __post_init__(self) -> None:
        if self.late == "shorten" and self.deadline_s is None:
            raise ValueError("late: found shorten without deadline_s, which it keeps; set both")

    @property
    def all_answer(self) -> bool:
        """Whether every client can always be asked, and answers after all its steps."""
        lost = self.available < 1 or self.fails > 0 or self.deadline_s is not None
        return not lost and self.path is None

    def asking(self, cohort: CohortConfig) -> CohortConfig:
        """The cohorts of the clients that are asked.

        Raises:
            ValueError: there is an over-selection, but the cohorts have no size, or too few
                candidates.
        """
        if self.over_select == 1:
            return cohort
        if isinstance(cohort, Sized):
            # Rounded, as 1.1 * 10 is more than 11.
            size = ceil(round(self.over_select * cohort.size, 9))
            if isinstance(cohort, PowerOfChoice) and size > cohort.candidates:
                raise ValueError(
                    f"over_select: found {self.over_select:g}, which asks {size} clients of "
                    f"{cohort.candidates} candidates; raise cohort.candidates, or lower it"
                )
            return replace(cohort, size=size)
        raise ValueError(
            f"over_select: found {self.over_select:g} with cohort.kind {cohort.kind}, whose "
            "cohorts have no fixed size; take uniform or cyclic, or remove over_select"
        )

    def check(self, cohort: CohortConfig, population: int) -> None:
        """Raise JobError where more clients would be asked than there are."""
        size, asked = _size(cohort), _size(self.asking(cohort))
        if size is not None and asked is not None and asked > population:
            raise JobError(
                f"devices.over_select: asks {asked} clients of {population}; use at most "
                f"{population / size:.6g}"
            )


def _size(cohort: CohortConfig) -> int | None:
    """The size of the cohorts, where they have one."""
    return cohort.size if isinstance(cohort, Sized) else None


class Visits(NamedTuple):
    """What a client does in a round."""

    down: int
    """Bytes that it receives, as a plan counts them."""
    up: int
    """Bytes that it sends."""
    steps: IntArray
    """[N], its local steps."""
    examples: IntArray
    """[N], examples whose gradient it takes in these steps, and before them."""
    examples_in: Callable[[int, int], int]
    """From a client and a smaller number of steps to the same."""


class _Rates(NamedTuple):
    """What the devices of all clients are like in a round, each [N]."""

    examples_per_s: FloatArray
    down_mbps: FloatArray
    up_mbps: FloatArray
    available: FloatArray
    fails: FloatArray


class Participants:
    """Finds out who takes part in a round, and how: alike on every rank, in any order of rounds.

    Args:
        cohort: the job's.
        devices: the job's; None: every member of a cohort takes part.
        population: N.
        seed: the job's.
        visits: of the clients.
        weights: [N], the job's, positive; alike when absent.

    Raises:
        JobError, DataError: the trace cannot be read, or does not fit the job.
    """

    def __init__(
        self,
        cohort: CohortConfig,
        devices: Devices | None,
        population: int,
        seed: int,
        visits: Visits,
        weights: FloatArray | None = None,
    ) -> None:
        self._cohort, self._devices, self._seed = cohort, devices or Devices(), seed
        self._asking, self._simulated = self._devices.asking(cohort), devices is not None
        self._population, self._visits = population, visits
        self._weights = np.ones(population) if weights is None else weights
        self._trace: DeviceTrace | None = None
        if self._devices.path is not None:
            self._trace = read_trace(Path(self._devices.path), population)
            self._refuse_doubled(self._trace)
        self._rates = lru_cache(1)(self._rates_in)

    def _refuse_doubled(self, trace: DeviceTrace) -> None:
        defaults = Devices()
        for name in trace.columns:
            if getattr(self._devices, name) != getattr(defaults, name):
                raise JobError(
                    f"devices.{name}: is a column of {self._devices.path} too; remove one of them"
                )

    def __call__(self, round: int) -> Participation:
        """Who takes part in ``round``, counted from zero."""
        return self.answers(round, self._asking.draw(*self._drawing(round)))

    def candidates(self, round: int) -> IntArray:
        """Where losses choose: the clients whose losses are needed, ascending."""
        return np.sort(self._chosen_by_loss.draw_candidates(self._drawing(round)))

    def choose(self, round: int, candidates: IntArray, losses: FloatArray) -> Participation:
        """Who takes part in ``round``, where these losses of its candidates decide who is asked."""
        return self.answers(round, self._chosen_by_loss.choose(candidates, losses))

    @property
    def _chosen_by_loss(self) -> PowerOfChoice:
        if not isinstance(self._asking, PowerOfChoice):
            raise TypeError(f"no loss chooses the cohorts of {self._asking.kind}")
        return self._asking

    def weights(self, round: int, members: IntArray) -> FloatArray:
        """[S], the weight of each client that takes part in the mean of the uploads.

        Where clients are drawn by their weights, each counts as often as it was drawn.
        """
        if isinstance(self._asking, Importance):
            drawn = self._asking.draws(self._drawing(round))
            return np.bincount(drawn, minlength=self._population)[members].astype(np.float64)
        if isinstance(self._asking, PowerOfChoice):
            return np.ones(len(members))
        return self._weights[members]

    def _drawing(self, round: int) -> Drawing:
        available = self.available(round)
        return Drawing(round, self._population, self._seed, available, self._weights)

    def typical(self) -> FloatArray:
        """[N], simulated seconds of each client in round 1, without jitter."""
        fixed, each = self._costs_without_jitter(0)
        seconds: FloatArray = (fixed + each * self._visits.examples) / _US
        return seconds

    def available(self, round: int) -> IntArray | None:
        """The clients that can be asked, ascending; None: all."""
        chance = self._rates(round).available
        if np.all(chance == 1):
            return None
        return np.flatnonzero(self._uniform("device available", round) < chance)

    def answers(self, round: int, asked: IntArray) -> Participation:
        """Who of the clients that are asked takes part.

        Args:
            round: counted from zero.
            asked: [A], their numbers, ascending.
        """
        if not self._simulated:
            return Participation(asked)
        devices, fails = self._devices, self._rates(round).fails[asked]
        deadline = inf if devices.deadline_s is None else float(np.rint(devices.deadline_s * _US))
        fixed, each = (part[asked] for part in self._costs(round))
        time, steps = np.rint(fixed + each * self._visits.examples[asked]), dict[int, int]()
        if devices.late == "shorten":
            for place in np.flatnonzero(time > deadline).tolist():
                client = int(asked[place])
                costs = float(fixed[place]), float(each[place])
                steps[client], time[place] = self._shortened(client, *costs, deadline)
        # A client that cannot take a single step in time keeps 0 steps, and a time beyond it.
        answers = np.flatnonzero(time <= deadline)
        if fails.any():
            lost = self._uniform("device fails", round)[asked] < fails
            answers = answers[~lost[answers]]
        first = answers[np.argsort(time[answers], kind="stable")]
        wanted = (devices.over_select > 1 and _size(self._cohort)) or len(asked)
        counted = first[:wanted]
        if 0 < len(counted) == wanted:
            lasts = time[counted[-1]]
        elif len(asked):
            lasts = min(float(time.max()), deadline)
        else:
            lasts = 0.0 if deadline == inf else deadline
        members = np.sort(asked[counted])
        fewer = {i: steps[i] for i in members.tolist() if i in steps}
        return Participation(members, fewer, Wait(len(asked), _in_seconds(lasts)))

    def _shortened(
        self, client: int, fixed: float, each: float, deadline: float
    ) -> tuple[int, float]:
        """The most local steps by which a client meets a deadline, and its time; 0, inf: none.

        Args:
            client: its number.
            fixed: microseconds of its messages.
            each: of an example.
            deadline: in microseconds.
        """

        def time(steps: int) -> float:
            return float(np.rint(fixed + each * self._visits.examples_in(client, steps)))

        possible = range(1, int(self._visits.steps[client]))
        fits = bisect_right(possible, deadline, key=time)
        return (fits, time(fits)) if fits else (0, inf)

    def _costs(self, round: int) -> tuple[FloatArray, FloatArray]:
        """[N], microseconds of a client's messages, and of each example."""
        fixed, each = self._costs_without_jitter(round)
        if not self._devices.jitter:
            return fixed, each
        normal = stream(self._seed, "device jitter", round).standard_normal(self._population)
        factor = np.exp(self._devices.jitter * normal)
        return factor * fixed, factor * each

    def _costs_without_jitter(self, round: int) -> tuple[FloatArray, FloatArray]:
        rates = self._rates(round)
        fixed = 8 * (self._visits.down / rates.down_mbps + self._visits.up / rates.up_mbps)
        return fixed, _US / rates.examples_per_s

    def _rates_in(self, round: int) -> _Rates:
        if self._trace is None:
            return self._drawn
        return self._drawn._replace(**self._trace.at(round))

    @cached_property
    def _drawn(self) -> _Rates:
        """What the job says of the devices, the same in every round."""
        devices = self._devices
        return _Rates(
            self._rate("examples_per_s", devices.examples_per_s),
            self._rate("down_mbps", devices.down_mbps),
            self._rate("up_mbps", devices.up_mbps),
            np.full(self._population, devices.available),
            np.full(self._population, devices.fails),
        )

    def _rate(self, name: str, rate: "Rate | None") -> FloatArray:
        """[N], of every client; inf where the job says nothing of it."""
        if not isinstance(rate, Lognormal):
            return np.full(self._population, inf if rate is None else float(rate))
        normal = stream(self._seed, f"device {name}").standard_normal(self._population)
        return rate.median * np.exp(rate.sigma * normal)

    def _uniform(self, purpose: str, round: int) -> FloatArray:
        """[N], a number from 0 to 1 of each client."""
        return stream(self._seed, purpose, round).random(self._population)


def _in_seconds(microseconds: float) -> float:
    """Whole microseconds in seconds, as the nearest number of six digits after the point."""
    return round(float(microseconds) / _US, 6)
