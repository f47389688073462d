"""The contract between an algorithm and the engine.

One round, as the engine runs it (x, y, delta, ... are flat vectors [P]):

    algorithm <- resolve(facts)                                        # or it refuses the job
    server <- init_server(x0);  state_i <- init_client(x0, ...) of every client i
    if warm_start: the same with grad f_i(x0) of every client i, and their mean for the server
    for t = 0, 1, ...:
        message <- broadcast(server, cohort)   # after the full gradients, if any
        for each client i of the cohort, at once or in turn:
            local <- begin(message, state_i, client_i)
            y     <- first_point(message, state_i, client_i)           # default message.x
            for client_i.step = 0, 1, ... client_i.steps - 1:
                start, point <- points(y, local, client_i)             # default y, y
                d, local <- direction(point, local, grad, client_i)    # default grad(point), local
                along, o <- the job's optimiser(d, point, o)           # in optim/; o is fresh,
                            # or, with local.keep_optimizer, of the client's last round;
                            # sgd: d + weight_decay point, with local.momentum a velocity of it
                scale    <- step_scale(y, local, client_i)             # default 1
                y        <- start - scale client_i.lr along
            upload_i, state_i <- finish(y, local, message, state_i, client_i)
        server <- update(server, mean of upload_i, cohort)
    The model that is evaluated and exported is evaluated(server)      # default server.x
    The log of the round has round_numbers(server)                     # default: none
    The model of client i is personal_model(x, state_i), x = evaluated(server)   # default: none
    Running statistics of batch normalisation are beside all this: hpcfl carries them itself.

The default hooks are FedAvg's: a file holds what its paper adds.  A hook may call ``grad`` at any
point, any number of times, also of a loss of its own (``Grad``); calls of one step share the batch,
augmentation and dropout mask.

Rules.  Hooks are written for ONE client; they branch on hyperparameters, never on the value of a
tensor; they change nothing in place, draw no random numbers (``finish`` and ``update`` are handed
those that ``client_draws`` and ``server_draws`` name), and make new tensors from old ones
(``zeros_like``, never ``torch.zeros``).  ``delta = x - y`` points where a gradient would.  Server,
message, local, state and upload are NamedTuples of tensors, never None; in the first three a field
may also be a tuple of tensors (past models).  Their shapes and bytes are found by a dry round: no
algorithm declares them.  States that keep ``message.x`` itself share one stored copy.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from copy import copy
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple, Self

from torch import Tensor
from torch.utils._pytree import tree_leaves

from hpcfl.algorithms.facts import (
    Client,
    Cohort,
    Draws,
    Facts,
    FullGradientScope,
    Grad,
    RandomInit,
)
from hpcfl.algorithms.layout import Layout
from hpcfl.types import Positive, Scalar, Section, Vector


class Server(NamedTuple):
    """The smallest server state; every server and every message starts with a field ``x``."""

    x: Vector


class Message(NamedTuple):
    """The smallest message to the clients."""

    x: Vector


class Nothing(NamedTuple):
    """The state of a client of a method that keeps none."""


class Upload(NamedTuple):
    """The smallest upload."""

    delta: Vector  # x - y


@dataclass(frozen=True, kw_only=True)
class Algorithm(Section, ABC):
    """A method: its hyperparameters as fields (the keys of the job), its mathematics as hooks."""

    unweighted: ClassVar[frozenset[str]] = frozenset()
    """Fields of the upload with a plain mean, 1/|S| sum, whatever the job's weights are."""
    not_transmitted: ClassVar[frozenset[str]] = frozenset()
    """Fields of the upload that the server could compute itself: see ``up_bytes``."""
    statistics: ClassVar[Literal["mean", "local"]] = "mean"
    """What becomes of running statistics where the job does not say it (``model.statistics``)."""
    needs_label_counts: ClassVar[bool] = False
    """Whether hooks use ``client.label_counts``."""
    needs_features: ClassVar[bool] = False
    """Whether hooks use ``forward.features``: a model without a dense layer is refused."""
    client_draws: ClassVar[Draws] = {}
    """The random vectors of each client and round, in ``client.draws`` of ``finish`` alone.

    They follow from the job's seed, the name, the round and the client, and from nothing else;
    those of the server from the same but the client.
    """
    server_draws: ClassVar[Draws] = {}
    """The random vectors of each round, in ``cohort.draws`` of ``update`` alone."""
    updates_without_clients: ClassVar[bool] = False
    """Whether a round without clients calls ``update`` too, with a mean of zeros.

    Otherwise such a round leaves the server as it is.
    """
    facts: ClassVar[Facts]
    """The facts that ``resolve`` was given, for every hook that runs after it."""

    server_lr: Positive = 1.0
    """eta_g, the server's learning rate."""

    @property
    def full_gradient(self) -> FullGradientScope:
        """The full-batch gradients, of the loss alone, of a round's clients before local training.

        "client": for itself alone, in ``client.full_grad``; "server": their plain means go to the
        server too, in ``cohort.grads``, before the broadcast (a vector more up for each point).
        """
        return "none"

    @property
    def warm_start(self) -> bool:
        """Whether all clients take their full gradients at x0 before round 0 (one down, one up).

        ``init_client`` and ``init_server`` then take ``grad=None`` too: the client's, and the plain
        mean of all; None in a trial without these gradients.
        """
        return False

    def resolve(self, facts: Facts) -> "Algorithm":
        """This algorithm, with the defaults that follow from the facts.

        Called when the job is read, where ``facts.layout`` is None, and once its model is there.

        Raises:
            ValueError: the method cannot run with them; the line begins with the method's name.
        """
        return self

    @property
    def layout(self) -> Layout:
        """The parameters' names, shapes and places in the flat vector; for hooks alone."""
        layout = self.facts.layout
        if layout is None:
            raise RuntimeError("the model's layout is not known yet")
        return layout if isinstance(layout, Layout) else layout()

    def with_facts(self, facts: Facts) -> Self:
        """A copy whose hooks find these facts; called by the engine."""
        made = copy(self)
        object.__setattr__(made, "facts", facts)  # beside the fields, which are keys of the job
        return made

    @abstractmethod
    def init_server(self, x0: Vector) -> Any:
        """The server before round 0."""

    def init_client(self, x0: Vector, random_init: RandomInit) -> Any:
        """The state of a client before its first round; ``x0`` is the initial model."""
        return Nothing()

    def full_gradient_points(self, server: Any) -> tuple[Vector, ...]:
        """The points of the full gradients: the message's x, then others (one more down each)."""
        return (server.x,)

    def broadcast(self, server: Any, cohort: Cohort) -> Any:
        """The message to every client of the cohort."""
        return Message(server.x)

    def begin(self, message: Any, state: Any, client: Client) -> Any:
        """The client's local quantities before its first local step."""
        return message

    def first_point(self, message: Any, state: Any, client: Client) -> Vector:
        """The client's model before its first local step."""
        x: Vector = message.x
        return x

    def points(self, y: Vector, local: Any, client: Client) -> tuple[Vector, Vector]:
        """Where the step starts, and where it takes its gradient and its weight decay."""
        return y, y

    def direction(
        self, point: Vector, local: Any, grad: Grad, client: Client
    ) -> tuple[Vector, Any]:
        """The direction that the step follows downhill, without weight decay; and the new local."""
        return grad(point), local

    def step_scale(self, y: Vector, local: Any, client: Client) -> float | Tensor:
        """A factor on the learning rate of the step: a number, or a vector [P]."""
        return 1.0

    def finish(
        self, y: Vector, local: Any, message: Any, state: Any, client: Client
    ) -> tuple[Any, Any]:
        """The client's upload and its new state, after the local steps that end at ``y``."""
        return Upload(message.x - y), state

    @abstractmethod
    def update(self, server: Any, mean: Any, cohort: Cohort) -> Any:
        """The server after the round; ``mean`` is the (weighted) mean of the uploads."""

    def evaluated(self, server: Any) -> Vector:
        """The model that is evaluated, exported and given to callbacks."""
        x: Vector = server.x
        return x

    def round_numbers(self, server: Any) -> Mapping[str, Scalar | float]:
        """Numbers of the server after a round, for the log: ``name`` is its key ``server_name``."""
        return {}

    def personal_model(self, x: Vector, state: Any) -> Vector | None:
        """A client's own model [P]; None of a method that makes none.

        Args:
            x: the evaluated model.
            state: of the client; its first one before its first round.
        """
        return None

    @property
    def has_personal_models(self) -> bool:
        """Whether ``personal_model`` is the method's own."""
        return type(self).personal_model is not Algorithm.personal_model

    def down_bytes(self, message: Any) -> int:
        """The bytes of a message that a real client would receive; by default all.

        They follow from hyperparameters, shapes and dtypes, never from the tensors' values.
        """
        return sum(leaf.nbytes for leaf in tree_leaves(message))

    def up_bytes(self, upload: Any) -> int:
        """The bytes of an upload that a real client would send; all but ``not_transmitted``.

        They follow from hyperparameters, shapes and dtypes, never from the tensors' values.
        """
        fields = zip(upload._fields, upload, strict=True)
        return sum(leaf.nbytes for name, leaf in fields if name not in self.not_transmitted)
