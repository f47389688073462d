"""Print the BibTeX of the methods, models, data sets, ... that jobs use: ``references.bib``."""

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path

from hpcfl.errors import JobError
from hpcfl.io.files import may_contain
from hpcfl.runs.job_file.packaged import find_job
from hpcfl.runs.job_file.settings import Settings, flatten
from hpcfl.runs.job_file.yaml_file import read
from hpcfl.runs.record import read_record
from hpcfl.tools.report.collect import JOB, find_runs
from hpcfl.tools.sweep.grid import read_sweep


def cite(path: Path) -> str:
    """The entries of a job or sweep, or of the runs in a directory: each once, in order of use.

    A comment stands for what has no entry, such as an algorithm of the user's own.

    Raises:
        JobError: the file is wrong, or there is no run in the directory.
        StoreError: the job of a run is damaged.
    """
    used = dict.fromkeys(name for job in _jobs(path) for name in _names(job))
    entries = dict.fromkeys(entry for name in used for entry in references().get(name, ()))
    without = [f"% {name}: no entry\n" for name in used if name not in references()]
    return "\n".join([*entries, "".join(without)]).rstrip("\n")


@cache
def references() -> Mapping[str, Sequence[str]]:
    """The entries of ``references.bib`` by what they are the source of: "algorithm fedavg"."""
    found: dict[str, list[str]] = {}
    text = files("hpcfl.tools.report").joinpath("references.bib").read_text("ascii")
    for block in text.split("\n\n")[1:]:  # the first one says how the file is written
        comment, _, entry = block.partition("\n")
        for part in comment.removeprefix("% ").split("; "):
            what, _, names = part.partition(": ")
            for name in names.split(", "):
                found.setdefault(f"{what} {name}", []).append(entry.rstrip("\n") + "\n")
    return found


def _jobs(path: Path) -> Sequence[Settings]:
    if path.is_dir():
        found = [
            read_record(folder).settings
            for folder in find_runs(path).runs
            if may_contain(folder, JOB)
        ]
        if not found:
            raise JobError(f"{path}: holds no run; name a job, a sweep or the directory of runs")
        return found
    if "grid" in read(find_job(path)).tree:
        return [flatten(point.loaded.tree) for point in read_sweep(path).points]
    from hpcfl.job.load import load  # which needs torch, as a run in a directory does not

    return [flatten(load(path).tree)]


def _names(job: Settings) -> Iterator[str]:
    """What a job uses, with the variant where that has entries of its own."""
    for what, key, variant in (
        ("algorithm", "algorithm.name", "algorithm.optimizer"),
        ("model", "model.name", None),
        ("data", "data.kind", "data.dataset"),
    ):
        name = f"{what} {job[key]}"
        exact = name if variant is None else f"{name} {job.get(variant)}"
        yield exact if exact in references() else name
    for what, key in (("optimizer", "local.optimizer"), ("loss", "loss")):
        if f"{key}.kind" in job:  # not sgd, nor the loss of the data
            yield f"{what} {job.get(f'{key}.of', job[f'{key}.kind'])}"
    if (cohort := f"cohort {job['cohort.kind']}") in references():
        yield cohort
