"""Checkpoints: what a run needs to go on as if nothing had happened, committed by one rename.

    checkpoints/00000500/
        server.safetensors   the server's state, written by rank 0
        kept.safetensors     what else the coming rounds need, if anything; by rank 0
        best.safetensors     the best model so far, where the job keeps one
        rows-RANK.npz        where the states of the clients of RANK lie, one file a rank
        shared/rows-RANK.npz the same of the part of the states that clients share, if there is one
        manifest.json        round, ranks, job, checksums; the rename into place is the commit

A folder without a manifest was never committed and is pruned.
"""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple
from zlib import crc32

import torch
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor

from hpcfl.comm.base import Comm
from hpcfl.errors import StoreError
from hpcfl.store.base import ClientStore
from hpcfl.store.durable import STANDS, storing, sync_folder, write_file
from hpcfl.store.rows import files as row_tables

FORMAT = 2  # 1 had no shared part of the states
MANIFEST = "manifest.json"
SERVER = "server.safetensors"
KEPT = "kept.safetensors"
BEST = "best.safetensors"


class Checkpoint(NamedTuple):
    """A committed checkpoint."""

    folder: Path
    round: int
    """Rounds completed."""
    ranks: int
    """The number of ranks that wrote it."""
    job: str
    """The mark of the job it belongs to."""
    log_bytes: int
    """The length of log.jsonl at its commit."""
    files: dict[str, int]
    """The crc32 of every file of the folder."""

    @property
    def best(self) -> bytes | None:
        """Its best model, if there is one; ``read_server`` looked at the checksums."""
        return (self.folder / BEST).read_bytes() if BEST in self.files else None


def save(
    root: Path,
    round: int,
    server: Any,
    kept: Mapping[str, Tensor],
    store: ClientStore,
    comm: Comm,
    *,
    job: str,
    log_bytes: int,
    keep: int,
    best: bytes | None = None,
) -> list[Path]:
    """Collective: commit the server and every rank's states after ``round`` rounds.

    Args:
        root: the folder of the checkpoints.
        round: rounds completed.
        server: the algorithm's server, the same on every rank.
        kept: what else the coming rounds need, by name, the same on every rank.
        store: this rank's client states.
        comm: the ranks.
        job: the job's mark; a resume refuses another.
        log_bytes: the length of the log, which is on the disk.
        keep: how many checkpoints are kept.
        best: the file of the best model so far, if there is one; rank 0's counts.

    Returns:
        The folders of the checkpoints that are kept, oldest first.

    Raises:
        StoreError: on this rank alone: a file cannot be written.
    """
    folder = root / f"{round:08d}"
    if comm.rank == 0:
        with storing(folder):
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
        write_file(folder / SERVER, save_tensors(flat(server)), advice=STANDS)
        if kept:
            beside = {name: _copied(tensor) for name, tensor in kept.items()}
            write_file(folder / KEPT, save_tensors(beside), advice=STANDS)
        if best is not None:
            write_file(folder / BEST, best, advice=STANDS)
    comm.barrier()
    store.commit(folder)
    comm.barrier()
    names = ""
    if comm.rank == 0:
        with storing(folder):
            _commit(folder, round, comm.size, job=job, log_bytes=log_bytes)
        with storing(root):
            names = " ".join(found.folder.name for found in _prune(root, keep))
    # Only what rank 0 knows to be kept: another host's view of the folder may be seconds old.
    folders = [root / name for name in comm.share(names).split()]
    store.keep(folders)
    return folders


def _commit(folder: Path, round: int, ranks: int, *, job: str, log_bytes: int) -> None:
    names = [SERVER, *row_tables(folder, ranks)]
    names += [name for name in (KEPT, BEST) if (folder / name).exists()]
    manifest = {
        "format": FORMAT,
        "round": round,
        "ranks": ranks,
        "job": job,
        "log_bytes": log_bytes,
        "files": {name: crc32((folder / name).read_bytes()) for name in names},
    }
    sync_folder(folder)
    write_file(folder / MANIFEST, json.dumps(manifest, indent=1).encode(), advice=STANDS)
    sync_folder(folder.parent)


def _prune(root: Path, keep: int) -> list[Checkpoint]:
    """Remove all but the newest ``keep`` checkpoints, which are returned."""
    found = committed(root)
    for old in found[:-keep]:
        (old.folder / MANIFEST).unlink()
        shutil.rmtree(old.folder, ignore_errors=True)  # `prune` removes what is left of it
    return found[-keep:]


def committed(root: Path) -> list[Checkpoint]:
    """The committed checkpoints under ``root``, oldest first.

    Raises:
        StoreError: a manifest is not one.
    """
    return [read(folder) for folder in _folders(root) if (folder / MANIFEST).exists()]


def prune(root: Path) -> None:
    """Remove the folders that a killed run left uncommitted."""
    for folder in _folders(root):
        if not (folder / MANIFEST).exists():
            shutil.rmtree(folder)


def _folders(root: Path) -> list[Path]:
    """Those named like checkpoints, in the order of their rounds."""
    return sorted(path for path in root.glob("[0-9]" * 8) if path.is_dir())


def read_server(checkpoint: Checkpoint, template: Any, device: torch.device) -> Any:
    """The server of a checkpoint, on ``device``; ``template`` is the dry round's server.

    Raises:
        StoreError: a file is missing, damaged, or of another model.
    """
    for name, expected in checkpoint.files.items():
        path = checkpoint.folder / name
        try:
            found = crc32(path.read_bytes())
        except OSError as e:
            raise StoreError(f"{path}: cannot be read: {e.strerror}; {_OTHER}") from e
        if found != expected:
            raise StoreError(f"{path}: checksum {found}, expected {expected}; {_OTHER}")
    path = checkpoint.folder / SERVER
    return _nested(_load(path, device), template, path)


def read_kept(checkpoint: Checkpoint, device: torch.device) -> dict[str, Tensor]:
    """What a checkpoint kept beside the server, on ``device``; ``read_server`` checks its file.

    Raises:
        StoreError: the file is damaged.
    """
    return _load(checkpoint.folder / KEPT, device) if KEPT in checkpoint.files else {}


def _load(path: Path, device: torch.device) -> dict[str, Tensor]:
    try:
        entries = load_tensors(path.read_bytes())
    except SafetensorError as e:
        raise StoreError(f"{path}: cannot be read: {e}; {_OTHER}") from e
    return {name: tensor.to(device) for name, tensor in entries.items()}


def flat(server: Any) -> dict[str, Tensor]:
    """A server's tensors by name; those of a tuple get a number: "past.0"."""
    tensors: dict[str, Tensor] = {}
    for name, value in zip(server._fields, server, strict=True):
        if isinstance(value, Tensor):
            tensors[name] = value
        else:
            tensors |= {f"{name}.{k}": part for k, part in enumerate(value)}
    return {name: _copied(tensor) for name, tensor in tensors.items()}


def _copied(tensor: Tensor) -> Tensor:
    """On the CPU, sharing memory with no other: safetensors refuses that."""
    return tensor.detach().cpu().clone()


_OTHER = "remove this checkpoint's folder to resume from an older one, if there is one"


def _nested(tensors: dict[str, Tensor], template: Any, path: Path) -> Any:
    values: list[Any] = []
    for name, value in zip(template._fields, template, strict=True):
        if isinstance(value, Tensor):
            found = tensors.get(name)
            if found is None or (found.shape, found.dtype) != (value.shape, value.dtype):
                what = "nothing" if found is None else f"{tuple(found.shape)} {found.dtype}"
                raise StoreError(
                    f"{path}: {name}: found {what}, expected {tuple(value.shape)} {value.dtype}"
                )
            values.append(found)
        else:
            names = sorted(
                (n for n in tensors if n.startswith(f"{name}.")),
                key=lambda n: int(n.rpartition(".")[2]),
            )
            values.append(tuple(tensors[n] for n in names))
    return type(template)(*values)


def read(folder: Path) -> Checkpoint:
    """The committed checkpoint in ``folder``.

    Raises:
        StoreError: its manifest is missing or not one.
    """
    path = folder / MANIFEST
    try:
        manifest = json.loads(path.read_text())
        found = int(manifest["format"])
        if found != FORMAT:  # whose other keys may be others
            raise StoreError(
                f"{path}: found format {found}, expected {FORMAT}: another version of hpcfl wrote "
                "it; resume with that version, or run the job again into another directory"
            )
        return Checkpoint(
            folder,
            int(manifest["round"]),
            int(manifest["ranks"]),
            str(manifest["job"]),
            int(manifest["log_bytes"]),
            dict(manifest["files"]),
        )
    except (OSError, ValueError, KeyError, TypeError) as e:
        raise StoreError(f"{path}: is not a manifest: {e!r}; {_OTHER}") from e


def fingerprint(*tensors: Tensor) -> int:
    """A checksum of the bits of all tensors together."""
    mark = 0
    for tensor in tensors:
        content = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
        mark = crc32(content.numpy().data, mark)
    return mark
