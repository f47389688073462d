"""The ``local`` section of a job: the clients' steps and their learning-rate schedule."""

import math
from dataclasses import dataclass
from typing import Literal

from hpcfl.algorithms.layout import Layout
from hpcfl.algorithms.optim import Descent, OptimizerConfig, Sgd
from hpcfl.clients.step_schedule import StepScheduleConfig
from hpcfl.types import Count, Decay, Fraction, NonNegative, Positive, Section


@dataclass(frozen=True, kw_only=True)
class Local(Section):
    """The ``local`` section of a job: the clients' steps, to which an algorithm adds its terms."""

    lr: Positive
    """eta, the local learning rate of round 0."""
    schedule: Literal["exponential", "cosine"] = "exponential"
    """The learning rate of round t = 0, 1, ... of T: lr lr_decay^t, or with cosine
    lr (1 + cos(pi t / T)) / 2."""
    lr_decay: Fraction = 1.0
    """Factor on the learning rate from each round to the next; 1 is a constant rate."""
    step_schedule: StepScheduleConfig | None = None
    """A factor on the learning rate of every local step: constant, linear, cosine, or a dotted path
    of a function of the step's number and of all steps; or a section of its ``kind`` and keys, as
    of a warm-up."""
    epochs: Count | None = None
    """Passes over the client's data; 1 when ``steps`` is absent too."""
    steps: Count | None = None
    """Local steps; every pass over the data is shuffled anew. Instead of ``epochs``."""
    batch_size: Count | Literal["full"] = 64
    """Examples in a step's batch; full: all examples of the client."""
    drop_last: bool = False
    """Skip the last batch of a pass if it is smaller than the others and not the only one."""
    optimizer: OptimizerConfig = "sgd"
    """The optimiser of the steps: sgd, adam, adamw, muon, or a dotted path; or a section of its
    ``kind`` and keys."""
    keep_optimizer: bool | None = None
    """Whether a client's optimiser goes on, in its next round, with its state of the last one;
    false, or absent: it begins afresh in every round."""
    weight_decay: NonNegative = 0.0
    """lambda: lambda times the point of the gradient is added to each step's direction, or, with
    adamw and muon, to what the optimiser makes of it."""
    momentum: Decay = 0.0
    """mu of the clients' SGD: v <- mu v + direction with its weight decay; steps follow v, which is
    0 at first."""
    nesterov: bool = False
    """Steps follow the direction + mu v instead of v, as in torch.optim.SGD."""
    clip: Positive | None = None
    """The largest norm of a stochastic gradient; longer ones are scaled down to it."""
    accumulate: Count = 1
    """Parts in which a step's batch is computed, one after the other, to save memory."""

    def __post_init__(self) -> None:
        if self.epochs is not None and self.steps is not None:
            raise ValueError("give epochs or steps, not both (null removes one)")
        if self.schedule == "cosine" and self.lr_decay != 1:
            raise ValueError(
                f"schedule cosine has no lr_decay, found {self.lr_decay}; remove lr_decay, or set "
                "schedule: exponential"
            )
        if self.step_schedule is not None and self.steps is None:
            raise ValueError(
                "step_schedule: needs steps, by which it counts, the same of every client; set "
                "local.steps in place of epochs, or step_schedule: null"
            )
        if self.step_schedule is not None and self.schedule == "cosine":
            raise ValueError(
                "step_schedule: found with schedule cosine, which is by round; say "
                "step_schedule: cosine and schedule: exponential, or step_schedule: null"
            )
        if self.momentum and self.optimizer != "sgd":
            raise ValueError(
                f"momentum: found {self.momentum:g}, which is of optimizer sgd alone; set "
                "momentum: 0, or optimizer: sgd"
            )
        if self.nesterov and not self.momentum:
            raise ValueError(
                f"nesterov: found true with momentum {self.momentum:g}, which it would not change; "
                "set momentum (0.9 is usual), or nesterov: false"
            )
        if self.keep_optimizer and self.optimizer == "sgd" and not self.momentum:
            raise ValueError(
                "keep_optimizer: found true with plain SGD, which has nothing to keep; set "
                "momentum or another optimizer, or keep_optimizer: false"
            )

    def descent(self, layout: Layout) -> Descent:
        """The optimiser of the local steps of a model."""
        sgd = Sgd(momentum=self.momentum, nesterov=self.nesterov)
        optimizer = sgd if isinstance(self.optimizer, str) else self.optimizer
        return Descent(optimizer, self.weight_decay, layout)

    def lr_of_round(self, round: int, rounds: int) -> float:
        """The rate of ``round``, counted from zero, out of ``rounds``, before ``step_schedule``."""
        if self.schedule == "cosine":
            return self.lr * (1 + math.cos(math.pi * round / rounds)) / 2
        return self.lr * self.lr_decay**round

    def lr_of_step(self, round: int, step: int, rounds: int) -> float:
        """The learning rate eta of a local step of ``round``, both counted from zero.

        Steps beyond those of a round, which fine-tuning may take, have the rate of its last one.
        """
        lr = self.lr_of_round(round, rounds)
        if self.step_schedule is None or self.steps is None:
            return lr
        n = round * self.steps + min(step, self.steps - 1)
        return lr * self.step_schedule.factor(n, rounds * self.steps)
