"""Read and check the job of a run directory."""

from hpcfl.job.load import check
from hpcfl.job.schema import LoadedJob
from hpcfl.runs.job_file.run_name import run_name
from hpcfl.runs.layout import RunDir


def load_run(folder: RunDir, content: bytes | None = None) -> LoadedJob:
    """Read and check the job of a run directory; its metrics and callbacks need not be there.

    Args:
        folder: the run directory.
        content: of its job.yaml, where it was read already.

    Raises:
        StoreError: its job.yaml is not as hpcfl wrote it.
        JobError: where, what was found, what was expected.
    """
    file = folder.read_job() if content is None else folder.parse_job(content)
    return check(file, run_name(file.name, ()), user_code=False)
