"""Print the script that completes commands, options, files and packaged jobs in a shell."""

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_type_hints

from hpcfl.errors import JobError
from hpcfl.io.packages import require
from hpcfl.runs.job_file.packaged import packaged_jobs

SHELLS = ("bash", "zsh")
_JOBS = {"bash": "_hpcfl_jobs", "zsh": "_hpcfl_jobs"}
# Files, for a job of one's own, and the packaged jobs.
_PREAMBLE = {
    "bash": '_hpcfl_jobs() {{\n  compgen -f -- "$1"\n  compgen -W "{names}" -- "$1"\n}}\n',
    "zsh": '_hpcfl_jobs() {{\n  _files -g "*.yaml"\n  compadd -- {names}\n}}\n',
}


class PrintCompletion(argparse.Action):
    """The option --print-completion SHELL, which prints the script and ends."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        """Print the script of the shell, and exit."""
        try:
            sys.stdout.write(completion(parser, values))
        except JobError as e:
            parser.exit(e.exit_code, f"JobError: {e}\n")
        parser.exit()


def completion(parser: argparse.ArgumentParser, shell: str) -> str:
    """The script of a shell, "bash" or "zsh".

    Raises:
        JobError: shtab is not installed.
    """
    require("shtab", "--print-completion", "complete")
    import shtab

    for command in _commands(parser):
        for action in command._actions:
            if action.dest in ("job", "sweep"):
                action.complete = _JOBS  # type: ignore[attr-defined]  # which shtab reads
            elif _makes_path(action.type):
                action.complete = shtab.FILE  # type: ignore[attr-defined]
    names = " ".join(packaged_jobs())
    script: str = shtab.complete(parser, shell, preamble=_PREAMBLE[shell].format(names=names))
    return script


def _makes_path(convert: Any) -> bool:
    """Whether the function that reads an argument returns a path."""
    return callable(convert) and get_type_hints(convert).get("return") is Path


def _commands(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    """The parser and those of all its commands."""
    yield parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for command in action.choices.values():
                yield from _commands(command)
