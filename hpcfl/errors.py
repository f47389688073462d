"""The errors of hpcfl: a class for each exit code, or for each thing a caller must know."""

import errno
import os
import sysconfig
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

INTERRUPTED = 130
"""The exit code of what Ctrl-C (SIGINT) ended, with no checkpoint to go on from."""
TRACEBACK = "HPCFL_TRACEBACK"  # set to 1, the whole traceback of an error is printed besides
_LONG = 4000  # characters of a message
_OURS = Path(__file__).parent
_STANDARD = Path(sysconfig.get_path("stdlib"))
_INSTALLED = ("site-packages", "dist-packages")
_CALLERS = ("torch", "numpy", "pydantic")  # installed packages that call a user's code
# The file system is full, over a quota or a limit, read-only, or fails; the last five are what
# network file systems report when a server is lost.
_DISK_FAILURES = frozenset(
    number
    for name in (
        *("ENOSPC", "EDQUOT", "EFBIG", "EROFS", "EIO", "ENXIO", "ENODEV", "EUCLEAN"),
        *("ESTALE", "ETIMEDOUT", "EREMOTEIO", "ENOTCONN", "ESHUTDOWN"),
    )
    if (number := getattr(errno, name, None)) is not None  # systems differ in what they know
)
# Sockets raise these, too: they are of a file system where the error names a file.
_OF_SOCKETS = (errno.ETIMEDOUT, errno.ENOTCONN, errno.ESHUTDOWN)


def one_line(text: str) -> str:
    """The text, cut where it is long; line breaks are spaces, what else is not seen is escaped."""
    text = text.rstrip()
    cut = text if len(text) <= _LONG else f"{text[:_LONG]}..."
    return "".join(c if c.isprintable() else " " if c.isspace() else ascii(c)[1:-1] for c in cut)


def place(error: BaseException) -> str:
    """The innermost line of the user's own code that an error went through.

    Returns:
        " in NAME (FILE:LINE)", or "" where the error went through no such line.
    """
    frames = [(frame.f_code, line) for frame, line in traceback.walk_tb(error.__traceback__)]
    found = [(Path(code.co_filename), line, code.co_name) for code, line in frames]
    found = [at for at in found if not _is_ours(at[0])]
    outside = [at for at in found if not _package(at[0])]
    # A class of the user's may be installed too, by an entry point.
    own = outside or [at for at in found if _package(at[0]) not in _CALLERS]
    return f" in {own[-1][2]} ({own[-1][0]}:{own[-1][1]})" if own else ""


def defined(function: Callable[..., Any]) -> str:
    """The line where a function of the user's own is defined, as ``place`` says it; "" for ours."""
    code = getattr(function, "__code__", None)
    if code is None:
        return ""
    file = Path(code.co_filename)
    if _is_ours(file) or _package(file) in _CALLERS:
        return ""
    return f" in {code.co_name} ({code.co_filename}:{code.co_firstlineno})"


def is_own_fault(error: BaseException, *called: object) -> bool:
    """Whether an error is hpcfl's own fault: no line and no class of the user's took part.

    Such an error keeps its traceback.  A lack of memory is never hpcfl's own fault: the job asks
    for too much, whichever code allocates it.

    Args:
        error: any.
        called: the parts of the job that were called: its algorithm, its model, its data.
    """
    package = __name__.partition(".")[0]
    of_user = any(type(part).__module__.partition(".")[0] != package for part in called)
    return not (of_user or place(error) or lacks_memory(error))


def described(error: BaseException, *, otherwise: str = "") -> str:
    """The error behind the place that it came from: " in NAME (FILE:LINE): TYPE: MESSAGE".

    Args:
        error: any.
        otherwise: the place, where the error went through no line of the user's.
    """
    if isinstance(error, BrokenRuleError):
        return f"{error.place}: {error}"
    said = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    return f"{place(error) or otherwise}: {said}"


def traceback_wanted() -> bool:
    """Whether the user asked for whole tracebacks."""
    return os.environ.get(TRACEBACK, "") not in ("", "0")


def print_traceback(error: BaseException) -> None:
    """Print the whole traceback of an error on standard error, if the user asked for it."""
    if traceback_wanted():
        traceback.print_exception(error.__cause__ or error)


def _is_ours(file: Path) -> bool:
    """Whether a file is hpcfl's or Python's own."""
    if str(file).startswith("<frozen ") or file.is_relative_to(_OURS):
        return True
    return file.is_relative_to(_STANDARD) and not _package(file)


def _package(file: Path) -> str:
    """The installed package that a file is of; "" for a file that is not installed."""
    parts = file.parts
    ends = [k for k, part in enumerate(parts) if part in _INSTALLED]
    return parts[ends[-1] + 1] if ends else ""


class BrokenRuleError(TypeError):
    """A hook of an algorithm breaks a rule of ``hpcfl/algorithms/base.py``.

    Args:
        message: which rule, and what to do.
        place: of the hook, as ``place`` says it.
    """

    def __init__(self, message: str, place: str = "") -> None:
        super().__init__(message)
        self.place = place


class HpcflError(Exception):
    """An error whose message is complete: it is printed as one line, without a traceback.

    A message has no line break and nothing that a terminal obeys, whatever names a job or a file
    holds.

    Args:
        message: where, what was found, what was expected, what to do.
        collective: every rank raises an error at this point, so the group can be left in order;
            the class's own value when absent.
        speaker: this rank reports it for all, though it may not be rank 0.
        exit_code: of the process; the class's own when absent.
    """

    exit_code = 1
    collective = False
    speaker = False

    def __init__(
        self,
        message: str,
        *,
        collective: bool | None = None,
        speaker: bool = False,
        exit_code: int | None = None,
    ) -> None:
        super().__init__(message)
        if collective is not None:
            self.collective = collective
        if exit_code is not None:
            self.exit_code = exit_code
        self.speaker = speaker

    def __str__(self) -> str:
        return one_line(super().__str__())


class JobError(HpcflError):
    """The job, the arguments or a file the user named is wrong; nothing was trained."""

    exit_code = 2


class DataError(JobError):
    """A data file is missing, damaged or not what the job says."""


class StoreError(JobError):
    """A store or checkpoint file is missing, damaged or of another run."""


class DiskError(HpcflError):
    """A file cannot be written or read: no space, no quota, a read-only or failing file system.

    Neither the job nor a file's content is wrong: the same command goes on once a person has made
    room or repaired the file system, and fails again before.  The exit code is sysexits.h's
    EX_IOERR.
    """

    exit_code = 74


def is_disk_failure(error: OSError) -> bool:
    """Whether the file system failed, rather than the path or the permissions being wrong."""
    return error.errno in _DISK_FAILURES


def file_error(error: OSError, message: str, otherwise: type[HpcflError]) -> HpcflError:
    """The error to raise for a file that the system refuses.

    Args:
        error: the system's.
        message: says which file, what failed and what to do.
        otherwise: the class where the file system itself is sound.
    """
    return (DiskError if is_disk_failure(error) else otherwise)(message)


def as_disk_error(error: BaseException, path: Path | None = None) -> DiskError | None:
    """A failure of the file system that nobody has told yet, as the error that tells it.

    None where ``error`` is something else.

    Args:
        error: any.
        path: the file, where the error names none, as that of a read or a write does not.
    """
    if not (isinstance(error, OSError) and is_disk_failure(error)):
        return None
    where = error.filename2 or error.filename or path
    if error.errno in _OF_SOCKETS and not where:
        return None
    made = DiskError(f"{where}: {error.strerror}" if where else f"{error.strerror}")
    made.__cause__ = error
    return made


@contextmanager
def disk_errors(path: Path | None = None) -> Iterator[None]:
    """Tell a failure of the file system inside the block; let every other error pass.

    Args:
        path: the only file that the block reads or writes, if it does nothing else with files.

    Raises:
        DiskError: the disk is full or fails.
    """
    try:
        yield
    except OSError as e:
        if disk := as_disk_error(e, path):
            raise disk from e
        raise


class DivergedError(HpcflError):
    """A client's update or the server's step is not finite; the last checkpoint stands."""

    exit_code = 3
    collective = True


class HookError(HpcflError):
    """A class of the user's raised in a round, outside of the training of a client."""


class ClientError(HpcflError):
    """An algorithm, a model or a data set raised while one client was being trained.

    Args:
        client: the client's id.
        round: counted from one, as the log does.
        step: the local step, from zero, or None outside the local loop.
        stage: what the client was doing: "begin", "step", "finish",
            "full gradient".
    """

    def __init__(self, client: int, round: int, step: int | None, stage: str) -> None:
        self.client, self.round, self.step, self.stage = client, round, step, stage
        where = f"client {client}, round {round}, " + (stage if step is None else f"step {step}")
        super().__init__(where)

    def __str__(self) -> str:
        cause = self.__cause__
        return one_line(f"{self.args[0]}{described(cause)}{hint()}" if cause else self.args[0])


class RankError(HpcflError):
    """Ranks disagree on what must be the same everywhere, or the launcher and MPI do not match."""


class Stopped(HpcflError):
    """A signal asked the run to stop; a checkpoint was written and the job may be requeued."""

    exit_code = 75
    collective = True


class LostFileError(HpcflError):
    """A file or folder of the run was deleted, replaced or cut while the run was alive."""


class SweepError(HpcflError):
    """Runs of a sweep failed."""


class RemoteRankError(HpcflError):
    """Another rank failed, and that rank reports why."""

    collective = True

    def __init__(self, exit_code: int, message: str = "another rank failed") -> None:
        super().__init__(message, exit_code=exit_code)


@contextmanager
def convert_errors(convert: Callable[[Exception], HpcflError | None]) -> Iterator[None]:
    """Convert what the block raises; errors of hpcfl pass unchanged.

    Args:
        convert: gives the error to raise instead; None: the original keeps its traceback.

    Raises:
        DiskError: the disk is full or fails.
    """
    try:
        with disk_errors():
            yield
    except HpcflError:
        raise
    except Exception as e:
        if error := convert(e):
            raise error from e
        raise


@contextmanager
def as_job_error(
    where: str, does: str, function: Callable[..., Any], advice: str = ""
) -> Iterator[None]:
    """Turn what a user's class raises before round 1 into a JobError of one line.

    Args:
        where: the key of the job that names the class, and its value.
        does: what hpcfl asked the class for: "cannot load the data".
        function: the method that is called; it tells the place where the traceback does not.
        advice: what to do.

    Raises:
        JobError: the block raised, and its class is the user's own or ran out of memory.
        DiskError: a file could not be written or read because the disk is full or fails.
    """

    def convert(e: Exception) -> JobError | None:
        # A fault of a class of hpcfl is a fault of the program: it keeps its traceback.
        if not (place(e) or defined(function) or lacks_memory(e)):
            return None
        said = described(e, otherwise=defined(function))
        return JobError(f"{where}: {does}{said}{advice or hint()}")

    with convert_errors(convert):
        yield


def lacks_memory(error: BaseException) -> bool:
    """Whether an error says that memory cannot be had, as numpy or as torch says it."""
    said = ("can't allocate memory", "CUDA out of memory", "Storage size calculation overflowed")
    return isinstance(error, MemoryError) or any(text in str(error) for text in said)


def hint() -> str:
    """How to see more of an error, for the end of its line."""
    return "" if traceback_wanted() else f"; {TRACEBACK}=1 shows the whole traceback"
