"""Say which of its scores a run counts by: how settings are chosen, and what plots and tables show.

It is that of the clients' own models where the method makes such models and the job scores them,
else that of the global model x.
"""

from collections.abc import Mapping
from typing import Literal, NamedTuple

ChosenOn = Literal["validation", "test"]
"""The examples whose scores decide."""
Quantity = Literal["accuracy", "loss"]
TestedOn = Literal["holdout", "test", "train"]
"""Where the examples are from that clients are scored on, see ``ClientTests``."""

Trained = Literal["trained", "partly trained", "not trained"]
_EXAMPLES: Mapping[TestedOn | None, str] = {
    "holdout": "held-out examples of each client",
    "test": "each client's own test examples",
    "train": "each client's training examples",
    None: "each client's own examples",
}
_OF_X = ("test_", "validation_", "client_", "train_objective")


class OwnModels(NamedTuple):
    """What is known of the models that a method makes for its clients, beside their scores."""

    tested_on: TestedOn | None
    """The examples that they are scored on; None of a run of an earlier version, which does not say
    it."""
    x: Trained
    """How far x is trained, less what each client keeps for itself."""

    @property
    def of_x(self) -> str:
        """What to say behind "x" where it is shown; empty where all of it is trained."""
        if self.x == "trained":
            return ""
        return ", which is not trained" if self.x == "not trained" else ", not all of it trained"

    @property
    def examples(self) -> str:
        """The examples that they are scored on, in words."""
        return _EXAMPLES[self.tested_on]


def is_of_x(key: str) -> bool:
    """Whether a key of the log is a score of the global model x."""
    return key.startswith(_OF_X)


def score_key(quantity: Quantity, on: ChosenOn, *, personal: bool) -> str:
    """The key in the log of the score that a run counts by.

    Args:
        quantity: which score.
        on: the examples.
        personal: whether the run counts by the clients' own models.
    """
    if not personal:
        return f"{on}_{quantity}"
    return f"personal_{quantity}" if on == "test" else f"personal_validation_{quantity}"


def deciding_scores(*, personal: bool) -> tuple[str, ...]:
    """The best model of a run is chosen by the first of these that it has.

    Where there is validation data, the test set takes no part in the choice.
    """
    return tuple(
        score_key(quantity, on, personal=personal)
        for on in ("validation", "test")
        for quantity in ("accuracy", "loss")
    )
