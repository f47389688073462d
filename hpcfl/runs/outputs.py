"""Write files that a user names: none replaces a file of a run, or one of another kind."""

import os
import stat
from collections.abc import Sequence
from pathlib import Path

from hpcfl.errors import JobError
from hpcfl.io.atomic import PART, write_file
from hpcfl.io.regular import KINDS
from hpcfl.runs.names import is_own


def check_output(path: Path, endings: Sequence[str], *, make_folder: bool = False) -> Path:
    """Refuse an output path that cannot be written, or whose file is not to be replaced.

    Call it before the work for the file's content; ``write_output`` calls it again.  It does not
    use ``Path.is_dir`` and the like, which raise where a name is too long.

    Args:
        path: as the user named it.
        endings: of names of files of this kind; an existing file that has one is replaced.
        make_folder: whether ``write_output`` makes missing folders.

    Returns:
        The regular file to write, which may not exist yet: where ``path`` is a symbolic link, the
        file that it points to.

    Raises:
        JobError: the path is a directory, a FIFO, a socket or a device, its name is too long, its
            folder is missing, or nothing may be written there; it is that of a file of a run or
            a sweep, or has another ending.
    """
    target = Path(os.path.realpath(path))
    try:
        # ``stat`` follows links as the system does: /dev/stdout leads to a pipe without a name.
        found = path.stat()
    except FileNotFoundError:
        found = None
    except OSError as e:
        raise _refused(path, str(e.strerror)) from e
    if found is not None and not stat.S_ISREG(found.st_mode):
        kind = KINDS.get(stat.S_IFMT(found.st_mode), "no regular file")
        raise _refused(path, f"it is {kind}, expected a file or a new name")
    try:
        _check_folder(path, target, make_folder=make_folder)
        if found is not None and not os.path.samestat(found, target.stat()):
            raise _refused(path, "its links lead to a file that has no name")
    except OSError as e:
        raise _refused(path, str(e.strerror)) from e
    if is_own(target):
        raise _refused(path, "the name is one of the files of a run or a sweep")
    for name in (path.name, target.name):  # a link may lead to a file of another kind
        if Path(name).suffix.lower() not in endings:
            raise _refused(path, f"found the name {name}, expected one in {' or '.join(endings)}")
    return target


def _check_folder(path: Path, target: Path, *, make_folder: bool) -> None:
    """Refuse ``target``, which the user named ``path``, if no such file can be made.

    Raises:
        JobError: see ``check_output``.
        OSError: the system refuses the path.
    """
    folder = target.parent
    while make_folder and not os.path.lexists(folder):
        folder = folder.parent
    try:
        limit = os.pathconf(folder, "PC_NAME_MAX")
    except FileNotFoundError as e:
        raise _refused(path, f"there is no directory {folder}") from e
    if not folder.is_dir():
        raise _refused(path, f"{folder} is not a directory")
    length = max(len(os.fsencode(name)) for name in target.relative_to(folder).parts)
    if 0 <= limit < length + len(PART):
        most = limit - len(PART)
        raise _refused(path, f"a name has {length} bytes, at most {most} are possible")
    own = {"effective_ids": True} if os.access in os.supports_effective_ids else {}
    if not os.access(folder, os.W_OK | os.X_OK, **own):
        raise _refused(path, f"no permission to write into {folder}")


def write_output(
    path: Path, content: bytes, endings: Sequence[str], *, make_folder: bool = False
) -> None:
    """Write a file that the user named, atomically; a symbolic link is followed.

    A file that is replaced keeps its permissions.

    Args:
        path: as the user named it.
        content: all of it.
        endings: see ``check_output``.
        make_folder: whether to make missing folders.

    Raises:
        JobError: see ``check_output``.
        DiskError: the disk is full or fails; nothing is left behind.
    """
    target = check_output(path, endings, make_folder=make_folder)
    if make_folder:
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
        except OSError as e:
            raise _refused(path, str(e.strerror)) from e
    mode = stat.S_IMODE(target.stat().st_mode) if target.exists() else None
    write_file(target, content, mode=mode)


def _refused(path: Path, reason: str) -> JobError:
    return JobError(f"{path}: cannot be written: {reason}; choose another file")
