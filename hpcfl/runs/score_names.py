"""The scores that an evaluation writes to the log, for all that shows or compares them.

A new score is one more line of ``SCORES``: reports, plots, the status of a run and its own lines
then have it.
"""

from collections.abc import Mapping
from typing import Literal, NamedTuple

from hpcfl.user_code.names import short_name


class Score(NamedTuple):
    """A number of an evaluation."""

    key: str
    """In log.jsonl, CSV files and DataFrames."""
    title: str | None = None
    """In tables and in the status of a run; None: for programs alone."""
    better: Literal["higher", "lower"] | None = "higher"
    percent: bool = True
    """Whether it is a fraction, which tables and plots show in percent."""


SCORES: Mapping[str, Score] = {
    score.key: score
    for score in (
        # In this order in tables; runs are compared in a plot by the first that all of them have.
        Score("test_accuracy", "accuracy"),
        Score("test_loss", "test\nloss", "lower", percent=False),
        Score("test_perplexity", "test\nperplexity", "lower", percent=False),
        Score("test_f1", "F1"),
        Score("validation_accuracy", "validation"),
        Score("validation_loss", "validation\nloss", "lower", percent=False),
        Score("validation_perplexity", "validation\nperplexity", "lower", percent=False),
        Score("validation_f1", "validation\nF1"),
        Score("test_top5_accuracy", "top 5"),
        Score("train_objective", "objective", "lower", percent=False),
        Score("client_accuracy_mean", "clients\nmean"),
        Score("client_accuracy_worst_decile", "worst\ndecile"),
        Score("local_model_accuracy_mean", "local models\nmean"),
        Score("local_model_accuracy_worst_decile", "worst\ndecile"),
        Score("personal_accuracy", "personal"),
        Score("personal_loss", "personal\nloss", "lower", percent=False),
        Score("personal_perplexity", "personal\nperplexity", "lower", percent=False),
        Score("personal_validation_accuracy", "personal\nvalidation"),
        Score("personal_validation_loss", "personal\nval. loss", "lower", percent=False),
        Score("personal_validation_perplexity", better="lower", percent=False),
        Score("personal_accuracy_mean", "personal\nmean"),
        Score("personal_accuracy_worst_decile", "worst\ndecile"),
        Score("epsilon", "epsilon", "lower", percent=False),
        Score("validation_top5_accuracy"),
        Score("client_accuracy_std", better="lower"),
        Score("client_accuracy_best_decile"),
        Score("local_model_accuracy_std", better="lower"),
        Score("local_model_accuracy_best_decile"),
        Score("personal_accuracy_std", better="lower"),
        Score("personal_accuracy_best_decile"),
    )
}
"""By their keys in the log."""

PERPLEXITIES: Mapping[str, str] = {
    key.replace("perplexity", "loss"): key for key in SCORES if key.endswith("_perplexity")
}
"""The keys of perplexities, by those of the losses that they are the exponentials of."""

METRIC_KEYS = (
    "test_{}",
    "validation_{}",
    *(
        f"{whose}_{{}}_{summary}"
        for whose in ("client", "local_model", "personal")
        for summary in ("mean", "std", "lowest_decile", "highest_decile")
    ),
)
"""The keys of a metric of the user's, for its name."""
_METRIC_PREFIXES = tuple(key.partition("{}")[0] for key in METRIC_KEYS)
OF_SERVER = "server_"
"""Begins the keys of the numbers that an algorithm gives of its server, in every round."""
_COUNT = "local_model_clients"  # a key with such a prefix, but no score

RESERVED = tuple(key.removeprefix("test_") for key in SCORES if key.startswith("test_"))
"""The names that a metric of the user's must not have."""


def metric_name(path: str) -> str:
    """The name of a metric of the user's in the log: the last part of its dotted path."""
    return short_name(path).rpartition(".")[2]


def is_score(key: str) -> bool:
    """Whether a key of the log is a score, of hpcfl or of a metric of the user's."""
    return key in SCORES or (key.startswith(_METRIC_PREFIXES) and key != _COUNT)


def is_titled(key: str) -> bool:
    """Whether people are shown a key of the log: scores with a title, metrics on whole sets."""
    if key in SCORES:
        return SCORES[key].title is not None
    return is_score(key) and key.startswith(("test_", "validation_"))


def score_named(key: str) -> Score:
    """The score of any key of the log; of one that is not in SCORES the name must tell."""
    if key in SCORES:
        return SCORES[key]
    if "accuracy" in key:
        return Score(key)
    return Score(key, better="lower" if key.endswith("loss") else None, percent=False)
