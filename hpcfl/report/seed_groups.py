"""Group the runs of a report that differ in the seed alone."""

from collections.abc import Sequence

from hpcfl.job.settings import group_by_seed, labels
from hpcfl.run_dir.record import RunRecord

# What it means for a mean over seeds that they differ in a key.
_CONSEQUENCES = {
    "evaluate.every": "each best round was chosen among another number of rounds",
    "evaluate.last": "there is no common mean of the last rounds",
}


def seed_groups(runs: Sequence[RunRecord]) -> list[list[int]]:
    """The runs, by index, in groups that differ in the seed alone.

    Of runs of one job and seed, such as a first try that was killed and another one, that with the
    most rounds stands for all.
    """
    return group_by_seed([run.settings for run in runs], [run.done for run in runs])


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
