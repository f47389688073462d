"""Find which runs of a report belong together, what they are called, and say what is special."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, Self, get_args

from hpcfl.runs.job_file.settings import SEED, Settings, affects_results
from hpcfl.runs.record import RunRecord
from hpcfl.runs.run_score import ChosenOn, Quantity

# What it means for a mean over seeds that they differ in a key.
_CONSEQUENCES = {
    "evaluate.every": "each best round was chosen among another number of rounds",
    "evaluate.last": "there is no common mean of the last rounds",
}
DIVERGED = (
    "diverged: a number was not finite, or the train loss of the last rounds is far above that of "
    "guessing and of the first rounds; hpcfl status DIR has the numbers"
)
"""The meaning of the mark, as a caption."""


class ComparedRuns(NamedTuple):
    """Runs that are all chosen on the same examples, also those that have no score yet."""

    runs: Sequence[RunRecord]
    on: ChosenOn
    """The ``chosen_on`` of every run."""
    lacking: Sequence[RunRecord]
    """Those of the runs with scores that have no validation scores."""
    scored: int
    """How many runs have scores."""

    @classmethod
    def of(cls, runs: Sequence[RunRecord]) -> Self:
        """Compare on validation data where every run with scores has it, else on the test set.

        A run without a score, such as one that was killed before its first evaluation, has no part
        in the decision, as its log does not say whether it has validation data.
        """
        scored = [run for run in runs if _scored(run)]
        lacking = [run for run in scored if not run.validated]
        on: ChosenOn = "validation" if scored and not lacking else "test"
        return cls([replace(run, compared_on=on) for run in runs], on, lacking, len(scored))

    def caption(self, chosen: str) -> list[str]:
        """The caption, if any run has a score, that says on which examples it was chosen."""
        if not self.scored:
            return []
        text, lacking = f"{chosen}: chosen on {self.examples}", len(self.lacking)
        if self.on == "validation":
            text += "; the test score there is shown"
        elif lacking < self.scored:
            has = "has" if lacking == 1 else "have"
            of = any(run.personal for run in self.lacking)
            what = "validation scores of the clients' own models" if of else "validation data"
            text += f", as {lacking} of {self.scored} runs {has} no {what}"
        return [text]

    @property
    def examples(self) -> str:
        """The examples that runs are chosen on, in words."""
        if self.on == "validation":
            return "the validation data"
        owned = [run.own_models.examples for run in self.runs if run.own_models and run.personal]
        whole = ["the test set"] * (len(owned) < len(self.runs))
        return " or ".join(dict.fromkeys([*whole, *owned]))


def _scored(run: RunRecord) -> bool:
    tested = any(run.scores[run.score_key(quantity)] for quantity in get_args(Quantity))
    return tested or run.validated


PERSONAL, UNTRAINED = " p", " !"
"""Behind a score of the clients' own models in a column of all methods, or of an x that is not
trained."""


def score_mark(run: RunRecord) -> str:
    """The mark of the score that the run counts by; empty of a global model that is trained."""
    if run.personal:
        return PERSONAL
    return x_mark(run)


def x_mark(run: RunRecord) -> str:
    """The mark of a score of x; empty where all of x is trained."""
    return UNTRAINED if run.own_models and run.own_models.of_x else ""


def score_captions(runs: Sequence[RunRecord]) -> list[str]:
    """Captions that explain the marks, with the algorithms that have them."""
    found: dict[str, dict[str, None]] = {}
    for run in runs:
        if (own := run.own_models) is None:
            continue
        if run.personal:
            text = f"{PERSONAL.strip()}: of the clients' own models, on {own.examples}"
            found.setdefault(text, {})[run.algorithm] = None
        if own.of_x:
            text = f"{UNTRAINED.strip()}: of the global model x{own.of_x}"
            found.setdefault(text, {})[run.algorithm] = None
    return [f"{text}: {', '.join(algorithms)}" for text, algorithms in found.items()]


def labels(paths: Sequence[Path]) -> list[str]:
    """The directories' names, with as many parent folders as make them distinct."""
    whole = [path.absolute().parts for path in paths]
    return [_label(parts, whole) for parts in whole]


def _label(parts: tuple[str, ...], whole: Sequence[tuple[str, ...]]) -> str:
    others = [other for other in whole if other != parts]
    depth = 1
    while depth < len(parts) and any(other[-depth:] == parts[-depth:] for other in others):
        depth += 1
    return "/".join(parts[-depth:])


def group_by_seed(jobs: Sequence[Settings], done: Sequence[int] = ()) -> list[list[int]]:
    """The jobs (by index) in groups that differ in the seed alone, in order of appearance.

    Of jobs with the same seed, too, the one with the most rounds done is in the group, the first of
    equals.

    Args:
        jobs: the settings of each.
        done: the rounds of each that are done; absent where none has begun.
    """
    groups: dict[str, dict[Any, int]] = {}
    for index, job in enumerate(jobs):
        counted = [key for key in job if affects_results(key) and key != SEED]
        rest = repr(sorted((key, repr(job[key])) for key in counted))
        group, seed = groups.setdefault(rest, {}), job.get(SEED)
        if seed not in group or (done and done[index] > done[group[seed]]):
            group[seed] = index
    return [list(group.values()) for group in groups.values()]


def seed_groups(runs: Sequence[RunRecord]) -> list[list[int]]:
    """The runs, by index, in groups that differ in the seed alone.

    Of runs of one job and seed, such as a first try that was killed and another one, that with the
    most rounds stands for all.
    """
    return group_by_seed(list(map(compared_settings, runs)), [run.done for run in runs])


def compared_settings(run: RunRecord) -> Settings:
    """Its settings, and the model that it counts by, which is no setting that a round depends on.

    Scores of the one and of the other model have no mean.
    """
    return {**run.settings, "score of": "personal" if run.personal else "global"}


def seed_captions(runs: Sequence[RunRecord], groups: Sequence[Sequence[int]]) -> list[str]:
    """Captions about runs that are in no group, and about groups evaluated in unlike rounds."""
    names = labels([run.path for run in runs])
    placed = {index for group in groups for index in group}
    spare = [name for index, name in enumerate(names) if index not in placed]
    captions = []
    if spare:
        captions.append(
            f"left out: {', '.join(spare)}: another run of the same job and seed has done as many "
            "rounds or more, and counts"
        )
    for key, consequence in _CONSEQUENCES.items():
        unlike = [
            f"{names[group[0]]} and {names[index]}"
            for group in groups
            if (index := _first_unlike(runs, group, key)) is not None
        ]
        if unlike:
            captions.append(f"{', '.join(unlike)} have different {key}: {consequence}")
    return captions


def _first_unlike(runs: Sequence[RunRecord], group: Sequence[int], key: str) -> int | None:
    first = runs[group[0]].settings.get(key)
    return next((index for index in group if runs[index].settings.get(key) != first), None)


def run_captions(runs: Sequence[RunRecord]) -> list[str]:
    """Captions about branches and diverged runs, if there are any."""
    names = labels([run.path for run in runs])
    captions = [
        f"{name}: {'; '.join(map(str, run.branches))}; its rounds, bytes and times count from "
        f"round 0 of {run.branches[0].parent}"
        for name, run in zip(names, runs, strict=True)
        if run.branches
    ]
    return captions + [DIVERGED] * any(run.diverged for run in runs)


def diverged_note(runs: Sequence[RunRecord]) -> str:
    """The number of diverged runs as a note: " (1 diverged)"; empty if no run diverged."""
    count = sum(run.diverged for run in runs)
    return f" ({count} diverged)" if count else ""
