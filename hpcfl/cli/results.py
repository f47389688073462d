"""The commands on runs: status, report, export and cite.

What needs torch is imported where it is used, so that no command waits for what it does not need.
"""

import argparse
import os
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path

from hpcfl.cli.output import say, say_path
from hpcfl.errors import JobError, printable
from hpcfl.runs.job_file.run_name import RUNS
from hpcfl.runs.names import REPORT
from hpcfl.runs.record import RunRecord
from hpcfl.runs.sweep_log import require_own_plot
from hpcfl.tools.report import plain, to_csv, to_latex, to_markdown
from hpcfl.tools.report.choose import ChosenRuns, choose_settings
from hpcfl.tools.report.collect import collect_runs
from hpcfl.tools.report.layouts import arranged
from hpcfl.tools.report.plots import Plot
from hpcfl.tools.report.rounds_to_target import Target


def status(options: argparse.Namespace) -> None:
    """Show how runs are getting on."""
    from rich.console import Console

    from hpcfl.tools.status import follow, status

    console = Console()
    if options.follow and console.is_terminal:
        follow(options.dir, console)
    else:
        say(status(options.dir))


def report(options: argparse.Namespace) -> None:
    """Compare runs in tables and plots."""
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
    table = table_of(chosen, options.layout, options.format, targets)
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
        say(written)
    for line in collected.notes:
        say(line, file=sys.stderr)


def table_of(chosen: ChosenRuns, layout: str, form: str, targets: Sequence[Target] = ()) -> str:
    """Runs as a table; all of it is printable but the escape codes of bold cells."""
    made = arranged(chosen, layout, targets)
    if form == "table":
        return plain(made, styled=sys.stdout.isatty())
    form_of = {"csv": to_csv, "markdown": to_markdown, "latex": to_latex}
    return printable(form_of[form](made))


def draw_report(runs: Sequence[RunRecord], path: Path) -> None:
    """Draw the plot of a finished sweep; a line says why, if that is not possible."""
    if path.parent.exists() and not os.access(path.parent, os.W_OK):  # an archive
        say(f"no plot: {path.parent} cannot be written", file=sys.stderr)
        return
    try:
        require_own_plot(path)
        _draw(Plot(runs, [path]), [path])
    except JobError as e:
        say(f"no plot: {e}", file=sys.stderr)


def _draw(plot: Plot, files: Sequence[Path]) -> None:
    plot.draw()
    for line in plot.notes:
        say(line, file=sys.stderr)
    for path in files:
        say(f"plot: {path}", file=sys.stderr)


def export(options: argparse.Namespace) -> None:
    """Write a model, or the record of a run, to files."""
    if options.record:
        from hpcfl.tools.exports.record import export_record

        of_model = (options.output, options.state_dict, options.clients, options.best)
        if any(of_model) or options.client is not None:
            raise JobError("export: --record writes no model; export that by another command")
        if options.round is not None:
            raise JobError("export: --record copies the whole log; leave out --round")
        paths, missing = export_record(options.dir, options.record)
        for line in missing:
            say(f"not in {options.record}: {line}", file=sys.stderr)
    else:
        from hpcfl.tools.exports.checkpoint import export

        with warnings.catch_warnings(record=True) as caught:
            paths, text = export(
                options.dir,
                round=options.round,
                npz=options.output,
                state_dict=options.state_dict,
                clients=options.clients,
                best=options.best,
                client=options.client,
            )
        for warning in caught:
            say(warning.message, file=sys.stderr)
        say(text, file=sys.stderr)
    for path in paths:
        say_path(path)


def cite(options: argparse.Namespace) -> None:
    """Print the BibTeX of what a job uses."""
    from hpcfl.tools.cite import cite

    say(cite(options.source))
