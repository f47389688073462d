"""What the hooks of an algorithm are told: of the job, of a client, of a cohort and of a batch."""

from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple, Protocol

from torch import Tensor

from hpcfl.algorithms.layout import Layout
from hpcfl.types import Scalar, Vector


class Forward(NamedTuple):
    """What the model makes of a step's batch of B examples; in float32 or wider."""

    outputs: Tensor  # [B, ...], logits where the labels are classes
    labels: Tensor  # [B], or [B, T] of texts, or targets [B, targets]
    label_mask: Tensor  # of the outputs' shape, True at the label; [0] without classes
    losses: Tensor  # [B] or [B, T], the terms of the job's loss
    features: Tensor  # [B, F], the input of the last dense layer; [0] without one
    present: (
        Tensor  # [B], 1 for an example and 0 for padding, which a sum over the batch leaves out
    )


LossTerms = Callable[[Forward], Tensor]  # the terms of a loss, in the shape of ``losses``


class Grad(Protocol):
    """The gradient of the step's mean batch loss; of one step all calls share the batch."""

    def __call__(self, point: Vector, loss: LossTerms | None = None) -> Vector:
        """The gradient at ``point`` [P], of the job's loss or of the mean of these terms.

        The mean is over the batch's real examples (or labels), as that of the job's loss; the
        terms may depend on what ``forward`` gave before, which has no gradient.
        """
        ...

    def forward(self, point: Vector) -> Forward:
        """What the model makes of the batch at ``point``, in training mode, without gradient.

        To be called before the gradient, never inside the function of its terms.
        """
        ...


Draws = Mapping[str, Literal["uniform", "normal"]]
"""Names of random vectors [P]: independent entries, uniform on [0, 1) or standard normal."""
RandomInit = Callable[[], Vector]  # makes a random initial model, of one client alone
FullGradientScope = Literal["none", "client", "server"]


class Facts(NamedTuple):
    """What a method may know of the job beyond its own keys."""

    participation: float = 1.0  # C, the share of the clients that a round expects
    population: int = 1  # N
    weights: str = "examples"  # of the clients in the mean: "examples" or "uniform"
    weight_decay: float = 0.0  # lambda, of the local steps
    optimizer: str = "sgd"  # of the local steps
    momentum: float = 0.0  # mu, of sgd
    nesterov: bool = False  # whether that momentum is Nesterov's
    classes: int | None = None  # of the labels; None where there are none
    loss: str = "data"  # the kind of the job's loss; that of its data
    # What rounds do with running statistics: "mean" or "local"; None where they move none, and
    # where a job is read without a model.
    statistics: str | None = None
    # Of the flat vector, or what makes it if a hook asks; None where a job is read without a model.
    layout: Layout | Callable[[], Layout] | None = None
    cohort: str = "uniform"  # the kind of the cohorts
    all_take_part: bool = True  # whether every client does, in every round
    steps: int | None = None  # local steps of a round; None where a job counts epochs
    # Whether clients keep their optimiser's state between rounds; None where the job does not say.
    keep_optimizer: bool | None = None
    step_schedule: str | None = None  # its kind; None where all steps of a round have one rate

    def require_plain_sgd(self, why: str) -> None:
        """Refuse local steps with momentum, or of another optimiser than SGD.

        Raises:
            ValueError: they are such steps; ``why`` is why the method allows none.
        """
        if self.optimizer != "sgd":
            raise ValueError(
                f"takes plain SGD alone ({why}), found {self.optimizer}; set local.optimizer=sgd, "
                "or another algorithm"
            )
        if self.momentum:
            raise ValueError(
                f"takes plain SGD alone ({why}), found momentum {self.momentum:g}; set "
                "local.momentum=0, or another algorithm"
            )

    def require_one_rate(self, why: str) -> None:
        """Refuse learning rates that differ among the steps of a round.

        Raises:
            ValueError: they do; ``why`` is why the method needs one rate.
        """
        if self.step_schedule is not None:
            raise ValueError(
                f"needs one learning rate in all steps of a round ({why}), found the schedule "
                f"{self.step_schedule} by steps; set local.step_schedule=null, or another algorithm"
            )


class Client(NamedTuple):
    """A client in one round; numbers are 0-d tensors of float64, in a job of float32 too."""

    round: Scalar  # t, counted from zero
    step: Scalar  # k, the local step, counted from zero; 0 in begin and finish
    steps: Scalar  # K, local steps of this round
    # eta, the learning rate of the step: of the first one in begin, of the last one in finish.
    lr: Scalar
    examples: Scalar  # n, its number of training examples
    full_grad: Any = None  # [P], of its mean loss over all examples at x, with full_gradient
    label_counts: Any = None  # [classes], its examples of each class, with needs_label_counts
    draws: Mapping[str, Vector] = {}  # [P] each, those of client_draws; empty but in finish


class Cohort(NamedTuple):
    """The clients of one round together."""

    round: int  # t, counted from zero
    size: int  # |S|, as drawn
    population: int  # N
    lr: float  # eta, the learning rate of the round's last local step
    grads: tuple[Vector, ...]  # the clients' plain mean at each full_gradient_point; or none
    draws: Mapping[str, Vector] = {}  # [P] each, those of server_draws; empty but in update
