"""The commands on a job: run, resume, check, plan, selftest, init, list, and those of its data.

What needs torch is imported where it is used, so that no command waits for what it does not need.
"""

import argparse
import json
import sys
from contextlib import nullcontext
from pathlib import Path

from hpcfl.cli.output import may_print, say, say_path
from hpcfl.errors import JobError
from hpcfl.io import signals


def run(options: argparse.Namespace) -> None:
    """Start a run of a job."""
    out = options.out
    if options.continued:
        from hpcfl.runs.job_file.run_name import run_directory

        if out is None:
            out = run_directory(options.job, options.overrides)
            if may_print():
                _say_if_new(out, run_directory(options.job, ()))
        signals.set_resumable(out)
    from hpcfl.start.objects import load_job
    from hpcfl.start.start import start

    loaded, kept_files = load_job(options.job, options.overrides, out=out)
    start(loaded, out, continued=options.continued, kept_files=kept_files)


def _say_if_new(out: Path, plain: Path) -> None:
    """Say that ``--continue`` begins a run, where the job has runs in other default directories.

    Args:
        out: the default directory by the job and its settings.
        plain: by the job alone.
    """
    from hpcfl.runs.job_file.settings import some_of

    found = sorted(path.parent for path in plain.parent.glob("*/job.yaml"))
    others = [f"{at}" for at in found if at == plain or at.name.startswith(f"{plain.name}-")]
    if others and f"{out}" not in others:
        say(
            f"{out}: begins a new run, as the settings of the command are a part of its name; "
            f"to go on with one of {some_of(others)}: --out",
            file=sys.stderr,
        )


def resume(options: argparse.Namespace) -> None:
    """Continue a run."""
    signals.set_resumable(options.out or options.dir)
    from hpcfl.start.start import resume

    resume(
        options.dir,
        options.overrides,
        out=options.out,
        round=options.round,
        verify=not options.no_verify,
    )


def check(options: argparse.Namespace) -> None:
    """Check a job, or say where its run goes or what a file is."""
    if options.where:  # a script may call this before every start, so torch is not imported
        from hpcfl.runs.job_file.run_name import run_directory

        print(run_directory(options.job, options.overrides))
        return
    if options.kind:
        from hpcfl.runs.job_file.packaged import kind_of

        print(kind_of(options.job))
        return
    from hpcfl.job.load import load
    from hpcfl.tools.check import check_job

    say(check_job(load(options.job, options.overrides), data=options.data))


def plan(options: argparse.Namespace) -> None:
    """Say what a job will need."""
    from hpcfl.job.load import load
    from hpcfl.tools.plan.data import read_sizes
    from hpcfl.tools.plan.show import make_plan

    first, *others = options.ranks or (None,)
    if others and options.epsilon is not None:
        raise JobError("plan: --epsilon: needs one number of --ranks")
    made = make_plan(
        load(options.job, options.overrides),
        first,
        measure_rounds=options.measure,
        sizes=None if options.sizes is None else read_sizes(options.sizes),
        ranks_per_node=options.ranks_per_node,
        words=[str(options.job), *options.overrides],
        epsilon=options.epsilon,
        others=others,
    )
    if not options.measure or may_print():
        say(made)


def selftest(options: argparse.Namespace) -> None:
    """Kill small runs, and compare their bits."""
    from hpcfl.tools.selftest import selftest

    say(selftest(options.dir, options.kills))


def list_names(options: argparse.Namespace) -> None:
    """List what a job may name."""
    if options.what == "schema":
        from hpcfl.job.json_schema import job_schema

        say(json.dumps(job_schema(), indent=2))
        return
    if options.what == "algorithms":
        from hpcfl.io.table import render_tables
        from hpcfl.tools.list_algorithms import algorithms_table, table_width

        say(render_tables(algorithms_table(), width=table_width()))
        return
    from hpcfl.tools.listing import listing

    say(listing(options.what))


def init(options: argparse.Namespace) -> None:
    """Make a folder to begin with."""
    from hpcfl.tools.init import init

    for path in init(options.dir):
        say_path(path)


def data_show(options: argparse.Namespace) -> None:
    """Show the examples of each client."""
    from hpcfl.job.load import load
    from hpcfl.tools.check import show_partition

    say(show_partition(load(options.job, options.overrides), options.plot))
    if options.plot:
        say(f"plot: {options.plot}")


def data_export_split(options: argparse.Namespace) -> None:
    """Write the split into clients to a file."""
    from hpcfl.job.load import load
    from hpcfl.tools.exports.split import export_split

    say(export_split(load(options.job, options.overrides), options.output))


def data_prepare(options: argparse.Namespace) -> None:
    """Fetch and prepare a data set."""
    from hpcfl.io.lock import preparing
    from hpcfl.io.progress import track
    from hpcfl.job.load import data_section

    config = data_section(options.kind, options.root, options.overrides)
    root = getattr(config, "root", None)  # data without one is not prepared
    with nullcontext() if root is None else preparing(Path(root), options.kind):
        say(f"ready: {config.prepare(track)}: {config.load(0).sizes_text}")
