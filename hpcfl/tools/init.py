"""Make a folder to start experiments in: a job, a sweep, an algorithm, scripts for Slurm."""

import shutil
from pathlib import Path

from hpcfl.errors import JobError, file_error

TEMPLATE = Path(__file__).parent / "template"


def init(folder: Path) -> list[Path]:
    """Copy the template into a new or empty folder.

    Returns:
        The files that were made.

    Raises:
        JobError: the folder has content, or cannot be made or written.
        DiskError: the disk fails.
    """
    try:
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise JobError(
                f"init: {folder}: found {'a folder with content' if folder.is_dir() else 'a file'},"
                " expected a new or an empty folder; give another name"
            )
        made = []
        for file in sorted(TEMPLATE.rglob("*")):
            if file.is_file() and "__pycache__" not in file.parts:
                copy = folder / file.relative_to(TEMPLATE)
                copy.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(file, copy)
                made.append(copy)
    except OSError as e:
        where = e.filename2 or e.filename or folder
        raise file_error(e, f"init: {where}: {e.strerror or e}", JobError) from e
    return made
