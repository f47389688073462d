"""The command line: every command of ``hpcfl``, and the only place that prints."""

from __future__ import annotations

import argparse
import os
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpcfl import __version__
from hpcfl.errors import ClientError, Elsewhere, HpcflError, JobError

if TYPE_CHECKING:
    from hpcfl.records import RunRecord
    from hpcfl.targets import Target

REPORT = Path("runs/report.png")

# Rooms that need torch are imported by the command that uses them: `hpcfl --help` is instant.


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command.

    Returns:
        The exit code: 0 done, 2 the job, the arguments or the files are wrong, 3 diverged,
        75 stopped by a signal with a checkpoint, 1 anything else.
    """
    parser = _parser()
    options, rest = parser.parse_known_args(arguments)
    if rest and ("overrides" not in options or any(r.startswith("-") for r in rest)):
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    if rest:  # overrides that stand after an option
        options.overrides += rest
    try:
        options.command(options)
        sys.stdout.flush()
    except BrokenPipeError:  # `hpcfl list | head`: nobody reads on, at exit neither
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except Elsewhere as e:
        return e.exit_code
    except HpcflError as e:
        if e.speaker or _rank() == 0:
            print(f"{type(e).__name__}: {' '.join(str(e).splitlines())}", file=sys.stderr)
            if isinstance(e, ClientError) and e.__cause__:
                traceback.print_exception(e.__cause__)
        return e.exit_code
    return 0


def _rank() -> int:
    """This process's rank, as far as its launcher says."""
    from hpcfl.comm.launch import detect

    return detect(os.environ).rank


def _run(options: argparse.Namespace) -> None:
    from hpcfl.job import load
    from hpcfl.session import start

    start(load(options.job, options.overrides), options.out)


def _resume(options: argparse.Namespace) -> None:
    from hpcfl.session import resume

    resume(options.dir)


def _check(options: argparse.Namespace) -> None:
    from hpcfl.describe import describe
    from hpcfl.job import load

    print(describe(load(options.job, options.overrides), data=options.data))


def _plan(options: argparse.Namespace) -> None:
    from hpcfl.job import load
    from hpcfl.plan.show import show_plan

    print(show_plan(load(options.job, options.overrides), options.ranks, options.out))


def _status(options: argparse.Namespace) -> None:
    from hpcfl.status import status

    print(status(options.dir))


def _sweep(options: argparse.Namespace) -> None:
    from hpcfl.records import read_run
    from hpcfl.sweep.grid import read_sweep
    from hpcfl.sweep.play import play
    from hpcfl.sweep.todo import listed, todo

    sweep = read_sweep(options.sweep, options.overrides)
    root = options.out or Path("runs") / sweep.name
    if options.dry_run:
        print(listed(todo(sweep, root)))
        return
    outcome = play(sweep, root, options.parallel)
    if outcome.finished:
        _tell([read_run(path) for path in outcome.finished], root / REPORT.name)
    outcome.check()


def _export(options: argparse.Namespace) -> None:
    from hpcfl.export import export

    for path in export(
        options.dir,
        round=options.round,
        npz=options.output,
        state_dict=options.state_dict,
        clients=options.clients,
        best=options.best,
    ):
        print(path)


def _report(options: argparse.Namespace) -> None:
    from hpcfl.records import read_runs
    from hpcfl.targets import Target

    target = Target.asked(options.target, options.target_accuracy)
    records = [run for path in options.dirs for run in read_runs(path)]
    (folder,) = options.dirs if len(options.dirs) == 1 else (REPORT.parent,)
    default = REPORT if (folder / "job.yaml").exists() else folder / REPORT.name
    _tell(records, default, options.format, options.plot, options.y, target)


def _tell(
    records: Sequence[RunRecord],
    default: Path,
    form: str = "table",
    asked: Path | None = None,
    y: str | None = None,
    target: Target | None = None,
) -> None:
    """Print a table of runs and plot them; the plot that was asked for is checked first."""
    from hpcfl import report
    from hpcfl.beside import beside_published
    from hpcfl.plots import Plot
    from hpcfl.targets import beside_target

    beside = beside_published(records)
    if target is not None:
        beside = beside.joined(beside_target(records, target))
    show = {"table": report.plain, "csv": report.to_csv, "markdown": report.to_markdown}[form]
    path = asked or (default if form == "table" or y else None)
    if path is None:
        print(show(records, beside), end="")
        return
    try:
        plot = Plot(records, path, y)
    except JobError as e:
        if asked or y:
            raise
        print(show(records, beside), end="")
        print(f"no plot: {e}", file=sys.stderr)  # nobody asked for one
        return
    print(show(records, beside), end="")
    plot.draw()
    if plot.without:
        names = ", ".join(str(run.path) for run in plot.without)
        print(f"plot: without {names}, which have no such number yet", file=sys.stderr)
    print(f"plot: {path}", file=sys.stderr)


def _data_show(options: argparse.Namespace) -> None:
    from hpcfl.describe import show_partition
    from hpcfl.job import load

    print(show_partition(load(options.job, options.overrides), options.plot))
    print(f"plot: {options.plot}")


def _data_export_split(options: argparse.Namespace) -> None:
    from hpcfl.job import load
    from hpcfl.split import export_split

    print(export_split(load(options.job, options.overrides), options.output))


def _data_prepare(options: argparse.Namespace) -> None:
    from hpcfl.job import data_section
    from hpcfl.progress import track

    config = data_section(options.kind, options.root, options.overrides)
    print(f"ready: {config.prepare(track)}")


def _list(options: argparse.Namespace) -> None:
    from hpcfl.catalogue import catalogue

    print(catalogue(options.what))


def _bench_round(options: argparse.Namespace) -> None:
    from hpcfl.bench.round import bench_round

    print(bench_round(options.job, options.overrides))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="hpcfl",
        description="Federated learning at scale on HPC machines.  Several ranks: mpirun -n 4 "
        "hpcfl run JOB.yaml, or srun.",
    )
    parser.add_argument("--version", action="version", version=f"hpcfl {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    run = commands.add_parser("run", help="start a run of a job")
    _add_job(run)
    run.add_argument("--out", type=Path, help="run directory (default runs/JOBNAME)")
    run.set_defaults(command=_run)

    resume = commands.add_parser("resume", help="take up a run again from its last checkpoint")
    resume.add_argument("dir", type=Path, help="run directory")
    resume.set_defaults(command=_resume)

    check = commands.add_parser("check", help="check a job without training")
    _add_job(check)
    check.add_argument("--data", action="store_true", help="load the data and build the model too")
    check.set_defaults(command=_check)

    status = commands.add_parser("status", help="how far a run or a sweep is, alive or not")
    status.add_argument("dir", type=Path, help="of a run or a sweep")
    status.set_defaults(command=_status)

    sweep = commands.add_parser("sweep", help="run every point of a grid over a job's keys")
    sweep.add_argument("sweep", type=Path, help="SWEEP.yaml")
    sweep.add_argument(
        "overrides", nargs="*", metavar="key.path=value", help="settings of every run"
    )
    sweep.add_argument("--out", type=Path, help="directory of the runs (default runs/SWEEPNAME)")
    sweep.add_argument(
        "--parallel", type=_count, metavar="N", help="runs at once (default: as many as fit)"
    )
    sweep.add_argument("--dry-run", action="store_true", help="list the runs and start none")
    sweep.set_defaults(command=_sweep)

    export = commands.add_parser("export", help="write a checkpoint's model to a file")
    export.add_argument("dir", type=Path, help="run directory")
    export.add_argument("--round", type=int, help="round (default: the newest checkpoint's)")
    export.add_argument("--best", action="store_true", help="the best evaluated round's model")
    export.add_argument("-o", "--output", type=Path, help="F.npz with the flat model as x")
    export.add_argument("--state-dict", type=Path, help="F.safetensors with named parameters")
    export.add_argument("--clients", action="store_true", help="add the client states to F.npz")
    export.set_defaults(command=_export)

    _add_report(commands)

    _add_data(commands)
    _add_forecasts(commands)

    bench = commands.add_parser("bench", help="measure, as ratios within one run").add_subparsers(
        required=True, metavar="COMMAND"
    )
    rounds = bench.add_parser("round", help="a round against a bare loop of the same SGD steps")
    rounds.add_argument("job", type=Path, nargs="?", help="job (default: two built-in ones)")
    rounds.add_argument("overrides", nargs="*", metavar="key.path=value")
    rounds.set_defaults(command=_bench_round)
    return parser


def _add_data(commands: Any) -> None:
    """The commands about data sets."""
    data = commands.add_parser("data", help="prepare data sets and look at them").add_subparsers(
        required=True, metavar="COMMAND"
    )
    prepare = data.add_parser("prepare", help="fetch, check and pack a data set's files")
    prepare.add_argument("kind", help="as data.kind in a job")
    prepare.add_argument("overrides", nargs="*", metavar="key=value", help="as data.key in a job")
    prepare.add_argument("--root", default="data", help="folder of the files (default data)")
    prepare.set_defaults(command=_data_prepare)

    show = data.add_parser("show", help="who holds what: clients x classes, sizes")
    _add_job(show)
    show.add_argument("--plot", type=Path, default=Path("partition.png"), help=".png, .pdf or .svg")
    show.set_defaults(command=_data_show)

    split = data.add_parser("export-split", help="the client of each training example, as a file")
    _add_job(split)
    split.add_argument("-o", "--output", type=Path, required=True, help="F.npz, gets client [n]")
    split.set_defaults(command=_data_export_split)


def _add_forecasts(commands: Any) -> None:
    """The commands that tell what could be run, and what it would need."""
    plan = commands.add_parser("plan", help="what a job will need: disk, memory, traffic")
    _add_job(plan)
    plan.add_argument("--ranks", type=_count, default=1, help="how many (default 1)")
    plan.add_argument("--out", type=Path, help="run directory (default runs/JOBNAME)")
    plan.set_defaults(command=_plan)

    listing = commands.add_parser("list", help="algorithms, data, models, tasks")
    listing.add_argument("what", nargs="?", help="algorithms, data, ..., or a name (default: all)")
    listing.set_defaults(command=_list)


def _add_report(commands: Any) -> None:
    """The command that sets runs side by side."""
    report = commands.add_parser("report", help="a table and a plot of runs")
    report.add_argument("dirs", type=Path, nargs="+", metavar="dir", help="of a run or a sweep")
    report.add_argument("--format", choices=["table", "csv", "markdown"], default="table")
    report.add_argument(
        "--plot",
        type=Path,
        help="F.png, .pdf or .svg to write (with a table: report.png in a sweep, else in runs)",
    )
    report.add_argument(
        "--y", metavar="KEY", help="what to plot: a key of log.jsonl (default: the score)"
    )
    reach = report.add_mutually_exclusive_group()
    reach.add_argument(
        "--target",
        type=float,
        metavar="PERCENT",
        help="when runs reached so much of the centralised accuracy that a paper prints",
    )
    reach.add_argument(
        "--target-accuracy", type=float, metavar="SHARE", help="when they reached this accuracy"
    )
    report.set_defaults(command=_report)


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"found {text!r}, expected a whole number from 1")
    return int(text)


def _add_job(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("job", type=Path, help="JOB.yaml")
    parser.add_argument(
        "overrides", nargs="*", metavar="key.path=value", help="settings over those of the job"
    )
