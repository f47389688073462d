"""The parser of the command line."""

import argparse
import sys
from collections.abc import Sequence
from math import inf
from pathlib import Path
from typing import Any

from hpcfl.cli.completion import SHELLS, PrintCompletion
from hpcfl.io.paths import require_plain
from hpcfl.io.version import __version__
from hpcfl.runs.job_file.resume_rules import MUTABLE


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Read a command line, that of the process by default; see ``parser``.

    Raises:
        SystemExit: it is wrong, which was printed, or asks for the help.
    """
    words = sys.argv[1:] if arguments is None else arguments
    reader = parser()
    options, rest = reader.parse_known_args(words)
    if rest and ("overrides" not in options or any(r.startswith("-") for r in rest)):
        keys = "; settings of a job have no dashes: rounds=5" if "overrides" in options else ""
        reader.error(f"unrecognized arguments: {' '.join(rest)}{keys}")
    if rest:  # overrides that stand after an option
        options.overrides += rest
    return options


def parser() -> argparse.ArgumentParser:
    """Reads a command line; ``command`` is then the name of one of `hpcfl.cli.main.COMMANDS`."""
    root = argparse.ArgumentParser(
        prog="hpcfl",
        description="Federated learning at scale on HPC machines.  Several ranks: mpirun -n 4 "
        "hpcfl run JOB.yaml, or srun.",
    )
    root.add_argument("--version", action="version", version=f"hpcfl {__version__}")
    root.add_argument(
        "--print-completion",
        action=PrintCompletion,
        choices=SHELLS,
        help="print the script that completes commands, options and packaged jobs in this shell",
    )
    commands = root.add_subparsers(required=True, metavar="COMMAND")

    run = commands.add_parser("run", help="start a run of a job")
    _add_job(run)
    run.add_argument(
        "--out",
        type=_path,
        help="run directory (default runs/JOBNAME, followed by what key=value change; hpcfl check "
        "--where prints it)",
    )
    run.add_argument(
        "--continue",
        dest="continued",
        action="store_true",
        help="resume, if the run directory holds a checkpoint of this job",
    )
    run.set_defaults(command="run")

    _add_resume(commands)

    check = commands.add_parser("check", help="check a job without training")
    _add_job(check)
    depth = check.add_mutually_exclusive_group()
    depth.add_argument("--data", action="store_true", help="load the data and build the model too")
    depth.add_argument(
        "--where", action="store_true", help="print the default run directory, and check nothing"
    )
    depth.add_argument(
        "--kind",
        action="store_true",
        help="print what JOB.yaml is: job, sweep, or run (a run's directory); check nothing more",
    )
    check.set_defaults(command="check")

    _add_monitors(commands)

    _add_sweep(commands)

    export = commands.add_parser(
        "export", help="write a checkpoint's model to a file, or a run's job and log to a folder"
    )
    export.add_argument("dir", type=_path, help="run directory")
    export.add_argument("--round", type=int, help="round (default: the newest checkpoint's)")
    export.add_argument("--best", action="store_true", help="the best evaluated round's model")
    export.add_argument("-o", "--output", type=_path, help="F.npz with the flat model as x")
    export.add_argument("--state-dict", type=_path, help="F.safetensors with named parameters")
    export.add_argument("--client", type=int, metavar="I", help="the own model of client I")
    export.add_argument("--clients", action="store_true", help="add the client states to F.npz")
    export.add_argument(
        "--record",
        type=_path,
        metavar="FOLDER",
        help="copy job, history, log and own classes, for `hpcfl report` and `hpcfl run`, without "
        "names of hosts and folders",
    )
    export.set_defaults(command="export")

    _add_report(commands)

    cite = commands.add_parser(
        "cite", help="the BibTeX of the methods, models, data sets, ... that a job uses"
    )
    cite.add_argument("source", type=_path, help="JOB.yaml, SWEEP.yaml or the directory of runs")
    cite.set_defaults(command="cite")

    _add_data(commands)
    _add_plan_and_list(commands)
    _add_batch(commands)

    test = commands.add_parser(
        "selftest", help="kill small runs over and over again; they must end with the same bits"
    )
    test.add_argument("dir", type=_path, help="a new or empty folder on the file system to test")
    test.add_argument("--kills", type=_count, default=16, metavar="N", help="(default 16)")
    test.set_defaults(command="selftest")
    return root


def _add_batch(commands: Any) -> None:
    """The commands that batch scripts call."""
    batch = commands.add_parser("batch", help="what slurm/run.sh and scripts like it ask")
    batch = batch.add_subparsers(required=True, metavar="COMMAND")
    begin = batch.add_parser(
        "begin", help="count a start, and print what it is to run, as variables of bash"
    )
    begin.add_argument("--first", action="store_true", help="forget earlier starts of this name")
    begin.add_argument("name", help="the same for all starts of one submission: the id of the job")
    begin.add_argument(
        "words",
        nargs=argparse.REMAINDER,
        metavar="JOB.yaml ...",
        help="or SWEEP.yaml, or the directory of a run, and what follows it",
    )
    begin.set_defaults(command="batch begin")
    end = batch.add_parser("end", help="print whether and why to start again, likewise")
    end.add_argument("counter", type=_path, help="the file that batch begin has printed")
    end.add_argument("status", type=_natural, help="the exit code of the start")
    end.add_argument(
        "--asked", type=_natural, metavar="S", help="a signal asked it to stop after S seconds"
    )
    end.add_argument("--because", default="", help="why nothing was started, if so")
    end.set_defaults(command="batch end")


def _add_resume(commands: Any) -> None:
    """The command that resumes a run."""
    resume = commands.add_parser(
        "resume",
        help="resume a run from a checkpoint",
        description="Resume a run from its last checkpoint, on any number of ranks.  Keys of its "
        f"job that no past round depended on may be changed: {', '.join(MUTABLE)}.  With --out "
        "other keys may change too, such as rates and cohorts: the copy is then a branch.",
    )
    resume.add_argument("dir", type=_path, help="run directory")
    _add_overrides(resume)
    resume.add_argument(
        "--round",
        type=int,
        metavar="T",
        help="from this kept checkpoint; later ones are deleted, once by the same command",
    )
    resume.add_argument(
        "--out", type=_path, metavar="COPY", help="resume in a copy; the run in DIR stays as it is"
    )
    resume.add_argument(
        "--no-verify",
        action="store_true",
        help="check client states when they are first used, not all before the first round",
    )
    resume.set_defaults(command="resume")


def _add_monitors(commands: Any) -> None:
    """The commands that show a run without disturbing it."""
    status = commands.add_parser("status", help="how far a run or a sweep is, alive or not")
    status.add_argument("dir", type=_path, help="of a run or a sweep")
    status.add_argument(
        "--follow", action="store_true", help="show it again every second, until Ctrl-C"
    )
    status.set_defaults(command="status")


def _add_sweep(commands: Any) -> None:
    """The command that runs a sweep."""
    sweep = commands.add_parser("sweep", help="run every point of a grid over a job's keys")
    sweep.add_argument("sweep", type=_path, help="SWEEP.yaml, or a name of hpcfl list jobs")
    _add_overrides(sweep, "settings of every run")
    sweep.add_argument(
        "--out",
        type=_path,
        help="directory of the runs (default runs/SWEEPNAME; runs/SWEEPNAME-sweep where the job "
        "has this name)",
    )
    sweep.add_argument(
        "--parallel",
        type=_count,
        metavar="N",
        help="runs at once (default: as many as the cores or GPUs allow); with --submit, in each "
        "task of the array (default: 1)",
    )
    sweep.add_argument("--dry-run", action="store_true", help="list the runs and start none")
    sweep.add_argument(
        "--where",
        action="store_true",
        help="print the run directories, and check nothing",
    )
    selected = sweep.add_mutually_exclusive_group()
    selected.add_argument(
        "--only",
        type=_labels,
        metavar="LABEL,...",
        help="the runs with these labels of the grid: --only fedhbm,seed0; labels of one axis are "
        "alternatives",
    )
    selected.add_argument(
        "--points", type=_points, metavar="A-B", help="these runs alone, counted from 0"
    )
    selected.add_argument(
        "--submit", action="store_true", help="hand what is not finished to Slurm, as an array"
    )
    sweep.add_argument("--sbatch", metavar="OPTIONS", help="of sbatch: --sbatch='-p gpu -t 60'")
    sweep.set_defaults(command="sweep")


def _add_data(commands: Any) -> None:
    """The commands about data sets."""
    data = commands.add_parser("data", help="prepare data sets and look at them").add_subparsers(
        required=True, metavar="COMMAND"
    )
    prepare = data.add_parser("prepare", help="fetch, check and pack a data set's files")
    prepare.add_argument("kind", help="as data.kind in a job")
    _add_overrides(prepare, "as data.key in a job", metavar="key=value")
    prepare.add_argument("--root", default="data", help="folder of the files (default data)")
    prepare.set_defaults(command="data prepare")

    show = data.add_parser("show", help="the examples of each client: classes, sizes")
    _add_job(show)
    show.add_argument(
        "--plot", type=_path, metavar="FILE", help="draw the table into a .png, .pdf or .svg"
    )
    show.set_defaults(command="data show")

    split = data.add_parser("export-split", help="the client of each training example, as a file")
    _add_job(split)
    split.add_argument("-o", "--output", type=_path, required=True, help="F.npz, gets client [n]")
    split.set_defaults(command="data export-split")


def _add_plan_and_list(commands: Any) -> None:
    """The commands that predict what a job needs, list what it can name, and start a folder."""
    plan = commands.add_parser("plan", help="what a job will need: disk, memory, traffic, hours")
    _add_job(plan)
    plan.add_argument(
        "--ranks",
        type=_counts,
        metavar="N",
        help="how many (default 1, or those that measure); N,N,... compares numbers of ranks",
    )
    plan.add_argument(
        "--measure",
        action="store_true",
        help="run a few rounds here, also under mpirun, and say the hours and the peak of memory",
    )
    plan.add_argument(
        "--sizes",
        metavar="KEY=N,...",
        help="of data that is not there: clients=20,train=6000,test=1000,classes=5,shape=3x32x32 "
        "(words=80 in place of shape for texts)",
    )
    plan.add_argument(
        "--ranks-per-node", type=_count, metavar="N", help="at most, in the command for Slurm"
    )
    plan.add_argument(
        "--epsilon", type=_positive, metavar="E", help="find the noise of dpfedavg that keeps it"
    )
    plan.set_defaults(command="plan")

    listing = commands.add_parser(
        "list",
        help="keys of a job, algorithms, data, models, tasks, packaged jobs",
        description="List the keys of a job's sections (job), what they can name (algorithms, "
        "data, partitions, cohorts, models, tasks) and the jobs that are installed with hpcfl "
        "(jobs); or print the JSON schema of a job for editors (schema); or the keys of a class of "
        "one's own, by its dotted path.",
    )
    listing.add_argument(
        "what",
        nargs="?",
        help="one of these, a section of a job, a name listed there, or the dotted path of a class "
        "(default: all but schema)",
    )
    listing.set_defaults(command="list")

    init = commands.add_parser(
        "init",
        help="make a folder to start experiments in",
        description="Make a folder with a job, a sweep of it, an example of an algorithm of one's "
        "own, the scripts for Slurm and a page of commands.",
    )
    init.add_argument("dir", type=_path, help="a new or empty folder")
    init.set_defaults(command="init")


def _add_report(commands: Any) -> None:
    """The command that compares runs."""
    report = commands.add_parser("report", help="a table of runs, and a plot")
    report.add_argument("dirs", type=_path, nargs="+", metavar="dir", help="of a run or a sweep")
    report.add_argument(
        "--format",
        choices=["table", "csv", "markdown", "latex"],
        default="table",
        help="of the output (default: table)",
    )
    report.add_argument(
        "--layout",
        choices=["runs", "seeds", "paper", "time"],
        default="runs",
        help="a row a run, and means over seeds (default); the means alone; algorithms by set-ups, "
        "as papers do, published numbers beside ours; the time by phase",
    )
    report.add_argument(
        "--chosen",
        action="store_true",
        help="only the best setting of each algorithm and set-up, such as a rate, chosen on "
        "validation data where all runs have it",
    )
    report.add_argument(
        "--write-sweep",
        type=_path,
        metavar="F.yaml",
        help="with --chosen: write a sweep of the chosen settings, without validation data",
    )
    report.add_argument(
        "--plot",
        type=_path,
        action="append",
        nargs="?",
        default=[],
        metavar="F",
        help="draw the runs into F.png, .pdf or .svg, also several times; without F, and with "
        "--x or --y, into report.png in a sweep, else in runs",
    )
    report.add_argument(
        "--y", metavar="KEY", help="what to plot: a key of log.jsonl (default: the score)"
    )
    report.add_argument(
        "--x",
        choices=["rounds", "bytes", "time", "simulated"],
        default="rounds",
        help="what to plot against: bytes sent up and down so far, the wall time of the rounds, or "
        "the simulated time of the devices",
    )
    report.add_argument(
        "--target",
        type=float,
        action="append",
        default=[],
        metavar="PERCENT",
        help="when runs reached so much of the centralised accuracy that a paper prints; also "
        "several times",
    )
    report.add_argument(
        "--target-accuracy",
        type=float,
        action="append",
        default=[],
        metavar="SHARE",
        help="when they reached this accuracy",
    )
    report.set_defaults(command="report")


def _points(text: str) -> tuple[int, int]:
    first, dash, last = text.partition("-")
    found = first, last if dash else first
    if not all(number.isdecimal() for number in found):
        raise argparse.ArgumentTypeError(f"found {text!r}, expected A-B or A, counted from 0")
    return int(found[0]), int(found[1])


def _labels(text: str) -> list[str]:
    labels = text.split(",")
    if not all(labels):
        raise argparse.ArgumentTypeError(f"found {text!r}, expected labels such as fedhbm,seed0")
    return labels


def _count(text: str) -> int:
    return _whole(text, 1)


def _counts(text: str) -> tuple[int, ...]:
    """Whole numbers from 1, none twice."""
    return tuple(dict.fromkeys(map(_count, text.split(","))))


def _positive(text: str) -> float:
    try:
        found = float(text)
    except ValueError:
        found = 0.0
    if not 0 < found < inf:
        raise argparse.ArgumentTypeError(f"found {text!r}, expected a positive number")
    return found


def _natural(text: str) -> int:
    return _whole(text, 0)


def _whole(text: str, least: int) -> int:
    if not text.isdecimal() or int(text) < least:
        raise argparse.ArgumentTypeError(f"found {text!r}, expected a whole number from {least}")
    return int(text)


def _path(text: str) -> Path:
    try:
        return Path(require_plain(text))
    except ValueError as e:
        raise argparse.ArgumentTypeError(str(e)) from e


def _add_overrides(
    command: argparse.ArgumentParser,
    help_text: str = "settings over those of the job",
    *,
    metavar: str = "key.path=value",
) -> None:
    # Without this default, argparse would call the overrides required if the job is missing.
    command.add_argument("overrides", nargs="*", default=[], metavar=metavar, help=help_text)


def _add_job(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("job", type=_path, help="JOB.yaml, a name of hpcfl list jobs, or a record")
    _add_overrides(parser)
