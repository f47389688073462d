"""Print the BibTeX of the methods, models and data sets that jobs use."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from hpcfl.errors import JobError
from hpcfl.io.files import may_contain
from hpcfl.job.packaged import find_job
from hpcfl.job.schema import load
from hpcfl.job.settings import Settings, flatten
from hpcfl.job.yaml_file import read
from hpcfl.report.bibliography import DATA, ENTRIES, METHODS, MODELS, Keys
from hpcfl.report.collect import JOB, find_runs
from hpcfl.run_dir.record import read_record
from hpcfl.sweep.grid import read_sweep


def cite(path: Path) -> str:
    """The entries of a job or sweep, or of the runs in a directory: each once, in order of use.

    A comment stands for what has no entry, such as an algorithm of the user's own.

    Raises:
        JobError: the file is wrong, or there is no run in the directory.
        StoreError: the job of a run is damaged.
    """
    sources: dict[str, Keys] = {}
    for job in _jobs(path):
        sources |= _parts(job)
    keys = dict.fromkeys(key for found in sources.values() for key in found)
    without = [f"% {what}: no entry\n" for what, found in sources.items() if not found]
    return "\n".join([*(ENTRIES[key] for key in keys), "".join(without)]).rstrip("\n")


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
    return [flatten(load(path).tree)]


def _parts(job: Settings) -> Iterator[tuple[str, Keys]]:
    """What a job uses, and the entries of it."""
    for table, what, key, variant in (
        (METHODS, "algorithm", "algorithm.name", "algorithm.optimizer"),
        (MODELS, "model", "model.name", None),
        (DATA, "data", "data.kind", "data.dataset"),
    ):
        name = str(job[key])
        exact = name if variant is None else f"{name} {job.get(variant)}"
        yield f"{what} {exact if exact in table else name}", table.get(exact, table.get(name, ()))
