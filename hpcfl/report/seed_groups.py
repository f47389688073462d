"""Group the runs of a report that differ in the seed alone."""

from collections.abc import Sequence

from hpcfl.job.settings import group_by_seed, labels
from hpcfl.run_dir.record import RunRecord

_COUNTED = ("evaluate.every", "evaluate.last")  # decide which rounds have a score


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
            f"left out: {', '.join(spare)}: of each another run of the same job and seed counts, "
            "the one with the most rounds"
        )
    unlike = [
        f"{names[group[0]]} and {names[index]}"
        for group in groups
        if (index := next((i for i in group if _unlike(runs[i], runs[group[0]])), None)) is not None
    ]
    if unlike:
        captions.append(
            f"evaluated in unlike rounds: {', '.join(unlike)}: of different evaluate.last the mean "
            "of the last rounds is no number, and the best round is one of more rounds or fewer"
        )
    return captions


def _unlike(run: RunRecord, other: RunRecord) -> bool:
    return any(run.settings.get(key) != other.settings.get(key) for key in _COUNTED)
