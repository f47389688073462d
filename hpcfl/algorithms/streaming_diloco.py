"""Streaming DiLoCo: DiLoCo by fragments of the model, received while the workers go on training.

    server  x, v = 0                          client i  y_i = x_0; its optimiser's state, where kept
    send    x[f] of the last round's fragment f = (t - 1) mod F, from round t = 1 on
    first   y = y_i
    step    before step k = delay:  y[f] <- alpha y[f] + (1 - alpha) x[f]
            y <- y - eta AdamW(g(y)), or another optimiser of the job
    finish  y_i <- y;  delta = x - y, of the fragment t mod F
    update  of this fragment alone:  v <- beta v + mean(delta);
            x <- x - eta_g (mean(delta) + beta v), v the new one

A round is the h = ``local.steps`` steps between two sendings, so that each fragment is sent in
every F-th round: the paper's H is F h.  All clients take part in every round, and never start again
from x, which is the model that is evaluated.  With alpha 1 they hear nothing of each other; with
one fragment, delay 0 and alpha 0 this is DiLoCo.

Bytes are counted as P / F numbers each way in every round, which they are on average; rounded up.

Douillard, Donchev, Rush, Kale, Charles, Garrett, Teston, Lacey, McIlroy, Shen, Rame, Szlam,
Ranzato, Barham. Streaming DiLoCo with overlapping communication: Towards a Distributed Free Lunch.
2025. arXiv:2501.18512

Departures: what is sent has the model's precision, not 4 bits.  ``fragments`` as a number are
consecutive parameters, not whole layers in strides; a list of names may say these.  The mean
movement is from the outer model x, not from y_i as it was when the client last received the
fragment, which is the same where alpha is 0, and as torchft has it; this, and the defaults of alpha
and ``delay``, were not checked against the paper.
"""

from dataclasses import dataclass
from typing import NamedTuple, Self

from torch import Tensor, cat, where

from hpcfl.algorithms.base import Message, Upload
from hpcfl.algorithms.diloco import DiLoCo
from hpcfl.algorithms.facts import Client, Cohort, Facts, RandomInit
from hpcfl.algorithms.fedavgm import Server, moved
from hpcfl.algorithms.layout import Layout
from hpcfl.types import Count, Natural, Share, Vector


class State(NamedTuple):
    y: Vector  # the client's own model


class Local(NamedTuple):
    x: Vector
    received: Tensor  # [P], whether the round brings this entry of x


@dataclass(frozen=True, kw_only=True)
class StreamingDiLoCo(DiLoCo):
    """Streaming DiLoCo (Douillard et al., 2025)."""

    fragments: Count | tuple[tuple[str, ...], ...]
    """F: the model in so many parts of nearly equal size, each of whole parameters that follow one
    another; or the parts, as lists of the parameters' names."""
    delay: Natural = 1
    """Local steps that clients take before they have what was sent."""
    alpha: Share = 0.5
    """How much of its own fragment a client keeps when it receives one."""

    def __post_init__(self) -> None:
        if not isinstance(self.fragments, int) and not all(self.fragments or [()]):
            raise ValueError("fragments: found an empty list, expected names of parameters")

    def resolve(self, facts: Facts) -> Self:
        if not facts.all_take_part:
            raise ValueError(
                "has clients that never start again from the global model, so that all take part "
                f"in every round; set cohort={{kind: cyclic, size: {facts.population}}}, without "
                "clients that are away, fail or miss a deadline, or take diloco"
            )
        if facts.steps is None:
            raise ValueError("sends after as many steps of every client; set local.steps")
        if self.delay >= facts.steps:
            raise ValueError(
                f"receives a fragment before the next one is sent; found algorithm.delay "
                f"{self.delay}, expected less than the {facts.steps} local.steps"
            )
        if isinstance(facts.layout, Layout):
            self._require_whole(facts.layout)
        return super().resolve(facts)

    def _require_whole(self, layout: Layout) -> None:
        """Check that every parameter is in one fragment, and that every fragment has one.

        Raises:
            ValueError: it is not so.
        """
        if isinstance(self.fragments, int):
            if self.fragments > len(layout.names):
                raise ValueError(
                    f"sends whole parameters; found {self.fragments} algorithm.fragments, expected "
                    f"at most {len(layout.names)}, which the model has"
                )
            return
        named = [name for names in self.fragments for name in names]
        try:
            layout.require(named)
        except ValueError as e:
            raise ValueError(f"sends algorithm.fragments: {e}") from e
        for name in layout.names:
            if (times := named.count(name)) != 1:
                raise ValueError(
                    f"sends every parameter in one of algorithm.fragments, found {name} in "
                    f"{times} of them"
                )

    def init_client(self, x0: Vector, random_init: RandomInit) -> State:
        return State(x0)

    def begin(self, message: Message, state: State, client: Client) -> Local:
        owner = {name: f for f, names in enumerate(self._parts) for name in names}
        pairs = zip(self.layout.names, self.layout.sizes, strict=True)
        # In a trial without the job's model no fragment may have the name.
        numbers = cat([message.x.new_full((size,), owner.get(name, -1)) for name, size in pairs])
        sent = numbers == (client.round - 1) % self._count
        return Local(message.x, sent & (client.round > 0))

    def first_point(self, message: Message, state: State, client: Client) -> Vector:
        return state.y

    def points(self, y: Vector, local: Local, client: Client) -> tuple[Vector, Vector]:
        mixed = self.alpha * y + (1 - self.alpha) * local.x
        y = where(local.received & (client.step == self.delay), mixed, y)
        return y, y

    def finish(
        self, y: Vector, local: Local, message: Message, state: State, client: Client
    ) -> tuple[Upload, State]:
        return Upload(message.x - y), State(y)

    def update(self, server: Server, mean: Upload, cohort: Cohort) -> Server:
        names = self._parts[cohort.round % self._count]
        x, v, delta = (self.layout.take(own, names) for own in (*server, mean.delta))
        part = moved(Server(x, v), delta, self.beta, self.server_lr, nesterov=True)
        pairs = zip(server, part, strict=True)
        return Server(*(self.layout.join(own, names, new) for own, new in pairs))

    def down_bytes(self, message: Message) -> int:
        return -(-message.x.nbytes // self._count)

    def up_bytes(self, upload: Upload) -> int:
        return -(-upload.delta.nbytes // self._count)

    @property
    def _count(self) -> int:
        """F."""
        return self.fragments if isinstance(self.fragments, int) else len(self.fragments)

    @property
    def _parts(self) -> tuple[tuple[str, ...], ...]:
        """The names of each fragment's parameters."""
        named = self.fragments
        return self.layout.divided(named) if isinstance(named, int) else named
