"""Read the progress of a run, and the bits of its model and states, from its directory."""

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hpcfl.engine.timing import measured
from hpcfl.run_dir.layout import RunDir
from hpcfl.run_dir.log import LogReader
from hpcfl.run_dir.manifest import MANIFEST
from hpcfl.runner.export import export


class Progress(NamedTuple):
    """The progress of a run as its files show it; any change shows that it is alive."""

    starts: int
    """Bytes of the history."""
    rounds: int
    """Complete lines of the log."""
    checkpoints: int
    """The time of the last change of the folder of the checkpoints, in nanoseconds."""
    committed: int
    """The round of the newest committed checkpoint; -1 if there is none."""


def read_progress(folder: RunDir) -> Progress:
    """The present progress of a run."""
    log, starts = folder.log, folder.history
    return Progress(
        starts.stat().st_size if starts.exists() else 0,
        log.read_bytes().count(b"\n") if log.exists() else 0,
        folder.checkpoints.stat().st_mtime_ns if folder.checkpoints.exists() else 0,
        committed(folder),
    )


def committed(folder: RunDir) -> int:
    """The round of the newest committed checkpoint; -1 if there is none."""
    manifests = folder.checkpoints.glob(f"*/{MANIFEST}")
    return max((int(path.parent.name) for path in manifests), default=-1)


def interrupted(folder: RunDir, keep: int) -> str:
    """The phase in which a run was killed, from the state of its checkpoints.

    Args:
        folder: the run directory; the start is in its history.
        keep: checkpoints that the run keeps.
    """
    folders = sorted(path for path in folder.checkpoints.glob("[0-9]*") if path.is_dir())
    whole = [(path / MANIFEST).exists() for path in folders]
    if not any(whole[-1:]):
        return "checkpoint"
    return "pruning" if not all(whole) or len(whole) > keep else "round"


class RunBits(NamedTuple):
    """The model, states and log of a finished run."""

    arrays: Mapping[str, NDArray[Any]]
    """The model ``x``, the ids of the clients with a state, and every field of their states."""
    log: list[dict[str, Any]]
    """The lines of the log, without measured times."""

    def differences(self, other: "RunBits") -> list[str]:
        """The names of the arrays, and of the log, that differ in any bit."""
        found = [name for name in ("x", "client") if not _same(self.arrays, other.arrays, name)]
        names = [name for name in {**self.arrays, **other.arrays} if name.startswith("state_")]
        found += [name for name in names if not _same(self.arrays, other.arrays, name)]
        return found + ["log.jsonl"] * (self.log != other.log)


def outcome(folder: RunDir) -> RunBits:
    """Read the newest checkpoint and the log of a run.

    Raises:
        StoreError: a file is damaged.
    """
    with tempfile.TemporaryDirectory() as name:
        (path,) = export(
            folder.root, round=None, npz=Path(name, "F.npz"), state_dict=None, clients=True
        )
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
    log = LogReader(folder.log).read()
    return RunBits(arrays, [{k: v for k, v in entry.items() if not measured(k)} for entry in log])


def _same(ours: Mapping[str, NDArray[Any]], others: Mapping[str, NDArray[Any]], name: str) -> bool:
    """Whether both have the array with the same bits: NaN is NaN, and 0 is not -0."""
    if name not in ours or name not in others:
        return False
    a, b = ours[name], others[name]
    return (a.dtype, a.shape, a.tobytes()) == (b.dtype, b.shape, b.tobytes())
