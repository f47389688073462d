"""Tell the files of a sweep from others of the same names, before any of them is written."""

from pathlib import Path

from hpcfl.errors import JobError
from hpcfl.io.files import present, readable
from hpcfl.io.regular import open_binary
from hpcfl.runs.names import FILE, FOLDER, REPORT, SWEEP, SWEEP_LOG, require_kind
from hpcfl.runs.sweep_log import PLACE, require_own_plot, was_begun_before
from hpcfl.tools.sweep.grid import Sweep
from hpcfl.tools.sweep.process import OUTPUT

_ELSEWHERE = "move it elsewhere, or choose another directory with --out"


def require_folder(root: Path) -> None:
    """Refuse a directory of runs that cannot be one, as it or one above it is a file.

    Raises:
        JobError: it cannot.
    """
    there = next(path for path in (root, *root.parents) if present(path))
    if not there.is_dir():
        raise JobError(f"{there}: is a file, expected a directory; choose another with --out")


def refuse_foreign(sweep: Sweep, root: Path) -> None:
    """Refuse a directory in which the sweep would write through a link, or over others' files.

    Args:
        sweep: the checked sweep.
        root: the directory of its runs, which may not exist.

    Raises:
        JobError: a file of the sweep has the name of a link, of another kind of file, or of a file
            that no sweep has made.
        StoreError: one cannot be read.
    """
    for name in (SWEEP_LOG, "lock"):
        require_kind(root / name, FILE, of=SWEEP)
    marked = not was_begun_before(root)
    require_own_plot(root / REPORT)
    for point in sweep.points:
        folder, job, output = (root / f"{point.name}{end}" for end in ("", ".yaml", ".log"))
        if not present(folder / "job.yaml"):  # else it may be a link to a run on another disk
            require_kind(folder, FOLDER, of=SWEEP)
        for path in (job, output):
            require_kind(path, FILE, of=SWEEP)
        if job.resolve() in (sweep.path.resolve(), sweep.job.resolve()):
            raise JobError(
                f"{job}: is what the sweep is made from, and would be replaced by the job of its "
                f"run {point.name}; choose another directory with --out"
            )
        _require_head(job, PLACE.encode(), "the job of a run")
        if marked:
            _require_head(output, OUTPUT, "the output of a run")


def _require_head(path: Path, head: bytes, what: str) -> None:
    """Refuse a file that begins with something else than a sweep's; a kill may have cut that.

    Raises:
        JobError: it does.
        StoreError: it cannot be read.
    """
    if not present(path):
        return
    with readable(path), open_binary(path) as file:
        found = file.read(len(head))
    if not head.startswith(found.rstrip(b"\0")):
        raise JobError(
            f"{path}: begins with {found[:20]!r}, expected {head.decode().strip()!r}: it is not "
            f"{what} that a sweep has written; {_ELSEWHERE}"
        )
