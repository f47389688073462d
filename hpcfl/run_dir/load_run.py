"""Read and check the job of a run directory."""

from hpcfl.job.run_name import run_name
from hpcfl.job.schema import LoadedJob, check
from hpcfl.run_dir.layout import RunDir


def load_run(folder: RunDir) -> LoadedJob:
    """Read and check the job of a run directory; its metrics and callbacks need not be there.

    Raises:
        StoreError: its job.yaml is not as hpcfl wrote it.
        JobError: where, what was found, what was expected.
    """
    file = folder.read_job()
    return check(file, run_name(file.name, ()), user_code=False)
