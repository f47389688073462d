"""Tell apart what methods are compared on, and call methods and set-ups by the labels of a sweep.

A set-up is the data, model, cohorts, weights and precision of a run: what its user compares methods
on, and does not tune.
"""

from collections.abc import Callable, Sequence
from typing import Any

from hpcfl.runs.job_file.settings import Settings, distinguishing_settings
from hpcfl.runs.record import RunRecord

_SECTIONS = ("data", "model", "cohort", "weights", "precision")
# Keys of these sections that say how the data are read, or are a method's (FedBN's statistics).
_OTHERS = ("data.download", "data.workers", "model.statistics")
_PERHAPS_OF_METHODS = ("weights", "precision")
_LABEL = "set-up"  # a pseudo-key


def is_set_up(key: str) -> bool:
    """Whether a set-up has this dotted key, or has keys below it."""
    return key.partition(".")[0] in _SECTIONS and key not in _OTHERS


def settings_of_set_ups(runs: Sequence[RunRecord]) -> list[Settings]:
    """For each run, the settings of its set-up: those of two runs are equal if it is the same.

    Weights and precision are a method's own where no algorithm has several, such as DP-FedAvg's
    uniform weights in a table of methods with others.
    """
    values: dict[tuple[str, str], set[Any]] = {}
    for run in runs:
        for key in _PERHAPS_OF_METHODS:
            values.setdefault((key, run.algorithm), set()).add(run.settings.get(key))
    several = {key for (key, _), found in values.items() if len(found) > 1}
    own = {key for key in _PERHAPS_OF_METHODS if key not in several}
    return [
        {key: value for key, value in run.settings.items() if is_set_up(key) and key not in own}
        for run in runs
    ]


def identities(runs: Sequence[RunRecord]) -> list[str]:
    """For each run a text that is the same for runs of one set-up, and for no others."""
    return [
        repr(sorted((key, repr(value)) for key, value in own.items()))
        for own in settings_of_set_ups(runs)
    ]


def set_up_labels(runs: Sequence[RunRecord]) -> list[str]:
    """For each run, the labels of its set-up in the grid of the sweep: "plants", "plants, iid".

    All are empty where runs are not of one sweep, and where the labels do not tell the set-ups
    apart, such as where there is one.
    """
    found = _joined(runs, lambda key: key == "task" or is_set_up(key), lambda _: False)
    pairs = {*zip(found, identities(runs), strict=True)}
    each = {label for label, _ in pairs}
    alike = len(each) == len(pairs) == len({own for _, own in pairs})
    return found if alike and len(each) > 1 and "" not in each else [""] * len(runs)


def method_names(runs: Sequence[RunRecord]) -> list[str]:
    """For each run, the label of its method in the grid of the sweep; else its algorithm."""
    found = _joined(
        runs,
        lambda key: key in ("algorithm", "algorithm.name"),
        lambda key: key == "task" or is_set_up(key),
    )
    return [label or run.algorithm for label, run in zip(found, runs, strict=True)]


def differing(runs: Sequence[RunRecord], but: Sequence[str]) -> list[str]:
    """For each run, the settings in which the runs differ, a set-up by its label in the sweep.

    Args:
        runs: of one report.
        but: keys that are not compared.
    """
    labels = set_up_labels(runs)
    if not any(labels):
        return distinguishing_settings([run.settings for run in runs], but)
    jobs = [
        {_LABEL: label}
        | {key: v for key, v in run.settings.items() if key != "task" and not is_set_up(key)}
        for label, run in zip(labels, runs, strict=True)
    ]
    return [text.removeprefix(f"{_LABEL} ") for text in distinguishing_settings(jobs, but)]


def _joined(
    runs: Sequence[RunRecord], wanted: Callable[[str], bool], unwanted: Callable[[str], bool]
) -> list[str]:
    """For each run, its labels on the axes that set a wanted key.

    An axis of which every label sets an unwanted key is left out.  All are empty where the runs
    are not of one sweep.
    """
    if len({(run.path.parent, len(run.labels)) for run in runs}) != 1:
        return [""] * len(runs)
    axes = [
        axis
        for axis in zip(*(run.labels for run in runs), strict=True)
        if any(wanted(key) for label in axis for key in label.keys)
        and not all(any(map(unwanted, label.keys)) for label in axis)
    ]
    return [", ".join(axis[place].name for axis in axes) for place in range(len(runs))]
