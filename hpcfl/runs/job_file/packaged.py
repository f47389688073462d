"""Find the jobs and sweeps that are installed with hpcfl, those of the folder jobs/ of its sources.

In the sources hpcfl/jobs is a symbolic link to that folder; a wheel has a copy of its files there.
"""

import os
import re
from difflib import get_close_matches
from pathlib import Path
from typing import Literal

from hpcfl.errors import JobError
from hpcfl.runs.job_file.record import is_record
from hpcfl.runs.job_file.yaml_file import read

FOLDER = Path(__file__).parents[2] / "jobs"


def packaged_jobs() -> dict[str, Path]:
    """The file of each job and sweep by its name: "quickstart", "cifar10/fedhbm_noniid", ..."""
    files = sorted(FOLDER.rglob("*.yaml"))
    return {str(file.relative_to(FOLDER).with_suffix("")): file for file in files}


def summary(file: Path) -> str:
    """The first sentence of the comment at the top of a job file, without its full stop."""
    lines = []
    for line in file.read_text().splitlines():
        if not line.startswith("# ") or line.startswith("#  "):  # the job, or a command
            break
        lines.append(line[2:])
    return re.split(r"(?<!\bvs)\.(?:\s|$)", " ".join(lines))[0].removesuffix(":")


def kind_of(argument: Path) -> Literal["job", "sweep", "run"]:
    """What a command line means by an argument; torch is not loaded for it.

    Args:
        argument: a file, the name of a packaged job or sweep, the record of a run, which is a job,
            or the directory of a run.

    Raises:
        JobError: it is none of these, or the file cannot be read.
    """
    path = find_job(argument)
    if (path / "job.yaml").is_file():
        return "job" if is_record(path) else "run"
    return "sweep" if "grid" in read(path).tree else "job"


def find_job(job: str | Path, folder: Path = Path()) -> Path:
    """The file that a command line, a caller or a sweep means by ``job``.

    A file that exists is taken as it is.  Any other argument is looked up among the packaged jobs,
    with or without ".yaml" and a leading "jobs/".

    Args:
        job: a path, or the name of a packaged job.
        folder: what a relative path starts from.

    Raises:
        JobError: there is neither such a file nor such a packaged job.
    """
    path = folder / job
    # Not Path.is_file, which raises an error where a folder may not be read.
    if any(map(os.path.isfile, (path, path / "job.yaml"))):
        return path
    known = packaged_jobs()
    name = Path(job).as_posix().removeprefix("jobs/").removesuffix(".yaml")
    if name in known:
        return known[name]
    if Path(job).is_absolute() or os.path.lexists(path):  # the error of reading it says more
        return path
    same = [other for other in known if Path(other).name == Path(name).name]
    beside = path.with_name(f"{path.name}.yaml")
    near = [str(beside)] if beside.is_file() else same or get_close_matches(name, known)
    hint = f"; did you mean {' or '.join(near)}?" if near else ""
    raise JobError(
        f"{path}: cannot be read: No such file or directory, and no packaged job has this name "
        f"(hpcfl list jobs){hint}"
    )
