"""Run a command of ``hpcfl``, and end with its exit code."""

from __future__ import annotations

import argparse
import errno
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from pkgutil import resolve_name

from hpcfl.cli.output import may_print
from hpcfl.cli.parser import parse
from hpcfl.errors import (
    DiskError,
    HpcflError,
    JobError,
    RemoteRankError,
    Stopped,
    as_disk_error,
    ended_program,
    print_traceback,
)
from hpcfl.io import signals


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command.

    Returns:
        The exit code: 0 done, 2 the job, the arguments or the files are wrong, 3 diverged,
        74 a file cannot be written or read because a disk is full, over its quota, read-only or
        fails, 75 stopped by a signal with a checkpoint or another process is alive in the
        directory, 130 by Ctrl-C without one, 1 anything else.
    """
    options = parse(arguments)
    try:
        if options.command not in ("run", "resume"):  # runs install their own handlers
            signals.raise_on_interrupt()
        _require_current_directory()
        _run_command(options)
        sys.stdout.flush()
    except KeyboardInterrupt:
        return _print_interrupted(options.command)
    except BrokenPipeError:  # `hpcfl list | head` has closed the pipe: also skip the flush at exit
        _discard(1)
        return 1
    except RemoteRankError as e:
        return e.exit_code
    except HpcflError as e:
        return _print_hpcfl_error(e)
    except OSError as e:
        if e.errno not in (errno.ENAMETOOLONG, errno.ELOOP):
            return _print_disk_error(e)  # such as of standard output
        where = "an argument" if e.filename is None else os.fsdecode(e.filename)
        return _print_hpcfl_error(JobError(f"{where}: {e.strerror}; choose another name"))
    return 0


def _require_current_directory() -> None:
    """Refuse to begin in a directory that was deleted, where torch's MKL ends the process itself.

    Raises:
        DiskError: it was.
    """
    try:
        Path.cwd()
    except OSError as e:
        message = f"the current directory cannot be found ({e.strerror}); change to another"
        raise DiskError(message) from e


def _run_command(options: argparse.Namespace) -> None:
    """Run the command that was chosen.

    Raises:
        HookError: code of the job called ``sys.exit``.
        JobError: an earlier version had the command.
    """
    try:
        resolve_name(COMMANDS[options.command])(options)
    except SystemExit as e:
        raise ended_program(e) from e


def _print_hpcfl_error(error: HpcflError) -> int:
    """Print an error, if this rank is the one to do so; return its exit code."""
    if error.prints or may_print():
        _print_error(f"{type(error).__name__}: {error}", error)
    return error.exit_code


def _print_disk_error(error: OSError) -> int:
    """Print in one line that the disk failed; return the exit code.

    Raises:
        OSError: something else failed.
    """
    failure = as_disk_error(error)
    if failure is None:
        raise error
    _print_error(f"{type(failure).__name__}: {failure}")
    try:
        sys.stdout.flush()
    except OSError:  # it is on the full disk: skip the flush at exit
        _discard(1)
    return failure.exit_code


def _print_interrupted(command: str) -> int:
    """Print a line about Ctrl-C; return the exit code."""
    code = signals.interrupt_exit_code()
    stands = "; the last checkpoint stands: resume to continue" * (code == Stopped.exit_code)
    if may_print():
        _print_error(f"hpcfl {command}: interrupted{stands}")
    return code


def _print_error(line: str, error: HpcflError | None = None) -> None:
    """Print the last line of a command to standard error, if it can be written.

    Args:
        line: the line.
        error: its traceback follows, if the user has set the variable for it.
    """
    try:
        print(line, file=sys.stderr)
        if error is not None:
            print_traceback(error)
        if sys.stderr is not None:
            sys.stderr.flush()
    except OSError:  # it is on the full disk, or its pipe is closed: skip the flush at exit
        _discard(2)


def _discard(output: int) -> None:
    """Write nothing more to standard output (1) or standard error (2)."""
    with suppress(OSError):  # no file descriptor is left; the exit code is still right
        os.dup2(os.open(os.devnull, os.O_WRONLY), output)


COMMANDS = {
    "batch begin": "hpcfl.cli.batch:print_begin",
    "batch end": "hpcfl.cli.batch:print_end",
    "check": "hpcfl.cli.jobs:check",
    "cite": "hpcfl.cli.results:cite",
    "data export-split": "hpcfl.cli.jobs:data_export_split",
    "data prepare": "hpcfl.cli.jobs:data_prepare",
    "data show": "hpcfl.cli.jobs:data_show",
    "export": "hpcfl.cli.results:export",
    "init": "hpcfl.cli.jobs:init",
    "list": "hpcfl.cli.jobs:list_names",
    "plan": "hpcfl.cli.jobs:plan",
    "report": "hpcfl.cli.results:report",
    "resume": "hpcfl.cli.jobs:resume",
    "run": "hpcfl.cli.jobs:run",
    "selftest": "hpcfl.cli.jobs:selftest",
    "status": "hpcfl.cli.results:status",
    "sweep": "hpcfl.cli.sweeps:sweep",
}
"""The function of each command, imported when it is asked for: ``hpcfl --help`` is instant."""
