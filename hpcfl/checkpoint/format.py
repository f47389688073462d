"""Checkpoints: what a run needs to go on as if nothing had happened, committed by one rename.

    checkpoints/00000500/
        server.safetensors   the server's state, written by rank 0
        kept.safetensors     what else the coming rounds need, if anything; by rank 0
        best.safetensors     the best model so far, where the job keeps one
        rows-RANK.npz        where the states of the clients of RANK lie, one file a rank
        shared/rows-RANK.npz the same of the part of the states that clients share, if there is one
        manifest.json        round, ranks, job, checksums, its own too; the rename into place is
                             the commit

A folder without a manifest was never committed and is pruned.  All files but the manifest are
written while rounds go on.
"""

import json
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple
from zlib import crc32

import torch
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from torch import Tensor

from hpcfl.io import checksum
from hpcfl.errors import DiskError, JobError, StoreError
from hpcfl.io.files import folders_with, parse_json, present, read_bytes
from hpcfl.run_dir.log import Extent
from hpcfl.io.atomic import storing, sync_folder

# 1 had no shared part of the states; 2 marked jobs by all keys; 3 drew other numbers; 4 had no
# digests of inputs, and no checksum of the manifest, job.yaml, initial.npy and the logs' lines.
FORMAT = 5
MANIFEST = "manifest.json"
SERVER = "server.safetensors"
KEPT = "kept.safetensors"
BEST = "best.safetensors"
INITIAL = "initial.npy"


class Checkpoint(NamedTuple):
    """A committed checkpoint."""

    folder: Path
    round: int
    """Rounds completed."""
    ranks: int
    """The number of ranks that wrote it."""
    job: str
    """The mark of the job it belongs to."""
    log: Extent
    """What stood in log.jsonl."""
    files: dict[str, int]
    """The crc32 of every file of the folder."""
    inputs: Mapping[str, str]
    """The digest of every input of the job, by its name, see hpcfl.data.fingerprints."""
    run_files: Mapping[str, int]
    """The crc32 of the files of the run directory that no round changes."""

    @property
    def best(self) -> bytes | None:
        """Its best model, if there is one; ``read_server`` looked at the checksums.

        Raises:
            StoreError: it cannot be read.
        """
        return _content(self.folder / BEST) if BEST in self.files else None


def committed(root: Path) -> list[Checkpoint]:
    """The committed checkpoints under ``root``, oldest first.

    Raises:
        StoreError: a manifest is not one.
    """
    return [read(folder) for folder in committed_folders(root)]


def newest(root: Path) -> Checkpoint | None:
    """The newest committed checkpoint under ``root``, which a live run may replace meanwhile.

    Raises:
        StoreError: its manifest is not one.
    """
    while True:
        folders = committed_folders(root)
        if not folders:
            return None
        try:
            return read(folders[-1])
        except (StoreError, DiskError):  # the latter of what is removed meanwhile, on NFS
            if present(folders[-1] / MANIFEST):
                raise


def committed_folders(root: Path) -> list[Path]:
    """The folders of the committed checkpoints under ``root``, oldest first.

    Raises:
        StoreError: ``root`` cannot be listed.
    """
    return [f for f in folders_with(root, MANIFEST) if _ROUND.fullmatch(f.name)]


def rounds(root: Path, newest: int | None = None) -> list[int]:
    """The rounds whose checkpoints are kept under ``root``, ascending, up to ``newest``.

    Raises:
        StoreError: there is none.
        JobError: ``newest`` is none of them.
    """
    kept = [int(folder.name) for folder in committed_folders(root)]
    if not kept:
        raise StoreError(f"{root}: holds no checkpoint; run the job again into {root.parent}")
    if newest is None:
        return kept
    if newest not in kept:
        raise JobError(f"{root}: round {newest} is not kept; kept are {', '.join(map(str, kept))}")
    return [round for round in kept if round <= newest]


def find(root: Path, round: int) -> Checkpoint:
    """The checkpoint of a round that is kept.

    Raises:
        StoreError: its manifest is not one.
    """
    return read(folder_of(root, round))


def give_up(root: Path, after: int) -> None:
    """Remove the checkpoints of later rounds than ``after``, the newest first.

    Raises:
        StoreError: one cannot be removed.
    """
    with storing(root):
        for folder in reversed(_folders(root)):
            if int(folder.name) > after:
                (folder / MANIFEST).unlink(missing_ok=True)
                sync_folder(folder)  # before any row that it names is written again
                shutil.rmtree(folder)


def prune(root: Path) -> None:
    """Remove the folders that a killed run left uncommitted.

    Raises:
        StoreError: one cannot be removed.
    """
    with storing(root):
        for folder in _folders(root):
            if not present(folder / MANIFEST):
                shutil.rmtree(folder)


def _folders(root: Path) -> list[Path]:
    """Those named like checkpoints, in the order of their rounds."""
    return sorted(path for path in root.iterdir() if _ROUND.fullmatch(path.name) and path.is_dir())


_ROUND = re.compile(r"[0-9]{8}")


def folder_of(root: Path, round: int) -> Path:
    """Where the checkpoint of a round lies."""
    return root / f"{round:08d}"


def check_files(checkpoint: Checkpoint) -> None:
    """Compare the checksums of a checkpoint's files.

    Raises:
        StoreError: one is missing or damaged.
    """
    for name, expected in checkpoint.files.items():
        path = checkpoint.folder / name
        found = crc32(_content(path))
        if found != expected:
            raise StoreError(f"{path}: checksum {found}, expected {expected}; {_OTHER}")


def check_run_files(checkpoint: Checkpoint, root: Path) -> None:
    """Compare the checksums of the files in the run directory ``root`` that no round changes.

    Raises:
        StoreError: one is missing or damaged.
    """
    for name, expected in checkpoint.run_files.items():
        path, advice = root / name, "put it back, or run the job again into another directory"
        found = crc32(_content(path, advice))
        if found != expected:
            raise StoreError(f"{path}: checksum {found}, expected {expected}; {advice}")


def read_server(checkpoint: Checkpoint, template: Any, device: torch.device) -> Any:
    """The server of a checkpoint, on ``device``; ``template`` is the dry round's server.

    Raises:
        StoreError: a file is missing, damaged, or of another model.
    """
    check_files(checkpoint)
    path = checkpoint.folder / SERVER
    return _nested(_load(path, device), template, path)


def read_kept(checkpoint: Checkpoint, device: torch.device) -> dict[str, Tensor]:
    """What a checkpoint kept beside the server, on ``device``; ``read_server`` checks its file.

    Raises:
        StoreError: the file is damaged.
    """
    return _load(checkpoint.folder / KEPT, device) if KEPT in checkpoint.files else {}


_OTHER = "resume from an older checkpoint"


def _content(path: Path, advice: str = _OTHER) -> bytes:
    try:
        return read_bytes(path, advice)
    except FileNotFoundError as e:
        raise StoreError(f"{path}: cannot be read: {e.strerror}; {advice}") from e


def _load(path: Path, device: torch.device) -> dict[str, Tensor]:
    content = _content(path)
    try:
        entries = load_tensors(content)
    except (SafetensorError, ValueError, LookupError, RuntimeError) as e:
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
    return {name: copied(tensor) for name, tensor in tensors.items()}


def copied(tensor: Tensor) -> Tensor:
    """On the CPU, sharing memory with no other: safetensors refuses that."""
    return tensor.detach().cpu().clone()


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
                (n for n in tensors if re.fullmatch(rf"{name}\.\d+", n)),
                key=lambda n: int(n.rpartition(".")[2]),
            )
            values.append(tuple(tensors[n] for n in names))
    return type(template)(*values)


def read(folder: Path) -> Checkpoint:
    """The committed checkpoint in ``folder``.

    Raises:
        StoreError: its manifest is missing or not one.
        DiskError: the disk fails.
    """
    manifest = require_format(folder)
    try:
        return Checkpoint(
            folder,
            _round(folder, manifest["round"]),
            int(manifest["ranks"]),
            str(manifest["job"]),
            Extent(int(manifest["log_bytes"]), int(manifest["log_crc"])),
            _sums(manifest["files"], SERVER),
            _digests(manifest["inputs"]),
            _sums(manifest["run_files"], INITIAL),
        )
    except (ValueError, KeyError, TypeError, OverflowError) as e:
        raise _no_manifest(folder, e) from e


def write_manifest(checkpoint: Checkpoint) -> bytes:
    """The content of the manifest of a checkpoint."""
    manifest = {
        "format": FORMAT,
        "round": checkpoint.round,
        "ranks": checkpoint.ranks,
        "job": checkpoint.job,
        "log_bytes": checkpoint.log.length,
        "log_crc": checkpoint.log.crc,
        "files": dict(checkpoint.files),
        "inputs": dict(checkpoint.inputs),
        "run_files": dict(checkpoint.run_files),
    }
    return checksum.add_to_json(json.dumps(manifest, indent=1))


def require_format(folder: Path) -> Mapping[str, Any]:
    """Refuse the checkpoint in ``folder`` where another version of hpcfl wrote its manifest.

    Returns:
        What the manifest says; only its format and its checksum were looked at.

    Raises:
        StoreError: it did, or the manifest cannot be read or is damaged.
        DiskError: the disk fails.
    """
    path = folder / MANIFEST
    content = _content(path)
    try:
        # Up to format 4 a manifest had no checksum; what keys a later one has, nobody knows.
        checked = checksum.is_checked_json(content)
        text = checksum.remove_from_json(content) if checked else content
        manifest: Mapping[str, Any] = parse_json(text)
        found = int(manifest["format"])
        if found == FORMAT:  # which has one
            checksum.remove_from_json(content)
    except (ValueError, KeyError, TypeError, OverflowError) as e:
        raise _no_manifest(folder, e) from e
    if found != FORMAT:
        raise StoreError(
            f"{path}: found format {found}, expected {FORMAT}: another version of hpcfl wrote "
            "it; resume with that version, or run the job again into another directory"
        )
    return manifest


def _no_manifest(folder: Path, error: Exception) -> StoreError:
    return StoreError(f"{folder / MANIFEST}: is not a manifest: {error!r}; {_OTHER}")


def _round(folder: Path, found: Any) -> int:
    """The round of a manifest, if its folder is named by it.

    Raises:
        ValueError: it is not.
    """
    if folder.name != f"{int(found):08d}":
        raise ValueError(f"its round is {found}, expected that of its folder")
    return int(found)


def _sums(files: dict[str, int], required: str) -> dict[str, int]:
    """The checksums of a manifest, if they are of files in one folder, with the required one."""
    for name, crc in dict(files).items():
        inside = not Path(name).is_absolute() and ".." not in Path(name).parts
        if not (inside and type(crc) is int):
            raise ValueError(f"{name!r}: {crc!r} is no file with its checksum")
    if required not in files:
        raise ValueError(f"it has no checksum of {required}")
    return files


def _digests(inputs: dict[str, str]) -> dict[str, str]:
    """The digests of a manifest, if they are texts."""
    for name, digest in dict(inputs).items():
        if not isinstance(digest, str):
            raise TypeError(f"{name!r}: {digest!r} is no digest")
    return inputs


def fingerprint(*tensors: Tensor) -> int:
    """A checksum of the bits of all tensors together."""
    mark = 0
    for tensor in tensors:
        content = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
        mark = crc32(content.numpy().data, mark)
    return mark
