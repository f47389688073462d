"""What can go wrong, one class per exit code or per thing the caller must know."""

INTERRUPTED = 130
"""The exit code of what Ctrl-C (SIGINT) ended, with no checkpoint to go on from."""
_LONG = 4000  # characters of a message


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


class LostFileError(HpcflError):
    """A file or folder of the run was deleted, replaced or cut while the run was alive."""


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
