"""Every name that hpcfl and its callbacks make in a directory of their own.

Before anything is written, a start refuses a directory in which one of them is a link or of another
kind, or is not what hpcfl made: it would write through the link, or over another program's file.
"""

import os
import stat
from collections.abc import Mapping
from pathlib import Path

from hpcfl.errors import JobError
from hpcfl.io.atomic import PART
from hpcfl.io.regular import KINDS
from hpcfl.runs.manifest import BEST, BRANCHES, FUNCTION, INITIAL, MANIFEST, SERVER
from hpcfl.user_code.names import KEPT

CLIENTS = "clients.csv"
FILE, FOLDER = stat.S_IFREG, stat.S_IFDIR
SWEEP_LOG = "sweep.log"
"""The log of a sweep, in the directory that holds the sweep's runs."""
REPORT = "report.png"
"""The plot of a report whose file the user did not name."""
RUN = "run"
SWEEP = "sweep"
CALLBACKS = ("events", "wandb", "mlruns")
"""Folders of a run in which other packages write names of their own, also links to each other."""
NAMES: Mapping[str, Mapping[str, int]] = {
    RUN: {
        **dict.fromkeys(("job.yaml", "history.jsonl", "log.jsonl", "lock", CLIENTS), FILE),
        **dict.fromkeys((INITIAL, FUNCTION, BRANCHES, "buffers.safetensors"), FILE),
        **dict.fromkeys(("wandb.json", "mlflow.json", ".hpcfl-SECRET"), FILE),
        **dict.fromkeys(("checkpoints", "stores", "ranks", KEPT, *CALLBACKS), FOLDER),
    },
    f"{RUN}/checkpoints": {"ROUND": FOLDER},
    f"{RUN}/checkpoints/ROUND": {
        **dict.fromkeys((MANIFEST, SERVER, BEST, "rows-RANK.npz"), FILE),
        "shared": FOLDER,
    },
    f"{RUN}/checkpoints/ROUND/shared": {"rows-RANK.npz": FILE},
    f"{RUN}/stores": {"SEGMENT": FILE, "shared": FOLDER},
    f"{RUN}/stores/shared": {"SEGMENT": FILE},
    f"{RUN}/ranks": {"SESSION": FOLDER},
    f"{RUN}/ranks/SESSION": {"RANK.json": FILE, "report": FILE},
    f"{RUN}/{KEPT}": {"DIGEST": FILE},
    f"{RUN}/events": {"EVENTS": FILE},
    SWEEP: {
        **dict.fromkeys((SWEEP_LOG, "lock", REPORT, "POINT.yaml", "POINT.log"), FILE),
        "POINT": FOLDER,
    },
    "record": {
        **dict.fromkeys(("job.yaml", "history.jsonl", "log.jsonl", CLIENTS, BRANCHES), FILE),
        **dict.fromkeys(("digests.json", "packages.txt", "README.md"), FILE),
        "code": FOLDER,
    },
    "beside a run": {"RUN.SUBMISSION.starts": FILE, ".RUN.part": FOLDER, ".hpcfl-SECRET": FILE},
}
"""By kind of directory, each name with its kind; what is in capitals differs.  While a file is
written, it has its name with ``.part`` behind it."""
_POINT = tuple(name.removeprefix("POINT") for name in NAMES[SWEEP] if name.startswith("POINT"))
"""What follows the name of a run in those of its files in a sweep's directory."""
_INSTEAD = {
    "stores": "set store.dir for client states on another disk",
    "wandb": "set WANDB_DIR",
    "mlruns": "set MLFLOW_TRACKING_URI",
}
"""What serves in the place of a link."""


def may_name_point(name: str) -> bool:
    """Whether no file of a run of this name in a sweep has the name of another file there."""
    made = {name + ending for ending in _POINT}
    ends = (*filter(None, _POINT), PART, ".starts")  # of files of another run
    return made.isdisjoint(NAMES[SWEEP]) and not name.endswith(ends)


def is_own(path: Path) -> bool:
    """Whether a path is that of a file of a run or of a sweep; there may be no such file yet.

    A sweep's plot may be named, and has a mark (``hpcfl.runs.sweep_log.require_own_plot``).

    Args:
        path: absolute, without links.
    """
    for folder in path.parents:
        if all(os.path.lexists(folder / name) for name in ("job.yaml", "history.jsonl")):
            return path.relative_to(folder).parts[0] in {*NAMES[RUN], *NAMES["record"]}
    if not os.path.lexists(path.with_name(SWEEP_LOG)):
        return False
    of_point = path.suffix in _POINT and os.path.lexists(path.with_suffix("") / "job.yaml")
    return of_point or path.name in NAMES[SWEEP].keys() - {REPORT}


def require_kind(path: Path, *kinds: int, of: str = RUN) -> None:
    """Refuse a path that is of none of these kinds; there may be nothing.

    Args:
        path: which is not followed, if it is a link.
        kinds: of ``FILE`` and ``FOLDER``.
        of: what makes the path.

    Raises:
        JobError: it is of another kind.
    """
    try:
        found = stat.S_IFMT(path.lstat().st_mode)
    except (FileNotFoundError, NotADirectoryError):  # a running run has deleted it
        return
    if found not in kinds:
        expected = f"is {KINDS.get(found, 'a file')}, expected {KINDS.get(kinds[0], 'a file')}"
        cure = "move it elsewhere"
        if found == stat.S_IFLNK:
            cure = "links are not followed here: put what it points to in its place"
            if path.name in _INSTEAD:
                cure += f", or {_INSTEAD[path.name]}"
        raise JobError(f"{path}: {expected} of the {of}; {cure}")


def require_inside(folder: Path, path: Path) -> None:
    """Refuse a path below a folder of ``CALLBACKS`` that is a link out of it, or a FIFO or device.

    Raises:
        JobError: it is.
    """
    if not (path.is_symlink() and path.resolve().is_relative_to(folder.resolve())):
        require_kind(path, FILE, FOLDER)
