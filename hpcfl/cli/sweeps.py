"""The command of sweeps.

What needs torch is imported where it is used, so that no command waits for what it does not need.
"""

import argparse
from pathlib import Path

from hpcfl.cli.output import say
from hpcfl.cli.results import draw_report, table_of
from hpcfl.errors import JobError
from hpcfl.runs.names import REPORT
from hpcfl.tools.report.choose import ChosenRuns
from hpcfl.tools.report.collect import collect_runs
from hpcfl.tools.sweep.grid import Sweep, read_grid, read_sweep
from hpcfl.tools.sweep.own_files import require_folder


def sweep(options: argparse.Namespace) -> None:
    """Run, submit or write the jobs of a sweep."""
    read = read_grid if options.where else read_sweep
    sweep = read(options.sweep, options.overrides)
    root = options.out or sweep.directory
    sweep = sweep.chosen(options.points, options.only)
    if options.where:
        for point in sweep.points:
            print(root / point.name)
        return
    require_folder(root)
    if options.submit:
        _submit(options, sweep, root)
    else:
        _run_sweep(options, sweep, root)


def _submit(options: argparse.Namespace, sweep: Sweep, root: Path) -> None:
    from hpcfl.tools.sweep.slurm import SlurmArray

    array = SlurmArray(sweep, options.overrides, root, options.parallel or 1, options.sbatch or "")
    say(array.command_line() if options.dry_run else array.submit())


def _run_sweep(options: argparse.Namespace, sweep: Sweep, root: Path) -> None:
    from hpcfl.tools.sweep.pending import pending_runs, runs_table
    from hpcfl.tools.sweep.run_sweep import run_sweep

    if options.sbatch:
        raise JobError("--sbatch is for --submit")
    if options.dry_run:
        say(runs_table(pending_runs(sweep, root)))
        return
    partly = options.points is not None or options.only is not None
    outcome = run_sweep(sweep, root, options.parallel, partly=partly)
    if outcome.finished and options.points is None:  # with --points, other tasks run the rest
        runs = collect_runs(outcome.finished).runs
        print(table_of(ChosenRuns(runs), "runs", "table"), end="")
        if not partly:  # a plot of some points would take the place of that of the whole sweep
            draw_report(runs, root / REPORT)
    outcome.check()
