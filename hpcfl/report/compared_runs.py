"""Decide on which examples the runs of a report are compared where something is chosen."""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple, Self

from hpcfl.run_dir.record import ChosenOn, RunRecord

EXAMPLES: dict[ChosenOn, str] = {"validation": "the validation data", "test": "the test set"}
"""What runs are chosen on, in words."""


class ComparedRuns(NamedTuple):
    """Runs that are all chosen on the same examples, also those that have no score yet."""

    runs: Sequence[RunRecord]
    on: ChosenOn
    """The ``chosen_on`` of every run."""
    lacking: int
    """How many of the runs with scores have no validation scores."""
    scored: int
    """How many runs have scores."""

    @classmethod
    def of(cls, runs: Sequence[RunRecord]) -> Self:
        """Compare on validation data where every run with scores has it, else on the test set.

        A run without a score, such as one that was killed before its first evaluation, has no part
        in the decision, as its log does not say whether it has validation data.
        """
        scored = [run for run in runs if _scored(run)]
        lacking = sum(not run.validated for run in scored)
        on: ChosenOn = "validation" if scored and not lacking else "test"
        return cls([replace(run, compared_on=on) for run in runs], on, lacking, len(scored))

    def caption(self, chosen: str) -> list[str]:
        """The caption, if any run has a score, that says on which examples it was chosen."""
        if not self.scored:
            return []
        text = f"{chosen}: chosen on {EXAMPLES[self.on]}"
        if self.on == "validation":
            text += "; the test score there is shown"
        elif self.lacking < self.scored:
            has = "has" if self.lacking == 1 else "have"
            text += f", as {self.lacking} of {self.scored} runs {has} no validation data"
        return [text]


def _scored(run: RunRecord) -> bool:
    return bool(run.scores["test_loss"] or run.scores["test_accuracy"] or run.validated)
