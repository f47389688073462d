"""Run the commands of ``hpcfl``; only this module prints their results."""

from __future__ import annotations

import argparse
import errno
import json
import os
import sys
import warnings
from collections.abc import Sequence
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from hpcfl.cli.parser import parse
from hpcfl.errors import (
    DiskError,
    HpcflError,
    JobError,
    RankError,
    RemoteRankError,
    Stopped,
    as_disk_error,
    ended_program,
    print_traceback,
    printable,
)
from hpcfl.io import signals

if TYPE_CHECKING:
    from hpcfl.runs.record import RunRecord
    from hpcfl.tools.report.choose import ChosenRuns
    from hpcfl.tools.report.plots import Plot
    from hpcfl.tools.report.rounds_to_target import Target
    from hpcfl.tools.sweep.grid import Sweep


# Modules that need torch are imported by the commands that use them: `hpcfl --help` is instant.


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
        COMMANDS[options.command](options)
    except SystemExit as e:
        raise ended_program(e) from e


def _print_hpcfl_error(error: HpcflError) -> int:
    """Print an error, if this rank is the one to do so; return its exit code."""
    if error.prints or _may_print():
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
    if _may_print():
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


def _say(text: object, *, file: TextIO | None = None, end: str = "\n") -> None:
    """Print a text for people, with nothing in it that a terminal obeys."""
    print(printable(str(text)), file=file, end=end)


def _say_path(path: Path) -> None:
    """Print a path that a script may read: as it is, but to a terminal."""
    print(printable(str(path)) if sys.stdout.isatty() else path)


def _may_print() -> bool:
    """Whether this process is rank 0, or its rank is unknown."""
    from hpcfl.comm.launcher import detect

    try:
        return detect(os.environ).rank == 0
    except RankError:
        return True


def _run(options: argparse.Namespace) -> None:
    out = options.out
    if options.continued:
        from hpcfl.runs.job_file.run_name import run_directory

        out = out or run_directory(options.job, options.overrides)
        signals.set_resumable(out)
    from hpcfl.start.objects import load_job
    from hpcfl.start.start import start

    loaded, kept_files = load_job(options.job, options.overrides, out=out)
    start(loaded, out, continued=options.continued, kept_files=kept_files)


def _resume(options: argparse.Namespace) -> None:
    signals.set_resumable(options.out or options.dir)
    from hpcfl.start.start import resume

    resume(
        options.dir,
        options.overrides,
        out=options.out,
        round=options.round,
        verify=not options.no_verify,
    )


def _check(options: argparse.Namespace) -> None:
    if options.where:  # a script may call this before every start, so torch is not imported
        from hpcfl.runs.job_file.run_name import run_directory

        print(run_directory(options.job, options.overrides))
        return
    if options.kind:
        from hpcfl.runs.job_file.packaged import kind_of

        print(kind_of(options.job))
        return
    from hpcfl.job.schema import load
    from hpcfl.tools.check import check_job

    _say(check_job(load(options.job, options.overrides), data=options.data))


def _plan(options: argparse.Namespace) -> None:
    from hpcfl.job.schema import load
    from hpcfl.tools.plan.data import read_sizes
    from hpcfl.tools.plan.show import make_plan

    first, *others = options.ranks or (None,)
    if others and options.epsilon is not None:
        raise JobError("plan: --epsilon: needs one number of --ranks")
    made = make_plan(
        load(options.job, options.overrides),
        first,
        options.out,
        measure_rounds=options.measure,
        sizes=None if options.sizes is None else read_sizes(options.sizes),
        ranks_per_node=options.ranks_per_node,
        words=[str(options.job), *options.overrides],
        epsilon=options.epsilon,
        others=others,
    )
    if not options.measure or _may_print():
        _say(made)


def _status(options: argparse.Namespace) -> None:
    from rich.console import Console

    from hpcfl.tools.status import follow, status

    console = Console()
    if options.follow and console.is_terminal:
        follow(options.dir, console)
    else:
        _say(status(options.dir))


def _sweep(options: argparse.Namespace) -> None:
    from hpcfl.tools.sweep.grid import read_grid, read_sweep
    from hpcfl.tools.sweep.own_files import require_folder

    read = read_grid if options.where else read_sweep
    sweep = read(options.sweep, options.overrides)
    root = options.out or sweep.directory
    sweep = sweep.chosen(options.points, options.only)
    if options.write_jobs:
        _require_alone(options)
    if options.where:
        for point in sweep.points:
            print(root / point.name)
        return
    require_folder(root)
    if options.write_jobs:
        _write_jobs(sweep, root)
    elif options.submit:
        _submit(options, sweep, root)
    else:
        _run_sweep(options, sweep, root)


def _require_alone(options: argparse.Namespace) -> None:
    """Refuse options that --write-jobs would ignore.

    Raises:
        JobError: the first of them.
    """
    others = ("submit", "parallel", "sbatch", "dry_run", "where")
    found = [f"--{name.replace('_', '-')}" for name in others if getattr(options, name)]
    if found:
        raise JobError(f"--write-jobs writes job files and starts nothing; leave out {found[0]}")


def _write_jobs(sweep: Sweep, root: Path) -> None:
    from hpcfl.tools.sweep.run_sweep import write_job_files

    for path in write_job_files(sweep, root):
        _say_path(path)


def _submit(options: argparse.Namespace, sweep: Sweep, root: Path) -> None:
    from hpcfl.tools.sweep.slurm import SlurmArray

    array = SlurmArray(sweep, options.overrides, root, options.parallel or 1, options.sbatch or "")
    _say(array.command_line() if options.dry_run else array.submit())


def _run_sweep(options: argparse.Namespace, sweep: Sweep, root: Path) -> None:
    from hpcfl.runs.names import REPORT
    from hpcfl.tools.report.choose import ChosenRuns
    from hpcfl.tools.report.collect import collect_runs
    from hpcfl.tools.sweep.pending import pending_runs, runs_table
    from hpcfl.tools.sweep.run_sweep import run_sweep

    if options.sbatch:
        raise JobError("--sbatch is for --submit")
    if options.dry_run:
        _say(runs_table(pending_runs(sweep, root)))
        return
    partly = options.points is not None or options.only is not None
    outcome = run_sweep(sweep, root, options.parallel, partly=partly)
    if outcome.finished and options.points is None:  # with --points, other tasks run the rest
        runs = collect_runs(outcome.finished).runs
        print(_table(ChosenRuns(runs), "runs", "table"), end="")
        if not partly:  # a plot of some points would take the place of that of the whole sweep
            _draw_report(runs, root / REPORT)
    outcome.check()


def _export(options: argparse.Namespace) -> None:
    if options.record:
        from hpcfl.tools.exports.record import export_record

        of_model = (options.output, options.state_dict, options.clients, options.best)
        if any(of_model) or options.client is not None:
            raise JobError("export: --record writes no model; export that by another command")
        if options.round is not None:
            raise JobError("export: --record copies the whole log; leave out --round")
        paths, missing = export_record(options.dir, options.record)
        for line in missing:
            _say(f"not in {options.record}: {line}", file=sys.stderr)
    else:
        from hpcfl.tools.exports.checkpoint import export

        with warnings.catch_warnings(record=True) as caught:
            paths = export(
                options.dir,
                round=options.round,
                npz=options.output,
                state_dict=options.state_dict,
                clients=options.clients,
                best=options.best,
                client=options.client,
            )
        for warning in caught:
            _say(warning.message, file=sys.stderr)
    for path in paths:
        _say_path(path)


def _report(options: argparse.Namespace) -> None:
    from hpcfl.runs.job_file.run_name import RUNS
    from hpcfl.runs.names import REPORT
    from hpcfl.runs.sweep_log import require_own_plot
    from hpcfl.tools.report.choose import ChosenRuns, choose_settings
    from hpcfl.tools.report.collect import collect_runs
    from hpcfl.tools.report.plots import Plot
    from hpcfl.tools.report.rounds_to_target import Target

    targets = Target.from_options(options.target, options.target_accuracy)
    collected = collect_runs(options.dirs)
    (folder,) = options.dirs if len(options.dirs) == 1 else (RUNS,)
    default = (RUNS if (folder / "job.yaml").exists() else folder) / REPORT
    asked = bool(options.y or options.x != "rounds")
    files = [path or default for path in options.plot] or [default] * asked
    if default in files and default not in options.plot:
        require_own_plot(default)
    if options.write_sweep is not None and not options.chosen:
        raise JobError("report: --write-sweep: writes the chosen settings; give --chosen, too")
    chosen = (choose_settings if options.chosen else ChosenRuns)(collected.runs)
    table = _table(chosen, options.layout, options.format, targets)
    # What cannot be drawn or written is refused before the table is printed.
    plot = Plot(chosen.runs, files, options.y, options.x, chosen.note) if files else None
    written = None
    if options.write_sweep is not None:
        from hpcfl.tools.sweep.final_sweep import write_final_sweep

        written = write_final_sweep(chosen, options.write_sweep)
    print(table, end="")
    if plot is not None:
        _draw(plot, files)
    if written is not None:
        _say(written)
    for line in collected.notes:
        _say(line, file=sys.stderr)


def _table(chosen: ChosenRuns, layout: str, form: str, targets: Sequence[Target] = ()) -> str:
    """Runs as a table; all of it is printable but the escape codes of bold cells."""
    from hpcfl.tools import report
    from hpcfl.tools.report.layouts import arranged

    made = arranged(chosen, layout, targets)
    if form == "table":
        return report.plain(made, styled=sys.stdout.isatty())
    form_of = {"csv": report.to_csv, "markdown": report.to_markdown, "latex": report.to_latex}
    return printable(form_of[form](made))


def _draw_report(runs: Sequence[RunRecord], path: Path) -> None:
    """Draw the plot of a finished sweep; a line says why, if that is not possible."""
    from hpcfl.runs.sweep_log import require_own_plot
    from hpcfl.tools.report.plots import Plot

    if path.parent.exists() and not os.access(path.parent, os.W_OK):  # an archive
        _say(f"no plot: {path.parent} cannot be written", file=sys.stderr)
        return
    try:
        require_own_plot(path)
        _draw(Plot(runs, [path]), [path])
    except JobError as e:
        _say(f"no plot: {e}", file=sys.stderr)


def _draw(plot: Plot, files: Sequence[Path]) -> None:
    plot.draw()
    for line in plot.notes:
        _say(line, file=sys.stderr)
    for path in files:
        _say(f"plot: {path}", file=sys.stderr)


def _data_show(options: argparse.Namespace) -> None:
    from hpcfl.job.schema import load
    from hpcfl.tools.check import show_partition

    _say(show_partition(load(options.job, options.overrides), options.plot))
    if options.plot:
        _say(f"plot: {options.plot}")


def _data_export_split(options: argparse.Namespace) -> None:
    from hpcfl.job.schema import load
    from hpcfl.tools.exports.split import export_split

    _say(export_split(load(options.job, options.overrides), options.output))


def _data_prepare(options: argparse.Namespace) -> None:
    from hpcfl.io.lock import preparing
    from hpcfl.io.progress import track
    from hpcfl.job.schema import data_section

    config = data_section(options.kind, options.root, options.overrides)
    root = getattr(config, "root", None)  # data without one is not prepared
    with nullcontext() if root is None else preparing(Path(root), options.kind):
        _say(f"ready: {config.prepare(track)}: {config.load(0).sizes_text}")


def _batch_begin(options: argparse.Namespace) -> None:
    from hpcfl.cli.batch import begin

    print(begin(options.name, options.words, os.environ, first=options.first))


def _batch_end(options: argparse.Namespace) -> None:
    from hpcfl.cli.batch import end

    counter, status, asked_s = options.counter, options.status, options.asked
    print(end(counter, status, os.environ, asked_s=asked_s, because=options.because))


def _cite(options: argparse.Namespace) -> None:
    from hpcfl.tools.cite import cite

    _say(cite(options.source))


def _list(options: argparse.Namespace) -> None:
    if options.what == "schema":
        from hpcfl.job.json_schema import job_schema

        _say(json.dumps(job_schema(), indent=2))
        return
    if options.what == "algorithms":
        from hpcfl.io.table import render_tables
        from hpcfl.tools.list_algorithms import algorithms_table, table_width

        _say(render_tables(algorithms_table(), width=table_width()))
        return
    from hpcfl.tools.listing import listing

    _say(listing(options.what))


def _init(options: argparse.Namespace) -> None:
    from hpcfl.tools.init import init

    for path in init(options.dir):
        _say_path(path)


def _selftest(options: argparse.Namespace) -> None:
    from hpcfl.tools.selftest import selftest

    tally = selftest(options.dir, options.kills, options.ranks, options.seed)
    _say(tally)
    tally.check()


COMMANDS = {
    "batch begin": _batch_begin,
    "batch end": _batch_end,
    "check": _check,
    "cite": _cite,
    "data export-split": _data_export_split,
    "data prepare": _data_prepare,
    "data show": _data_show,
    "export": _export,
    "init": _init,
    "list": _list,
    "plan": _plan,
    "report": _report,
    "resume": _resume,
    "run": _run,
    "selftest": _selftest,
    "status": _status,
    "sweep": _sweep,
}
