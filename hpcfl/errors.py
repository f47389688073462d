"""What can go wrong, one class per exit code or per thing the caller must know."""

import errno

_LONG = 4000  # characters of a message
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


def one_line(text: str) -> str:
    """The text, cut where it is long; line breaks are spaces, what else is not seen is escaped."""
    text = text.rstrip()
    cut = text if len(text) <= _LONG else f"{text[:_LONG]}..."
    return "".join(c if c.isprintable() else " " if c.isspace() else ascii(c)[1:-1] for c in cut)


class HpcflError(Exception):
    """An error whose message is complete: it is printed as one line, without a traceback.

    Whatever names a job or a file holds, a message has no line break and nothing that a terminal
    obeys.
    """

    exit_code = 1
    collective = False
    """Whether every rank raises one at this point, so that the group can be left in good order."""
    speaker = False
    """Whether this rank says it for all, though it may not be rank 0."""

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


def as_disk_error(error: BaseException) -> DiskError | None:
    """A failure of the file system that nobody has told yet, as the error that tells it.

    None where ``error`` is something else.
    """
    if not (isinstance(error, OSError) and is_disk_failure(error)):
        return None
    where = error.filename2 or error.filename
    made = DiskError(f"{where}: {error.strerror}" if where else f"{error.strerror}")
    made.__cause__ = error
    return made


class DivergedError(HpcflError):
    """A client's update or the server's step is not finite; the last checkpoint stands."""

    exit_code = 3
    collective = True


class ClientError(HpcflError):
    """An algorithm, a model or a data set raised while one client was being trained.

    Args:
        client: the client's id.
        round: counted from one, as the log does.
        step: the local step, from zero, or None outside the local loop.
        stage: what the client was doing: "begin", "step", "finish", "survey".
    """

    def __init__(self, client: int, round: int, step: int | None, stage: str) -> None:
        self.client, self.round, self.step, self.stage = client, round, step, stage
        where = f"client {client}, round {round}, " + (stage if step is None else f"step {step}")
        super().__init__(where)

    def __str__(self) -> str:
        cause = self.__cause__
        said = f"{self.args[0]}: {type(cause).__name__}: {cause}" if cause else self.args[0]
        return one_line(said)


class RankError(HpcflError):
    """Ranks disagree on what must be the same everywhere, or the launcher and MPI do not match."""


class Stopped(HpcflError):
    """A signal asked the run to stop; a checkpoint was written and the job may be requeued."""

    exit_code = 75
    collective = True


class SweepError(HpcflError):
    """Runs of a sweep failed."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code


class Elsewhere(HpcflError):
    """Another rank failed, and it is the one that says why."""

    collective = True

    def __init__(self, exit_code: int) -> None:
        super().__init__("another rank failed")
        self.exit_code = exit_code
