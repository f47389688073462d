"""The ``evaluate`` section of a job."""

from dataclasses import dataclass
from typing import Literal

from hpcfl.runs.score_names import RESERVED, SCORES, metric_name
from hpcfl.types import Count, DottedPath, Natural, Section


@dataclass(frozen=True, kw_only=True)
class FineTuning(Section):
    """Local steps before a client's own model is scored; then they are thrown away."""

    steps: Count
    """How many, of plain FedAvg at the round's local learning rate."""


@dataclass(frozen=True, kw_only=True)
class Evaluate(Section):
    """When models are evaluated, and by which scores; the last round always is."""

    every: Count | None = None
    """Evaluate every so many rounds; only the last round when absent."""
    last: Natural = 0
    """Evaluate each of the last so many rounds, too."""
    batch_size: Count = 500
    """Examples a batch, for evaluation and for full-batch gradients."""
    train: bool = False
    """Compute the global model's loss over all clients' training examples, too."""
    clients: bool | Literal["table"] = False
    """Compute its accuracy on each client's examples, too: those that ``data.holdout`` sets aside,
    else the client's own test examples, where the data has them, else its training examples; with
    ``table`` the scores of each client are also in the run's ``clients.csv``."""
    local_models: bool = False
    """Evaluate each client's last local model on the same, too, if the algorithm keeps it."""
    personal: bool | FineTuning | None = None
    """Evaluate each client's own model on the same and on its validation data, too, which is then
    the score of the run; with ``{steps: k}`` after k local steps more, from the global model if the
    algorithm makes none; when absent, if it makes one, and clients have examples for it that they
    do not train on."""
    metrics: tuple[DottedPath, ...] = ()
    """Metrics of your own, by their dotted paths: on the test set, the validation data, and with
    ``clients``, ``local_models`` and ``personal`` on each client's examples."""
    best: bool = False
    """Keep the model x of the best evaluated round, by the score of the run: on the validation data
    of ``data.validation``, else on test examples."""

    def __post_init__(self) -> None:
        names = [metric_name(path) for path in self.metrics]
        for path, name in zip(self.metrics, names, strict=True):
            if name in RESERVED:
                raise ValueError(
                    f"metrics: found {path}, but {name} is a score of hpcfl; rename it"
                )
            if names.count(name) > 1:
                raise ValueError(f"metrics: found {path} and another {name}; rename one of them")

    @property
    def scores_clients(self) -> bool:
        """Whether single clients are scored, on examples of their own."""
        return bool(self.clients or self.local_models or self.personal)

    @property
    def tuning_steps(self) -> int:
        """``personal.steps``; 0 where there are none."""
        return self.personal.steps if isinstance(self.personal, FineTuning) else 0

    def due(self, round: int, rounds: int) -> bool:
        """Whether the model after ``round`` rounds is evaluated."""
        regular = self.every is not None and round % self.every == 0
        return regular or round > rounds - self.last or round == rounds

    def count(self, rounds: int) -> int:
        """How many evaluations a run of so many rounds has, with that of the initial model."""
        return sum(self.due(round, rounds) for round in range(rounds + 1))


@dataclass(frozen=True, kw_only=True)
class Stop(Section):
    """When a run ends before its last round, by a score; ``target``, ``patience`` or both."""

    metric: str | None = None
    """The score, by its key in the log; that of the run when absent, on validation data if any."""
    target: float | None = None
    """End at the first evaluation that is as good."""
    patience: Count | None = None
    """End after so many evaluations in a row without a better one than all before."""
    better: Literal["higher", "lower"] | None = None
    """Which scores of a metric of your own are better; hpcfl knows it of its own metrics."""

    def __post_init__(self) -> None:
        if self.target is None and self.patience is None:
            raise ValueError("target: missing; give target, patience or both")
        if self.metric is None:
            if self.better is not None:
                raise ValueError(f"better: found {self.better} without a metric; remove it")
            return
        known = SCORES[self.metric].better if self.metric in SCORES else None
        if known is not None and self.better not in (None, known):
            raise ValueError(f"better: found {self.better}, but {self.metric} is better {known}")
