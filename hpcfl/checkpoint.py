"""Checkpoints: what a run needs to go on as if nothing had happened, committed by one rename.

    checkpoints/00000500/
        server.safetensors   the server's state, written by rank 0
        rows-RANK.npz        where the states of the clients of RANK lie, one file a rank
        manifest.json        round, ranks, job, checksums; the rename into place is the commit

A folder without a manifest was never committed and is swept away.
"""

import json
import shutil
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
from hpcfl.store.durable import sync_folder, write_file

FORMAT = 1
MANIFEST = "manifest.json"
SERVER = "server.safetensors"


class Checkpoint(NamedTuple):
    """A committed checkpoint."""

    folder: Path
    round: int
    """Rounds completed."""
    ranks: int
    """The number of ranks that wrote it."""
    log_bytes: int
    """The length of log.jsonl at its commit."""
    files: dict[str, int]
    """The crc32 of every file of the folder."""


class Checkpoints:
    """The checkpoints of one run directory; ``keep`` of them are kept."""

    def __init__(self, run: Path, keep: int, facts: dict[str, Any]) -> None:
        self._root = run / "checkpoints"
        self._keep = keep
        self._facts = facts

    def committed(self) -> list[Checkpoint]:
        """All that can be resumed from, oldest first."""
        return committed(self._root)

    def save(
        self, round: int, server: Any, store: ClientStore, comm: Comm, log_bytes: int
    ) -> list[Checkpoint]:
        """Collective: commit the server and every rank's states after ``round`` rounds.

        Returns:
            The checkpoints that are kept now, oldest first.

        Raises:
            StoreError: a file cannot be written.
        """
        folder = self._root / f"{round:08d}"
        if comm.rank == 0:
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            write_file(folder / SERVER, save_tensors(flat(server)))
        comm.barrier()
        store.commit(folder)
        comm.barrier()
        if comm.rank == 0:
            self._commit(folder, round, comm.size, log_bytes)
        comm.barrier()
        kept = self.committed()[-self._keep :]
        store.keep(checkpoint.folder for checkpoint in kept)
        comm.barrier()
        return kept

    def _commit(self, folder: Path, round: int, ranks: int, log_bytes: int) -> None:
        files = sorted(path.name for path in folder.iterdir())
        manifest = {
            "format": FORMAT,
            "round": round,
            "ranks": ranks,
            "log_bytes": log_bytes,
            "files": {name: crc32((folder / name).read_bytes()) for name in files},
            **self._facts,
        }
        sync_folder(folder)
        write_file(folder / MANIFEST, json.dumps(manifest, indent=1).encode())
        sync_folder(self._root)
        for old in self.committed()[: -self._keep]:
            (old.folder / MANIFEST).unlink()
            shutil.rmtree(old.folder)


def committed(root: Path) -> list[Checkpoint]:
    """The committed checkpoints under ``root``, oldest first.

    Raises:
        StoreError: a manifest is not one.
    """
    found = [_read(path.parent) for path in sorted(root.glob(f"*/{MANIFEST}"))]
    return sorted(found, key=lambda checkpoint: checkpoint.round)


def sweep(root: Path) -> None:
    """Remove the folders that a killed run left uncommitted."""
    for folder in root.glob("*"):
        if not (folder / MANIFEST).exists():
            shutil.rmtree(folder)


def read_server(checkpoint: Checkpoint, template: Any) -> Any:
    """The server of a checkpoint, on the CPU; ``template`` is the dry round's server.

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
    try:
        tensors = load_tensors((checkpoint.folder / SERVER).read_bytes())
    except SafetensorError as e:
        raise StoreError(f"{checkpoint.folder / SERVER}: cannot be read: {e}; {_OTHER}") from e
    return _nested(tensors, template, checkpoint.folder / SERVER)


def flat(server: Any) -> dict[str, Tensor]:
    """A server's tensors by name; those of a tuple get a number: "past.0"."""
    tensors: dict[str, Tensor] = {}
    for name, value in zip(server._fields, server, strict=True):
        if isinstance(value, Tensor):
            tensors[name] = value
        else:
            tensors |= {f"{name}.{k}": part for k, part in enumerate(value)}
    return {name: tensor.detach().cpu().clone() for name, tensor in tensors.items()}


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


def _read(folder: Path) -> Checkpoint:
    path = folder / MANIFEST
    try:
        manifest = json.loads(path.read_text())
        found = manifest["format"]
        checkpoint = Checkpoint(
            folder,
            int(manifest["round"]),
            int(manifest["ranks"]),
            int(manifest["log_bytes"]),
            dict(manifest["files"]),
        )
    except (OSError, ValueError, KeyError, TypeError) as e:
        raise StoreError(f"{path}: is not a manifest: {e!r}; {_OTHER}") from e
    if found != FORMAT:
        raise StoreError(f"{path}: format {found}, expected {FORMAT}: another version wrote it")
    return checkpoint


def same(server: Any) -> int:
    """A checksum of the model, the same on every rank unless something went badly wrong."""
    return crc32(server.x.detach().cpu().contiguous().view(torch.uint8).numpy())
