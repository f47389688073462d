"""Decide on which examples the runs of a report are compared where something is chosen."""

from collections.abc import Sequence
from dataclasses import replace

from hpcfl.run_dir.record import RunRecord

EXAMPLES = {"validation": "the validation data", "test": "the test set"}
"""What runs are chosen on, in words."""


def chosen_alike(runs: Sequence[RunRecord]) -> list[RunRecord]:
    """The runs, all chosen on validation data where all have it, else all on the test set."""
    evaluated = [run for run in runs if _scored(run)]
    on_test = not all(run.validated for run in evaluated)
    return [replace(run, on_test=on_test) for run in runs]


def choice_caption(runs: Sequence[RunRecord], chosen: str) -> list[str]:
    """The caption, if any, that says on which examples ``chosen`` was chosen.

    Args:
        runs: of ``chosen_alike``.
        chosen: what was chosen: "best round".
    """
    evaluated = [run for run in runs if _scored(run)]
    if not evaluated:
        return []
    with_some = sum(run.validated for run in evaluated)
    if evaluated[0].chosen_on == "validation":
        return [f"{chosen}: chosen on the validation data; the test score there is shown"]
    if not with_some:
        return [f"{chosen}: chosen on the test set"]
    lacking = len(evaluated) - with_some
    return [
        f"{chosen}: chosen on the test set, as {lacking} of {len(evaluated)} runs "
        f"{'has' if lacking == 1 else 'have'} no validation data"
    ]


def _scored(run: RunRecord) -> bool:
    return bool(run.scores["test_loss"] or run.scores["test_accuracy"] or run.validated)
