"""The contract between an algorithm and the engine.

One round, as the engine plays it (x, y, delta, ... are flat vectors [P]):

    server <- init_server(x0)                                          # once
    for t = 0, 1, ...:
        message <- broadcast(server)
        for each client i of the cohort, at once or in turn:
            local <- begin(message, state_i, client_i);  y <- message.x
            repeat client_i.steps times:
                start <- start_point(y, local, client_i)               # default y
                point <- gradient_point(y, start, local, client_i)     # default y
                d     <- direction(point, local, grad, client_i)       # default grad(point)
                step  <- d + weight_decay point
                local <- update_local(local, step, client_i)
                y     <- start - step_scale client_i.lr step
            upload_i, state_i <- finish(y, local, message, state_i, client_i)
        server <- update(server, mean of upload_i, cohort)

The defaults are FedAvg's client, so a file holds what its paper adds.  ``grad`` is a function: a
hook calls it where, and as often as, the paper does; every call of one step sees the same batch,
augmentation and dropout mask.

Laws.  Hooks are written for ONE client; they branch on hyperparameters, never on a tensor's
value; they change nothing in place, draw nothing, and make no tensor from nothing (``zeros_like``,
never ``torch.zeros``).  ``delta = x - y`` points where a gradient would.  Server, message, local,
state and upload are NamedTuples of tensors, never None; in the first three a field may also be a
tuple of tensors (past models).  What is sent and
kept, its shapes and its bytes are found by playing a dry round: no algorithm declares them.
A state that keeps ``message.x`` itself shares it with all clients of the round: it is stored once.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

from hpcfl.types import Positive, Scalar, Section, Vector

Grad = Callable[[Vector], Vector]  # the gradient of the step's mean batch loss, at a point
Fresh = Callable[[], Vector]  # a random initialisation of the client's own
Survey = Literal["none", "client", "cohort"]


class Client(NamedTuple):
    """What a client knows of itself in this round; numbers are 0-d tensors."""

    round: Scalar  # t, counted from zero (int64)
    steps: Scalar  # K, local steps of this round
    lr: Scalar  # eta, local learning rate of this round
    examples: Scalar  # n, examples it holds
    full_grad: Vector  # [P], of its mean loss over all its examples at x; [0] if not asked for
    cohort_grad: Vector  # [P], plain mean of full_grad over the cohort; [0] if not asked for


class Cohort(NamedTuple):
    """What the server knows of the round's clients."""

    round: int  # t, counted from zero
    size: int  # |S|, realised
    population: int  # N
    lr: float  # eta, local learning rate of this round
    grad: Vector  # [P], plain mean of the clients' full_grad; [0] if not asked for


class Server(NamedTuple):
    """The least a server keeps; every server and message starts with a field ``x``."""

    x: Vector


class Message(NamedTuple):
    """The least a server sends."""

    x: Vector


class Nothing(NamedTuple):
    """The state of a client that remembers nothing."""


class Upload(NamedTuple):
    """The least a client sends."""

    delta: Vector  # x - y


@dataclass(frozen=True, kw_only=True)
class Algorithm(Section, ABC):
    """A method: its hyperparameters as fields (the keys of the job), its mathematics as hooks."""

    unweighted: ClassVar[frozenset[str]] = frozenset()
    """Upload fields averaged as 1/|S| sum, whatever the job's weights are."""
    not_transmitted: ClassVar[frozenset[str]] = frozenset()
    """Upload fields the server could compute from the others: summed, but not counted as sent."""
    traffic_note: ClassVar[str] = ""
    """How a paper counts the traffic, where it counts otherwise: shown by ``hpcfl plan``."""

    server_lr: Positive = 1.0
    """eta_g, the server's learning rate."""

    @property
    def full_gradient(self) -> Survey:
        """Which full-batch gradients at x a round needs before local training.

        "client": each client's own, in ``client.full_grad``; "cohort": also their plain mean, in
        ``client.cohort_grad`` and ``cohort.grad`` (one more vector up and one more down).
        """
        return "none"

    @property
    def step_scale(self) -> float:
        """A factor on the learning rate of every local step (FedMIM's 1 - sum alpha)."""
        return 1.0

    def resolve_defaults(self, participation: float, population: int) -> "Algorithm":
        """This algorithm with the defaults that depend on the job's clients.

        Args:
            participation: C, the configured one.
            population: N.

        Raises:
            ValueError: it cannot run with them.
        """
        return self

    @abstractmethod
    def init_server(self, x0: Vector) -> Any:
        """The server before round 0."""

    def init_client(self, x0: Vector, fresh: Fresh) -> Any:
        """The state of a client that was never in a cohort; ``x0`` is the initial model."""
        return Nothing()

    def broadcast(self, server: Any) -> Any:
        """What every client of the cohort receives."""
        return Message(server.x)

    def begin(self, message: Any, state: Any, client: Client) -> Any:
        """What the client holds during its local steps."""
        return message

    def start_point(self, y: Vector, local: Any, client: Client) -> Vector:
        """The point from which the step leaves."""
        return y

    def gradient_point(self, y: Vector, start: Vector, local: Any, client: Client) -> Vector:
        """The point at which the step takes its gradient and its weight decay."""
        return y

    def direction(self, point: Vector, local: Any, grad: Grad, client: Client) -> Vector:
        """What the step follows downhill, without weight decay."""
        return grad(point)

    def update_local(self, local: Any, step: Vector, client: Client) -> Any:
        """The client's local quantities after a ``step``: the direction and its weight decay."""
        return local

    def finish(
        self, y: Vector, local: Any, message: Any, state: Any, client: Client
    ) -> tuple[Any, Any]:
        """What the client sends and what it keeps, once it has arrived at ``y``."""
        return Upload(message.x - y), state

    @abstractmethod
    def update(self, server: Any, mean: Any, cohort: Cohort) -> Any:
        """The server after the round; ``mean`` is the (weighted) mean of the uploads."""
