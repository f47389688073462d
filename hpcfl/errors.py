"""The errors of hpcfl, and the conversion of others into errors of one line.

There is a class for each exit code, and for each case that a caller treats differently.
"""

import errno
import os
import sysconfig
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

INTERRUPTED = 130
"""The exit code of a command that Ctrl-C (SIGINT) ended without a checkpoint to resume from."""
TRACEBACK = "HPCFL_TRACEBACK"  # the variable that, set to 1, also prints an error's traceback
_LONG = 4000  # characters of a message
_HPCFL = Path(__file__).parent
_PYTHON = Path(sysconfig.get_path("stdlib"))
_INSTALLED = ("site-packages", "dist-packages")
_GENERATED = "<string>"
_CALLERS = ("torch", "numpy", "pydantic")  # installed packages that call a user's code
# The file system is full, over a quota or a limit, read-only, or fails; network file systems report
# the last five when a server is lost.
_DISK_FAILURES = frozenset(
    number
    for name in (
        *("ENOSPC", "EDQUOT", "EFBIG", "EROFS", "EIO", "ENXIO", "ENODEV", "EUCLEAN"),
        *("ESTALE", "ETIMEDOUT", "EREMOTEIO", "ENOTCONN", "ESHUTDOWN"),
    )
    if (number := getattr(errno, name, None)) is not None  # not every system has all of them
)
# Sockets raise these, too, so they count as disk failures only if the error names a file.
_OF_SOCKETS = (errno.ETIMEDOUT, errno.ENOTCONN, errno.ESHUTDOWN)


def one_line(text: str) -> str:
    """Make a text one printable line: cut if long, line breaks as spaces, the rest escaped."""
    text = text.rstrip()
    cut = text if len(text) <= _LONG else f"{text[:_LONG]}..."
    return printable(cut).replace("\n", " ")


def printable(text: str) -> str:
    """A text in which a terminal finds nothing to obey but line breaks; the rest is escaped.

    Names of files and texts of a history may hold anything.
    """
    return "".join(
        c if c.isprintable() or c == "\n" else " " if c.isspace() else ascii(c)[1:-1] for c in text
    )


def user_code_location(error: BaseException) -> str:
    """Find the innermost line of the user's own code in an error's traceback.

    Returns:
        " in NAME (FILE:LINE)", or "" if no line of the traceback is the user's.
    """
    frames = [(frame.f_code, line) for frame, line in traceback.walk_tb(error.__traceback__)]
    found = [(Path(code.co_filename), line, code.co_name) for code, line in frames]
    found = [at for at in found if not _is_ours(at[0])]
    # Methods that dataclasses make have no file.
    found = [at for at in found if str(at[0]) != _GENERATED] or found
    outside = [at for at in found if not _package(at[0])]
    # A class of the user's may be installed too, by an entry point.
    own = outside or [at for at in found if _package(at[0]) not in _CALLERS]
    return f" in {own[-1][2]} ({own[-1][0]}:{own[-1][1]})" if own else ""


def defined(function: Callable[..., Any]) -> str:
    """The definition of a user's function, in the form of ``user_code_location``.

    "" for a function of hpcfl.
    """
    code = getattr(function, "__code__", None)
    if code is None:
        return ""
    file = Path(code.co_filename)
    if _is_ours(file) or _package(file) in _CALLERS:
        return ""
    return f" in {code.co_name} ({code.co_filename}:{code.co_firstlineno})"


def ended_program(error: SystemExit) -> "HookError":
    """The error to report where code of the job called ``sys.exit``, which hpcfl itself never does.

    The code that it was given is not the program's: 3 would say that the run diverged.
    """
    where = user_code_location(error)
    return HookError(f"code of the job ended the program{where}: sys.exit({error.code!r})")


def is_fault_of_hpcfl(error: BaseException, *called: object) -> bool:
    """Whether an error is a fault of hpcfl: neither code nor a class of the user was involved.

    Such an error keeps its traceback.  Running out of memory is never a fault of hpcfl: the job
    needs too much, whichever code allocates it.

    Args:
        error: any.
        called: the objects of the job that were called: its algorithm, its model, its data.
    """
    package = __name__.partition(".")[0]
    of_user = any(type(part).__module__.partition(".")[0] != package for part in called)
    return not (of_user or user_code_location(error) or lacks_memory(error))


def described(error: BaseException, *, otherwise: str = "") -> str:
    """Describe an error with its location: " in NAME (FILE:LINE): TYPE: MESSAGE".

    Args:
        error: any.
        otherwise: the location if no line of the traceback is the user's.
    """
    if isinstance(error, BrokenRuleError):
        return f"{error.location}: {error}"
    text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    return f"{user_code_location(error) or otherwise}: {text}"


def traceback_wanted() -> bool:
    """Whether the user asked for whole tracebacks."""
    return os.environ.get(TRACEBACK, "") not in ("", "0")


def print_traceback(error: BaseException) -> None:
    """Print the whole traceback of an error on standard error, if the user asked for it."""
    if traceback_wanted():
        traceback.print_exception(error.__cause__ or error)


def is_of_user(file: Path) -> bool:
    """Whether a file is neither Python's nor hpcfl's nor that of an installed package."""
    return not (_is_ours(file) or _package(file))


def _is_ours(file: Path) -> bool:
    """Whether a file is hpcfl's or Python's own."""
    if str(file).startswith("<frozen ") or file.is_relative_to(_HPCFL):
        return True
    return file.is_relative_to(_PYTHON) and not _package(file)


def _package(file: Path) -> str:
    """The installed package that a file belongs to; "" for a file that is not installed."""
    parts = file.parts
    ends = [k for k, part in enumerate(parts) if part in _INSTALLED]
    return parts[ends[-1] + 1] if ends else ""


class BrokenRuleError(TypeError):
    """A hook of an algorithm breaks a rule of ``hpcfl/algorithms/base.py``.

    Args:
        message: which rule, and what to do.
        location: of the hook, in the form of the function ``user_code_location``.
        collective: whether every rank raises it at this point.
    """

    def __init__(self, message: str, location: str = "", *, collective: bool = False) -> None:
        super().__init__(message)
        self.location, self.collective = location, collective


class HpcflError(Exception):
    """An error with a complete message, which is printed as one line without a traceback.

    ``str`` of it has no line break and no control character, whatever names a job or a file has.

    Args:
        message: where, what was found, what was expected, what to do.
        collective: whether every rank raises an error at this point, so that all can close the
            group; None: the class's value.
        prints: whether this rank prints the error though it is not rank 0.
        exit_code: of the process; None: the class's value.
    """

    exit_code = 1
    collective = False
    prints = False

    def __init__(
        self,
        message: str,
        *,
        collective: bool | None = None,
        prints: bool = False,
        exit_code: int | None = None,
    ) -> None:
        super().__init__(message)
        if collective is not None:
            self.collective = collective
        if exit_code is not None:
            self.exit_code = exit_code
        self.prints = prints

    def __str__(self) -> str:
        return one_line(super().__str__())


class JobError(HpcflError):
    """The job, the arguments or a file the user named is wrong; nothing was trained."""

    exit_code = 2


class DataError(JobError):
    """A data file is missing, damaged or not what the job says."""


class StoreError(JobError):
    """A file of a run (a store, a checkpoint, a log) is missing, damaged or of another run."""


class DiskError(HpcflError):
    """A file cannot be written or read: the file system is full, over a quota, read-only or fails.

    Neither the job nor a file's content is wrong: the same command continues once a person has made
    room or repaired the file system.  The exit code is EX_IOERR of sysexits.h.
    """

    exit_code = 74


def is_disk_failure(error: OSError) -> bool:
    """Whether the file system failed, rather than the path or the permissions being wrong."""
    return error.errno in _DISK_FAILURES


def file_error(error: OSError, message: str, otherwise: type[HpcflError]) -> HpcflError:
    """Make the error to raise for an OSError about a file.

    Args:
        error: the system's.
        message: which file, what failed and what to do.
        otherwise: the class to use unless the file system itself failed.
    """
    return (DiskError if is_disk_failure(error) else otherwise)(message)


def as_disk_error(error: BaseException, path: Path | None = None) -> DiskError | None:
    """Convert an OSError of a failing file system to a DiskError; None for every other error.

    Args:
        error: any.
        path: the file, if the error names none, as errors of reads and writes do.
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
    """Convert a failure of the file system in the block to a DiskError; other errors pass.

    Args:
        path: the file that the block reads or writes, if it uses only one.

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
    """A class of the user raised in a round, outside the training of a client."""


class ClientError(HpcflError):
    """An algorithm, a model or a data set raised during the training of a client.

    Args:
        client: the client's id.
        round: counted from one, as in the log.
        step: the local step, from zero, or None outside the local loop.
        stage: "begin", "step", "finish" or "full gradient".
    """

    def __init__(self, client: int, round: int, step: int | None, stage: str) -> None:
        where = f"client {client}, round {round}, " + (stage if step is None else f"step {step}")
        super().__init__(where)

    def __str__(self) -> str:
        cause = self.__cause__
        return one_line(
            f"{self.args[0]}{described(cause)}{traceback_hint()}" if cause else self.args[0]
        )


class RankError(HpcflError):
    """Ranks cannot connect, were lost, or differ in a value that must be the same on all."""


REPEAT = 75
"""The exit code of a command that is to be given again: it was stopped, or must wait for another
process.  EX_TEMPFAIL of sysexits.h; ``hpcfl.cli.batch`` has such a job requeued."""


class Stopped(HpcflError):
    """A signal asked the run to stop; a checkpoint was written and the job may be requeued."""

    exit_code = REPEAT
    collective = True


class LostFileError(HpcflError):
    """A file or folder of the run was deleted, replaced or changed while the run used it."""


class SweepError(HpcflError):
    """Runs of a sweep failed."""


class RemoteRankError(HpcflError):
    """Another rank failed, and reports the reason."""

    collective = True

    def __init__(self, exit_code: int, message: str = "another rank failed") -> None:
        super().__init__(message, exit_code=exit_code)


@contextmanager
def convert_errors(convert: Callable[[Exception], HpcflError | None]) -> Iterator[None]:
    """Convert the errors of the block; those of hpcfl pass unchanged.

    Args:
        convert: returns the error to raise instead, or None to let the original pass.

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
    where: str,
    does: str,
    at: str,
    *called: object,
    advice: str | Callable[[Exception], str] = "",
    blames: Callable[[Exception], bool] | None = None,
) -> Iterator[None]:
    """Convert an error that code of the job raises before round 1 to a JobError of one line.

    An error of hpcfl itself keeps its traceback: no class and no line of the user's took part.

    Args:
        where: the key of the job that names the class, and its value.
        does: what failed: "cannot load the data".
        at: the definition of what is called (see ``defined``), which is named if the traceback has
            no line of the user's; "" if hpcfl defines it.
        called: the objects of the job that the block calls.
        advice: what to do, or a function that says it of an error.
        blames: whether the job is at fault though every class is hpcfl's.

    Raises:
        JobError: the block raised, and the code is the user's or ran out of memory.
        DiskError: a file could not be written or read because the disk is full or fails.
    """

    def convert(e: Exception) -> JobError | None:
        of_job = bool(at) or isinstance(e, BrokenRuleError) or (blames is not None and blames(e))
        if is_fault_of_hpcfl(e, *called) and not of_job:
            return None
        cure = advice if isinstance(advice, str) else advice(e)
        # A broken rule is said in full, and no traceback would say more.
        hint = "" if isinstance(e, BrokenRuleError) else traceback_hint()
        return JobError(f"{where}: {does}{described(e, otherwise=at)}{cure}{hint}")

    with convert_errors(convert):
        yield


def lacks_memory(error: BaseException) -> bool:
    """Whether an error means that memory cannot be allocated, as raised by numpy or torch."""
    texts = ("can't allocate memory", "CUDA out of memory", "Storage size calculation overflowed")
    return isinstance(error, MemoryError) or any(text in str(error) for text in texts)


def traceback_hint() -> str:
    """How to see an error's traceback, for the end of its line."""
    return "" if traceback_wanted() else f"; {TRACEBACK}=1 shows the whole traceback"
