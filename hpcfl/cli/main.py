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
from typing import TYPE_CHECKING

from hpcfl import signals
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
)

if TYPE_CHECKING:
    from hpcfl.report.names import DisplayNames
    from hpcfl.report.plots import Plot
    from hpcfl.report.rounds_to_target import Target
    from hpcfl.run_dir.record import RunRecord
    from hpcfl.sweep.grid import Sweep

REPORT = Path("runs/report.png")

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


def _may_print() -> bool:
    """Whether this process is rank 0, or its rank is unknown."""
    from hpcfl.comm.launcher import detect

    try:
        return detect(os.environ).rank == 0
    except RankError:
        return True


def _run(options: argparse.Namespace) -> None:
    from hpcfl.job.run_name import run_directory

    out = options.out or run_directory(options.job, options.overrides)
    if options.continued:
        signals.set_resumable(out)
    from hpcfl.runner.objects import load_job
    from hpcfl.runner.start import start

    loaded, kept_files = load_job(options.job, options.overrides, out=out)
    start(loaded, out, continued=options.continued, kept_files=kept_files)


def _resume(options: argparse.Namespace) -> None:
    signals.set_resumable(options.out or options.dir)
    from hpcfl.runner.start import resume

    resume(
        options.dir,
        options.overrides,
        out=options.out,
        round=options.round,
        verify=not options.no_verify,
    )


def _check(options: argparse.Namespace) -> None:
    if options.where:  # a script may call this before every start, so torch is not imported
        from hpcfl.job.run_name import run_directory

        print(run_directory(options.job, options.overrides))
        return
    if options.kind:
        from hpcfl.job.packaged import kind_of

        print(kind_of(options.job))
        return
    from hpcfl.cli.check import check_job
    from hpcfl.job.schema import load

    print(check_job(load(options.job, options.overrides), data=options.data))


def _plan(options: argparse.Namespace) -> None:
    if options.scale:
        from hpcfl.plan.scale import show_scale

        if options.overrides:
            raise JobError(
                f"plan --scale: found {options.overrides[0]}; change the file, it has no overrides"
            )
        for name in ("sizes", "ranks_per_node", "costs", "pieces", "out"):
            if getattr(options, name) is not None:
                option = f"--{name.replace('_', '-')}"
                raise JobError(f"plan --scale: {option} is for a job; leave it out")
        print(show_scale(options.job, options.ranks, options.plot))
        return
    from hpcfl.job.schema import load
    from hpcfl.plan import read_cost_model
    from hpcfl.plan.data import read_sizes
    from hpcfl.plan.show import make_plan

    if options.plot:
        raise JobError("plan: --plot is for --scale; leave it out")
    if options.pieces:
        print("plan: --pieces is called --costs now", file=sys.stderr)
    file = options.costs or options.pieces
    costs = read_cost_model(file) if file else None
    loaded = load(options.job, options.overrides)
    made = make_plan(
        loaded,
        options.ranks or 1,
        options.out,
        costs,
        sizes=None if options.sizes is None else read_sizes(options.sizes),
        ranks_per_node=options.ranks_per_node,
        words=[str(options.job), *options.overrides],
    )
    print(made)


def _status(options: argparse.Namespace) -> None:
    from hpcfl.monitor.status import status

    print(status(options.dir))


def _sweep(options: argparse.Namespace) -> None:
    from hpcfl.sweep.grid import read_sweep

    sweep = read_sweep(options.sweep, options.overrides)
    root = options.out or sweep.directory
    sweep = sweep.chosen(options.points, options.only)
    if options.write_jobs:
        _require_alone(options)
    if options.where:
        for point in sweep.points:
            print(root / point.name)
        return
    # The runs start from job files with the present names, so they have nothing to say of old ones.
    for note in dict.fromkeys(note for point in sweep.points for note in point.loaded.notes):
        print(note, file=sys.stderr)
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
    others = ("submit", "parallel", "pack", "sbatch", "dry_run", "where")
    found = [f"--{name.replace('_', '-')}" for name in others if getattr(options, name)]
    if found:
        raise JobError(f"--write-jobs writes job files and starts nothing; leave out {found[0]}")


def _write_jobs(sweep: Sweep, root: Path) -> None:
    from hpcfl.sweep.run_sweep import write_job_files

    for path in write_job_files(sweep, root):
        print(path)


def _submit(options: argparse.Namespace, sweep: Sweep, root: Path) -> None:
    from hpcfl.sweep.slurm import SlurmArray

    if options.parallel:
        raise JobError("--parallel is for a sweep that runs here; with --submit: --pack K")
    array = SlurmArray(sweep, options.overrides, root, options.pack or 1, options.sbatch or "")
    print(array.command_line() if options.dry_run else array.submit())


def _run_sweep(options: argparse.Namespace, sweep: Sweep, root: Path) -> None:
    from hpcfl.report.collect import collect_runs
    from hpcfl.sweep.pending import pending_runs, runs_table
    from hpcfl.sweep.run_sweep import run_sweep

    if options.pack or options.sbatch:
        raise JobError("--pack and --sbatch are for --submit")
    if options.dry_run:
        print(runs_table(pending_runs(sweep, root)))
        return
    partly = options.points is not None or options.only is not None
    outcome = run_sweep(sweep, root, options.parallel, partly=partly)
    if outcome.finished and options.points is None:  # with --points, other tasks run the rest
        runs = collect_runs(outcome.finished).runs
        print(_table(runs, "runs", "table"), end="")
        if not partly:  # a plot of some points would take the place of that of the whole sweep
            _draw_report(runs, root / REPORT.name)
    outcome.check()


def _export(options: argparse.Namespace) -> None:
    if options.record:
        from hpcfl.run_dir.export_record import export_record

        if options.output or options.state_dict or options.clients or options.best:
            raise JobError("export: --record writes no model; export that by another command")
        if options.round is not None:
            raise JobError("export: --record copies the whole log; leave out --round")
        paths = export_record(options.dir, options.record)
    else:
        from hpcfl.runner.export import export

        with warnings.catch_warnings(record=True) as caught:
            paths = export(
                options.dir,
                round=options.round,
                npz=options.output,
                state_dict=options.state_dict,
                clients=options.clients,
                best=options.best,
            )
        for warning in caught:
            print(warning.message, file=sys.stderr)
    for path in paths:
        print(path)


def _report(options: argparse.Namespace) -> None:
    from hpcfl.report.collect import collect_runs
    from hpcfl.report.names import DisplayNames
    from hpcfl.report.plots import Plot, PlotStyle
    from hpcfl.report.plots.figure import FigureSize
    from hpcfl.report.rounds_to_target import Target

    size = FigureSize.parse(options.size)
    targets = Target.from_options(options.target, options.target_accuracy)
    collected = collect_runs(options.dirs)
    (folder,) = options.dirs if len(options.dirs) == 1 else (REPORT.parent,)
    default = REPORT if (folder / "job.yaml").exists() else folder / REPORT.name
    labels = options.xlabel, options.ylabel
    asked = bool(options.y or options.x != "rounds" or size or labels != (None, None))
    files = [path or default for path in options.plot] or [default] * asked
    names = DisplayNames()
    if options.names is not None:
        names = DisplayNames.parse(options.names, collected.runs)
    table = _table(
        collected.runs, options.layout, options.format, targets, options.columns, names=names
    )
    style = PlotStyle(names, *labels, size)
    # A plot that cannot be drawn is refused before the table is printed.
    plot = Plot(collected.runs, files, options.y, options.x, style) if files else None
    print(table, end="")
    if plot is not None:
        _draw(plot, files)
    for line in collected.notes:
        print(line, file=sys.stderr)


def _table(
    runs: Sequence[RunRecord],
    layout: str,
    form: str,
    targets: Sequence[Target] = (),
    columns: str | None = None,
    *,
    names: DisplayNames | None = None,
) -> str:
    """Runs as a table; of some columns, without the table of the time by phase."""
    from hpcfl import report
    from hpcfl.report import timing
    from hpcfl.report.choose_columns import ChosenColumn, choose_columns
    from hpcfl.report.layouts import arranged

    made = arranged(runs, layout, targets)
    if names is not None:
        made = names.rename(made)
    if columns is not None:
        chosen = ChosenColumn.parse(columns)
        made = choose_columns(made, chosen, values=form == "csv")
    if form == "table":
        text = report.plain(made, styled=sys.stdout.isatty())
        return text if columns is not None else text + timing.table(runs, names)
    return {"csv": report.to_csv, "markdown": report.to_markdown, "latex": report.to_latex}[form](
        made
    )


def _watch(options: argparse.Namespace) -> None:
    from hpcfl.monitor.watch import watch

    page = watch(options.dir)
    if page:
        print(page, end="")


def _draw_report(runs: Sequence[RunRecord], path: Path) -> None:
    """Draw the plot of a finished sweep; a line says why, if that is not possible."""
    from hpcfl.report.plots import Plot

    if path.parent.exists() and not os.access(path.parent, os.W_OK):  # an archive
        print(f"no plot: {path.parent} cannot be written", file=sys.stderr)
        return
    try:
        _draw(Plot(runs, [path]), [path])
    except JobError as e:
        print(f"no plot: {e}", file=sys.stderr)


def _draw(plot: Plot, files: Sequence[Path]) -> None:
    plot.draw()
    for line in plot.notes:
        print(line, file=sys.stderr)
    for path in files:
        print(f"plot: {path}", file=sys.stderr)


def _data_show(options: argparse.Namespace) -> None:
    from hpcfl.cli.check import show_partition
    from hpcfl.job.schema import load
    from hpcfl.report.plots.figure import FigureSize

    size = FigureSize.parse(options.size)
    if size and not options.plot:
        raise JobError("data show: --size is of a plot; add --plot F.png, or leave it out")
    print(show_partition(load(options.job, options.overrides), options.plot, size))
    if options.plot:
        print(f"plot: {options.plot}")


def _data_export_split(options: argparse.Namespace) -> None:
    from hpcfl.job.schema import load
    from hpcfl.runner.export_split import export_split

    print(export_split(load(options.job, options.overrides), options.output))


def _data_prepare(options: argparse.Namespace) -> None:
    from hpcfl.data.base import sizes_text
    from hpcfl.io.lock import preparing
    from hpcfl.io.progress import track
    from hpcfl.job.schema import data_section

    config = data_section(options.kind, options.root, options.overrides)
    root = getattr(config, "root", None)  # data without one is not prepared
    with nullcontext() if root is None else preparing(Path(root), options.kind):
        print(f"ready: {config.prepare(track)}: {sizes_text(config.load(0))}")


def _drift(options: argparse.Namespace) -> None:
    from hpcfl.cli.drift import draw_drift
    from hpcfl.report.plots.figure import FigureSize

    size = FigureSize.parse(options.size)
    print(draw_drift(options.job, options.overrides, options.only, options.plot, size))
    print(f"plot: {options.plot}", file=sys.stderr)


def _batch_begin(options: argparse.Namespace) -> None:
    from hpcfl.cli.batch import begin

    print(begin(options.name, options.words, os.environ, first=options.first))


def _batch_end(options: argparse.Namespace) -> None:
    from hpcfl.cli.batch import end

    counter, status, asked_s = options.counter, options.status, options.asked
    print(end(counter, status, os.environ, asked_s=asked_s, because=options.because))


def _cite(options: argparse.Namespace) -> None:
    from hpcfl.cli.cite import cite

    print(cite(options.source))


def _list(options: argparse.Namespace) -> None:
    if options.what == "schema":
        from hpcfl.job.json_schema import job_schema

        print(json.dumps(job_schema(), indent=2))
        return
    from hpcfl.cli.listing import listing

    print(listing(options.what))


def _init(options: argparse.Namespace) -> None:
    from hpcfl.cli.init import init

    for path in init(options.dir):
        print(path)


def _bench(options: argparse.Namespace) -> None:
    from hpcfl.bench.commands import BENCHES
    from hpcfl.io.atomic import check_output
    from hpcfl.report.plots.figure import check_plot

    # Check the files now, not after minutes of measuring.
    if options.json:
        check_output(options.json, make_folder=True)
    if options.plot:
        check_plot(options.plot)
        if options.plot == options.json:
            raise JobError(f"bench: --json and --plot both name {options.plot}; give two files")
    if "renamed" in options and _may_print():
        print(options.renamed, file=sys.stderr)
    result = BENCHES[options.command](options)
    if not result:  # rank 0 has it
        return
    print(result)
    if options.json:
        result.write(options.json)
    if options.plot:
        result.plot(options.plot)
    result.check()


def _bench_chaos(options: argparse.Namespace) -> None:
    from hpcfl.bench.chaos import bench_chaos

    tally = bench_chaos(
        options.kills, options.ranks, options.seed, options.dir, stops=options.stops
    )
    print(tally)
    tally.check()


COMMANDS = {
    "batch begin": _batch_begin,
    "batch end": _batch_end,
    "bench chaos": _bench_chaos,
    "bench executor": _bench,
    "bench peers": _bench,
    "bench costs": _bench,
    "bench gpu": _bench,
    "bench reduce": _bench,
    "bench round": _bench,
    "bench scaling": _bench,
    "bench store": _bench,
    "check": _check,
    "cite": _cite,
    "data export-split": _data_export_split,
    "data prepare": _data_prepare,
    "data show": _data_show,
    "drift": _drift,
    "export": _export,
    "init": _init,
    "list": _list,
    "plan": _plan,
    "report": _report,
    "resume": _resume,
    "run": _run,
    "status": _status,
    "sweep": _sweep,
    "watch": _watch,
}
