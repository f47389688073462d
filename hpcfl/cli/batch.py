"""Say what a batch script is to start, and whether it is to start it again.

slurm/run.sh and the scripts of docs/howto/schedulers.md handle signals, launchers and copies of
data.  What needs no scheduler is decided here: they ask `hpcfl batch begin` before the ranks, and
`hpcfl batch end` after them.  The starts of one submission are counted in OUT.NAME.starts beside
the run directory.  torch is loaded for a sweep alone.
"""

import json
import os
import shlex
import sys
from argparse import Namespace
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple, Self

from hpcfl.cli.parser import parse
from hpcfl.errors import INTERRUPTED, REPEAT, DiskError, DivergedError, JobError
from hpcfl.io.atomic import write_file
from hpcfl.io.files import parse_json, present
from hpcfl.io.regular import read
from hpcfl.runs.job_file.packaged import kind_of
from hpcfl.runs.job_file.run_name import run_directory
from hpcfl.runs.manifest import committed_folders
from hpcfl.runs.names import FILE, require_kind
from hpcfl.runs.requests import Request, is_done

Kind = Literal["job", "sweep", "run"]
_HISTORY = "history.jsonl"
_AGAIN = "the same command would end so again"
# The exit codes after which no start follows, and why.
_FINAL = {
    0: "finished",
    JobError.exit_code: _AGAIN,
    DivergedError.exit_code: _AGAIN,
    DiskError.exit_code: "a disk is full, over its quota, read-only or fails; make room or repair "
    "it, then submit again",
    INTERRUPTED: "interrupted by hand",
}


class Submission(NamedTuple):
    """What the words and the environment of a batch script mean."""

    kind: Kind
    """What the first word names: the file of a job or a sweep, or the directory of a run."""
    out: Path
    """The directory of the run, or of the sweep's runs."""
    runs: tuple[Path, ...]
    """The directory of each run."""
    words: tuple[str, ...]
    """Those of hpcfl in every start."""
    later: tuple[str, ...] | None = None
    """Those of the starts after the one that has had an effect, where that was to happen once:
    going back to a round, copying the run, or changing its settings."""
    base: int = 0
    """The round from which a resume with ``later`` begins."""


@dataclass(frozen=True)
class Start:
    """One start of a submission, as the file that counts the starts keeps it."""

    number: int
    """How many starts in a row, this one included, began with the same ``rounds``."""
    rounds: Mapping[str, int]
    """The highest round that was committed so far, of each run by its directory."""
    history: int = -1
    """How many starts the history of the run had when the submission began; -1 where the words are
    the same in every start.  Only a start that has gone back, copied or changed it adds one."""

    @classmethod
    def read(cls, file: Path) -> Self | None:
        """The start that was written last; None where there is none.

        Raises:
            JobError: the file is another one.
        """
        if not present(file):
            return None
        require_kind(file, FILE, of="submission")
        try:
            found = cls(**json.loads(read(file)))
            return replace(found, rounds={str(k): int(v) for k, v in found.rounds.items()})
        except (OSError, ValueError, TypeError, AttributeError) as e:
            raise JobError(
                f"{file}: holds no count of the starts of a submission ({e}), which is written "
                "there; move it elsewhere"
            ) from e

    def write(self, file: Path) -> None:
        """Replace the file.

        Raises:
            DiskError, StoreError: it cannot be written.
        """
        write_file(file, json.dumps(asdict(self)).encode())


class Verdict(NamedTuple):
    """Whether a start is followed by another, and why."""

    again: bool
    reason: str


def next_start(before: Start | None, reached: Mapping[str, int], history: int = -1) -> Start:
    """Count one more start.

    Args:
        before: the start before; None: this is the first of the submission.
        reached: the newest committed round of each run.
        history: of the first start.
    """
    if before is None:
        return Start(1, dict(reached), history)
    highest = {run: max(round, before.rounds.get(run, 0)) for run, round in reached.items()}
    number = before.number + 1 if highest == before.rounds else 1
    return Start(number, highest, before.history)


def judge(
    status: int,
    start: Start,
    *,
    moved: bool,
    most: int,
    asked_s: int | None = None,
    because: str = "",
) -> Verdict:
    """Decide whether a start that has ended is to be followed by another.

    Args:
        status: its exit code.
        start: how it began.
        moved: whether a run has committed a higher round than any start before.
        most: how many starts in a row may end without that.
        asked_s: after how many seconds a signal asked the start to stop; None: none did.
        because: why the ranks were not started at all, if they were not.
    """
    code = f"exit code {status}"
    if status in _FINAL:
        return Verdict(False, f"{code}: {_FINAL[status]}")
    killed = status > 128  # a signal ended a rank, or the launcher
    if because:
        reason = because
    elif status == REPEAT:
        reason = code
    elif asked_s is not None and killed:  # while it started, by a signal that it did not know yet
        reason = f"stopped by {code}"
    elif moved:
        reason = f"{code} after new checkpoints"
    else:  # a rank was killed, a node was lost, none could be started, or the program is wrong
        reason = f"{code} and no checkpoint since the start"
        if not killed and not any(start.rounds.values()):
            return Verdict(False, reason)
    if moved or start.number < most:
        return Verdict(True, reason)
    reason += f"; {start.number} starts in a row came to no new checkpoint (HPCFL_MAX_STARTS)"
    if asked_s is not None:
        reason += (
            f"; the signal to stop came {asked_s} s after the start: raise the time limit, or "
            "shorten the lead of the signal (sbatch --signal=B:USR1@SECONDS)"
        )
    return Verdict(False, reason)


def read_submission(words: Sequence[str], environ: Mapping[str, str]) -> Submission:
    """Find what a batch script is to start.

    Args:
        words: those that it was given: a job, a sweep or the directory of a run, and more.
        environ: with the variables that slurm/run.sh lists.

    Raises:
        JobError: they exclude each other, or name nothing.
    """
    if not words:
        raise JobError("batch begin: found no job; name a job, a sweep, or the directory of a run")
    task, out = environ.get("HPCFL_TASK"), environ.get("HPCFL_OUT")
    kind = task or kind_of(Path(words[0]))
    seed, stage = environ.get("HPCFL_SEED"), environ.get("HPCFL_STAGE")
    index, pack = environ.get("HPCFL_INDEX"), _count(environ, "HPCFL_PACK", 1)
    match kind:
        case "job":
            if index and pack != 1:
                raise JobError("HPCFL_PACK packs points of a sweep; make one with the axis seed")
            return _of_job(words, out, index or seed, environ if stage else {})
        case "sweep":
            if stage or seed:
                raise JobError(
                    f"{words[0]} is a sweep; HPCFL_STAGE and HPCFL_SEED are for a job: the axes of "
                    "a sweep may have the seed, and its job the folder of the data"
                )
            return _of_sweep(words, out, int(index) if index else None, pack)
        case "run":
            if index or out or stage or seed:
                raise JobError(
                    f"{words[0]} is the directory of a run, which is resumed there, with its data; "
                    "leave out HPCFL_OUT, HPCFL_STAGE, HPCFL_SEED and the array, or name a job"
                )
            return _of_run(words)
    raise JobError(f"HPCFL_TASK: found {task}, expected job, sweep or run")


def _of_job(
    words: Sequence[str], named: str | None, seed: str | None, staged: Mapping[str, str]
) -> Submission:
    """The run of a job.

    Args:
        words: the job and its settings.
        named: the directory, if it is named.
        seed: a seed of its own.
        staged: the environment where data are copied to the nodes, else empty.
    """
    options = _options("run", words)
    out = options.out or named
    if not out:
        # By what the user said alone: neither a seed nor the disks of the nodes make another.
        out = f"{run_directory(options.job, options.overrides)}{'-seeds' if seed else ''}"
    out, more = Path(out), []
    if seed:
        out /= f"seed{seed}"
        more.append(f"seed={seed}")
    if staged:
        # Data must stay where the run found them; states may move, to a folder that the site
        # clears.  Behind the user's settings, as one of these may be the whole section.
        for word in options.overrides:
            if word.startswith("data.root="):
                raise JobError(
                    f"{word}: staged data are read from the nodes; HPCFL_DATA says from where they "
                    "are copied"
                )
        scratch = staged["HPCFL_SCRATCH"]
        more.append(f"data.root={scratch}")
        if not any(word.startswith(("store.dir=", "store=")) for word in options.overrides):
            more.append(f"store.dir={staged.get('SLURM_TMPDIR') or scratch}")
    return Submission("job", out, (out,), ("run", *words, *more, "--out", str(out), "--continue"))


def _of_sweep(words: Sequence[str], named: str | None, index: int | None, pack: int) -> Submission:
    """The runs of a sweep, or those of one task of an array."""
    from hpcfl.tools.sweep.grid import read_sweep

    options = _options("sweep", words)
    if index is not None:
        if options.only is not None or options.points is not None:
            raise JobError(
                f"{'--points' if options.only is None else '--only'}: an array runs points of the "
                "whole sweep; put those that you want into a sweep file of their own"
            )
        first = index * pack
        words = [*words, "--points", f"{first}-{first + pack - 1}", "--parallel", str(pack)]
        options = _options("sweep", words)
    sweep = read_sweep(options.sweep, options.overrides)
    out = options.out or Path(named or sweep.directory)
    runs = tuple(out / point.name for point in sweep.chosen(options.points, options.only).points)
    return Submission("sweep", out, runs, ("sweep", *words, "--out", str(out)))


def _of_run(words: Sequence[str]) -> Submission:
    """A run that is resumed: as the words say until that has had an effect, later as it is then."""
    options = _options("resume", words)
    out = options.out or options.dir
    on = ("resume", str(out), *["--no-verify"] * options.no_verify)
    if _is_served(options):
        sys.stderr.write(
            f"batch begin: {out}: the same command began this before; it goes on from round "
            f"{_newest(out)}\n"
        )
        return Submission("run", out, (out,), on)
    later, base = None, 0
    if options.out or options.overrides or options.round is not None:
        later = on
        base = _newest(options.dir)
        base = base if options.round is None else min(base, options.round)
    return Submission("run", out, (out,), ("resume", *words), later, base)


def _is_served(options: Namespace) -> bool:
    """Whether an earlier start has gone back or copied as asked, also one of another submission."""
    asked = Request(options.round, tuple(options.overrides))
    if options.out:
        return is_done(_history(options.out), asked, options.dir)
    if options.round is None or _newest(options.dir) <= options.round:
        return False
    return is_done(_history(options.dir), asked)


def begin(
    name: str, words: Sequence[str], environ: Mapping[str, str], *, first: bool = False
) -> str:
    """Count a start, and say what it is to run, as assignments of a shell.

    Args:
        name: the same for all starts of a submission.
        words: see ``read_submission``.
        environ: see ``read_submission``.
        first: whether no start of this submission can have been before.

    Raises:
        JobError: see ``read_submission``; or too many starts came to no new checkpoint.
        DiskError: the start cannot be written down.
    """
    found, most = read_submission(words, environ), _most(environ)
    file = Path(f"{found.out}.{name}.starts")
    known = Start.read(file)  # also of a first start, as it refuses another file there
    before = None if first else known
    command, reached, history = found.words, {str(run): _newest(run) for run in found.runs}, -1
    if found.later is not None:
        history = _starts_in_history(found.out)
        if before is not None and history > before.history:
            command = found.later
        else:  # what is there still is not what this submission begins with
            reached = {str(found.out): found.base}
    start = next_start(before, reached, history)
    if start.number > most:
        file.unlink(missing_ok=True)
        raise JobError(
            f"start {start.number} is not begun: {most} starts in a row came to no new checkpoint "
            "(HPCFL_MAX_STARTS)",
            exit_code=1,
        )
    found.out.parent.mkdir(parents=True, exist_ok=True)
    start.write(file)
    return _assignments(
        kind=found.kind,
        out=str(found.out),
        runs=[str(run) for run in found.runs],
        words=command,
        counter=str(file),
        wait_s=str(_count(environ, "HPCFL_WAIT_S", 900)),
    )


def end(
    file: Path, status: int, environ: Mapping[str, str], *, asked_s: int | None, because: str
) -> str:
    """Say whether a start is to be followed by another, as assignments of a shell.

    Args:
        file: the counter of ``begin``.
        status: the start's exit code.
        environ: see ``read_submission``.
        asked_s: see ``judge``.
        because: see ``judge``.

    Raises:
        JobError: the file is gone.
    """
    start = Start.read(file)
    if start is None:
        raise JobError(f"{file}: cannot be read; submit again")
    moved = any(_newest(Path(run)) > round for run, round in start.rounds.items())
    if start.history >= 0:
        moved = moved and _starts_in_history(Path(*start.rounds)) > start.history
    found = judge(status, start, moved=moved, most=_most(environ), asked_s=asked_s, because=because)
    return _assignments(again="1" if found.again else "", reason=found.reason)


def _options(command: str, words: Sequence[str]) -> Namespace:
    """The options of ``hpcfl COMMAND WORDS``.

    Raises:
        JobError: it takes no such words.
    """
    try:
        return parse([command, *words])
    except SystemExit as e:  # it has printed why
        line = shlex.join(["hpcfl", command, *words])
        raise JobError(f"{line}: is no command; correct the arguments") from e


def _most(environ: Mapping[str, str]) -> int:
    """How many starts in a row may come to no new checkpoint."""
    return _count(environ, "HPCFL_MAX_STARTS", 3)


def _count(environ: Mapping[str, str], name: str, default: int) -> int:
    text = environ.get(name) or str(default)
    if not (text.isascii() and text.isdigit() and int(text)):
        raise JobError(f"{name}: found {text}, expected a whole number above 0")
    return int(text)


def _newest(run: Path) -> int:
    """The newest committed round of a run; 0 where there is none."""
    return max((int(folder.name) for folder in committed_folders(run / "checkpoints")), default=0)


def _starts_in_history(run: Path) -> int:
    """How many entries the history of a run has; 0 where there is none."""
    return len(_history(run))


def _history(run: Path) -> list[Mapping[str, Any]]:
    """The entries of the history of a run, without damaged ones, which its start names."""
    file, entries = run / _HISTORY, []
    for line in read(file).splitlines() if present(file) else ():
        with suppress(ValueError):
            entries.append(parse_json(line))
    return [entry for entry in entries if isinstance(entry, dict)]


def _assignments(**values: str | Sequence[str]) -> str:
    """Variables and arrays, for bash's ``eval``."""
    return "\n".join(
        f"{key}={shlex.quote(value) if isinstance(value, str) else f'({shlex.join(value)})'}"
        for key, value in values.items()
    )


def print_begin(options: Namespace) -> None:
    """The command ``hpcfl batch begin``."""
    print(begin(options.name, options.words, os.environ, first=options.first))


def print_end(options: Namespace) -> None:
    """The command ``hpcfl batch end``."""
    counter, status, asked_s = options.counter, options.status, options.asked
    print(end(counter, status, os.environ, asked_s=asked_s, because=options.because))
