"""Find, read, check and delete the checkpoints of a run directory.

A checkpoint is a folder, named by its round, with a manifest.  Renaming the manifest into place
commits the checkpoint: a folder without one does not count, and is deleted.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, TypeVar
from zlib import crc32

from hpcfl.errors import DiskError, JobError, StoreError
from hpcfl.io import checksum
from hpcfl.io.atomic import PART, sync_folder, write_errors
from hpcfl.io.files import folders_with, parse_json, present, read_bytes
from hpcfl.runs.log import LogPosition

# Format 1 had no shared part of states; 2 put all keys into the job's fingerprint; 3 drew other
# random numbers; 4 had no digests of inputs, and no checksums of the manifest, job.yaml,
# initial.npy and the lines of the logs.
FORMAT = 5
MANIFEST = "manifest.json"
SERVER = "server.safetensors"
BEST = "best.safetensors"
INITIAL = "initial.npy"
FUNCTION = "function.json"
BRANCHES = "branches.json"
T = TypeVar("T")
_SHARED = "shared"  # as hpcfl.store.row_table has it, whose import takes that of torch
_NAMES = "|".join(map(re.escape, (MANIFEST, SERVER, BEST)))
_OWN = re.compile(rf"({_NAMES}|rows-\d+\.npz)({re.escape(PART)})?")


class Checkpoint(NamedTuple):
    """A committed checkpoint."""

    folder: Path
    round: int
    """Rounds completed."""
    ranks: int
    """The number of ranks that wrote it."""
    job: str
    """The fingerprint of the job, which a resume compares with its own."""
    log: LogPosition
    """The length and checksum of log.jsonl at that round."""
    files: dict[str, int]
    """The crc32 of every other file of the folder, by name."""
    inputs: Mapping[str, str]
    """The digest of every input of the job, by name (hpcfl.data.fingerprints)."""
    run_files: Mapping[str, int]
    """The crc32 of files of the run directory that no round changes, by name."""
    ended: Mapping[str, str] = {}
    """Of a run that ended before its last round: the ``reason``, and ``by``, a digest of the
    settings by which it ended (``hpcfl.runs.job_file.resume_rules.ending_fingerprint``)."""
    table_lines: int | None = None
    """The lines of clients.csv at that round; None: an earlier version wrote the checkpoint."""


def committed(root: Path) -> list[Checkpoint]:
    """Read the committed checkpoints under ``root``, oldest first.

    Raises:
        StoreError: a manifest is damaged.
    """
    return [read(folder) for folder in committed_folders(root)]


def newest(root: Path) -> Checkpoint | None:
    """Read the newest committed checkpoint under ``root``; None if there is none.

    A running run may delete it meanwhile; then the next newest is read.

    Raises:
        StoreError: its manifest is damaged.
    """
    while True:
        folders = committed_folders(root)
        if not folders:
            return None
        try:
            return read(folders[-1])
        except (StoreError, DiskError):  # NFS reports a deleted file as a failing disk (ESTALE)
            if present(folders[-1] / MANIFEST):
                raise


def committed_folders(root: Path) -> list[Path]:
    """The folders of the committed checkpoints under ``root``, oldest first.

    Raises:
        StoreError: ``root`` cannot be listed.
    """
    return [f for f in folders_with(root, MANIFEST) if _ROUND.fullmatch(f.name)]


def rounds(root: Path, newest: int | None = None) -> list[int]:
    """The rounds of the kept checkpoints under ``root``, ascending; not after ``newest``, if given.

    Raises:
        StoreError: there is no checkpoint.
        JobError: there is none of round ``newest``.
    """
    kept = [int(folder.name) for folder in committed_folders(root)]
    if not kept:
        raise StoreError(f"{root}: holds no checkpoint; run the job again into {root.parent}")
    if newest is None:
        return kept
    if newest not in kept:
        raise JobError(
            f"{root}: round {newest} is not kept; give --round {' or '.join(map(str, kept))}"
        )
    return [round for round in kept if round <= newest]


def find(root: Path, round: int) -> Checkpoint:
    """Read the kept checkpoint of a round.

    Raises:
        StoreError: its manifest is damaged.
    """
    return read(folder_of(root, round))


def uncommit(folder: Path) -> None:
    """Delete the manifest of a checkpoint, and fsync that, before any of its rows is reused.

    After a loss of power, a checkpoint whose rows have changed must not look committed.
    """
    (folder / MANIFEST).unlink(missing_ok=True)
    sync_folder(folder)


def delete_newer(root: Path, after: int) -> None:
    """Delete the checkpoints of later rounds than ``after``, the newest first.

    Raises:
        DiskError: the disk fails.
        StoreError: one cannot be deleted.
    """
    with write_errors(root):
        for folder in reversed(_folders(root)):
            if int(folder.name) > after:
                uncommit(folder)
                delete(folder)


def delete_older(root: Path, keep: int) -> list[str]:
    """Delete all but the newest ``keep`` committed checkpoints; the names of these.

    Raises:
        DiskError: the disk fails.
        StoreError: the folder cannot be read.
    """
    with write_errors(root):
        folders = committed_folders(root)
        for old in folders[:-keep]:
            uncommit(old)
            with suppress(OSError):  # the next resume deletes what is left (``prune``)
                delete(old)
    return [folder.name for folder in folders[-keep:]]


def prune(root: Path) -> None:
    """Delete the folders of checkpoints that were not committed, as a kill leaves them.

    Raises:
        DiskError: the disk fails.
        StoreError: one cannot be deleted.
    """
    with write_errors(root):
        for folder in _folders(root):
            if not present(folder / MANIFEST):
                delete(folder)


def delete(folder: Path) -> None:
    """Delete the files of a checkpoint that is not committed, and its folder if no other is in it.

    Raises:
        OSError: one cannot be deleted.
    """
    for place in (folder / _SHARED, folder):
        if place.is_dir() and not place.is_symlink():
            for path in place.iterdir():
                if _OWN.fullmatch(path.name):
                    path.unlink()
            with suppress(OSError):  # it holds files that no run wrote
                place.rmdir()


def _folders(root: Path) -> list[Path]:
    """The folders of checkpoints, committed or not, in the order of their rounds."""
    return sorted(path for path in root.iterdir() if _ROUND.fullmatch(path.name) and path.is_dir())


_ROUND = re.compile(r"[0-9]{8}")


def folder_of(root: Path, round: int) -> Path:
    """The folder of the checkpoint of a round."""
    return root / f"{round:08d}"


def read_files(checkpoint: Checkpoint) -> Iterator[tuple[str, bytes]]:
    """Read the files of a checkpoint, each when its turn comes, and compare their checksums.

    Yields:
        The name and the content of each.

    Raises:
        StoreError: one is missing or damaged.
    """
    for name, expected in checkpoint.files.items():
        yield name, _read_checked(checkpoint.folder / name, expected, RESUME_OLDER)


def check_files(checkpoint: Checkpoint) -> None:
    """Compare the checksums of a checkpoint's files with its manifest.

    Raises:
        StoreError: one is missing or damaged.
    """
    for _ in read_files(checkpoint):
        pass


def read_run_files(checkpoint: Checkpoint, root: Path) -> dict[str, bytes]:
    """Read the files of the run directory ``root`` that no round changes; compare their checksums.

    Returns:
        The content of each by its name.

    Raises:
        StoreError: one is missing or damaged.
    """
    advice = "put it back, or run the job again into another directory"
    return {
        name: _read_checked(root / name, expected, advice)
        for name, expected in checkpoint.run_files.items()
    }


def _read_checked(path: Path, expected: int, advice: str) -> bytes:
    content = read_file(path, advice)
    found = crc32(content)
    if found != expected:
        raise StoreError(f"{path}: checksum {found}, expected {expected}; {advice}")
    return content


RESUME_OLDER = "resume from an older checkpoint"


def read_file(path: Path, advice: str = RESUME_OLDER) -> bytes:
    """Read a file that a manifest names.

    Raises:
        StoreError: it is missing or cannot be read; ``advice`` ends the message.
        DiskError: the disk fails.
    """
    try:
        return read_bytes(path, advice)
    except FileNotFoundError as e:
        raise StoreError(f"{path}: cannot be read: {e.strerror}; {advice}") from e


def read(folder: Path) -> Checkpoint:
    """Read the manifest of the committed checkpoint in ``folder``.

    Raises:
        StoreError: it is missing or damaged, or another version of hpcfl wrote it.
        DiskError: the disk fails.
    """
    return parse(folder, read_file(folder / MANIFEST))


def parse(folder: Path, content: bytes) -> Checkpoint:
    """Parse the manifest of the committed checkpoint in ``folder``.

    Raises:
        StoreError: it is damaged, or another version of hpcfl wrote it.
    """
    manifest = _of_this_format(folder, content)
    try:
        return Checkpoint(
            folder,
            _round(folder, manifest["round"]),
            int(manifest["ranks"]),
            str(manifest["job"]),
            LogPosition(int(manifest["log_bytes"]), int(manifest["log_crc"])),
            _sums(manifest["files"], SERVER),
            _digests(manifest["inputs"]),
            _sums(manifest["run_files"], INITIAL),
            _digests(manifest.get("ended", {})),
            int(manifest["table_lines"]) if "table_lines" in manifest else None,
        )
    except (ValueError, KeyError, TypeError, OverflowError) as e:
        raise _damaged(folder, e) from e


def write_manifest(checkpoint: Checkpoint) -> bytes:
    """Return the content of a checkpoint's manifest; the caller writes the file."""
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
    if checkpoint.table_lines is not None:
        manifest["table_lines"] = checkpoint.table_lines
    if checkpoint.ended:
        manifest["ended"] = dict(checkpoint.ended)
    return checksum.add_to_json(json.dumps(manifest, indent=1))


def require_format(folder: Path) -> None:
    """Refuse the checkpoint in ``folder`` if another version of hpcfl wrote its manifest.

    Raises:
        StoreError: another version wrote it, or it cannot be read or is damaged.
        DiskError: the disk fails.
    """
    _of_this_format(folder, read_file(folder / MANIFEST))


def _of_this_format(folder: Path, content: bytes) -> Mapping[str, Any]:
    """A manifest's object; only its format and its checksum are checked.

    Raises:
        StoreError: another version wrote it, or it is damaged.
    """
    try:
        # The format is read before the rest is required: manifests up to format 4 had no
        # checksum, and later formats may have other keys.
        checked = checksum.is_checked_json(content)
        text = checksum.remove_from_json(content) if checked else content
        manifest: Mapping[str, Any] = parse_json(text)
        found = int(manifest["format"])
        if found == FORMAT:
            # Raises if there is no checksum, which this format always has.
            checksum.remove_from_json(content)
    except (ValueError, KeyError, TypeError, OverflowError) as e:
        raise _damaged(folder, e) from e
    if found != FORMAT:
        raise StoreError(
            f"{folder / MANIFEST}: found format {found}, expected {FORMAT}: another version of "
            "hpcfl wrote it; resume with that version, or run the job again into another directory"
        )
    return manifest


def _damaged(folder: Path, error: Exception) -> StoreError:
    return StoreError(f"{folder / MANIFEST}: is damaged: {error}; {RESUME_OLDER}")


def _round(folder: Path, found: Any) -> int:
    """The round in a manifest, which must be that in the folder's name.

    Raises:
        ValueError: they differ.
    """
    if folder.name != f"{int(found):08d}":
        raise ValueError(f"its round is {found}, expected that of its folder")
    return int(found)


def _sums(files: dict[str, int], required: str) -> dict[str, int]:
    """Check the checksums in a manifest: files inside the folder, ``required`` among them."""
    for name, crc in dict(files).items():
        inside = not Path(name).is_absolute() and ".." not in Path(name).parts
        if not (inside and type(crc) is int):
            raise ValueError(f"{name!r}: {crc!r} is no file with its checksum")
    if required not in files:
        raise ValueError(f"it has no checksum of {required}")
    return files


def _digests(inputs: dict[str, str]) -> dict[str, str]:
    """Check that the digests in a manifest are strings."""
    for name, digest in dict(inputs).items():
        if not isinstance(digest, str):
            raise TypeError(f"{name!r}: {digest!r} is no digest")
    return inputs


def read_newest(root: Path, read: Callable[[Checkpoint], T], round: int | None = None) -> T:
    """What ``read`` finds in the newest checkpoint under ``root``, or in that of a round.

    If a live run deletes the checkpoint meanwhile, its newest one is read instead.

    Raises:
        StoreError: there is no checkpoint, or it is damaged.
        JobError: there is none of the round.
    """
    while True:
        before = set(committed_folders(root))
        try:
            return read(find(root, rounds(root, round)[-1]))
        except (StoreError, DiskError):  # NFS reports a deleted file as a disk error
            if before <= set(
                committed_folders(root)
            ):  # no checkpoint was deleted: this one is damaged
                raise
