"""The parser of the command line."""

import argparse
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hpcfl import __version__
from hpcfl.cli.completion import SHELLS, PrintCompletion
from hpcfl.job.resume_rules import MUTABLE
from hpcfl.paths import require_plain


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Read a command line, that of the process by default; see ``parser``.

    Raises:
        SystemExit: it is wrong, which was printed, or asks for the help.
    """
    reader = parser()
    options, rest = reader.parse_known_args(arguments)
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
    run.add_argument("--out", type=_path, help="run directory (default runs/JOBNAME)")
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
    export.add_argument("--clients", action="store_true", help="add the client states to F.npz")
    export.add_argument(
        "--record",
        type=_path,
        metavar="FOLDER",
        help="copy job, history and log for `hpcfl report`, without names of hosts and folders",
    )
    export.set_defaults(command="export")

    _add_report(commands)

    cite = commands.add_parser(
        "cite", help="the BibTeX of the methods, models and data sets that a job uses"
    )
    cite.add_argument("source", type=_path, help="JOB.yaml, SWEEP.yaml or the directory of runs")
    cite.set_defaults(command="cite")

    drift = commands.add_parser(
        "drift",
        help="a picture of the clients' local steps, on quadratics in the plane",
        description="Run a job, or the runs of a sweep, whose data are quadratics in two "
        "dimensions (data.dim=2), and draw every client's local models and the server's.  No run "
        "directory is made.",
    )
    drift.add_argument("job", type=_path, help="JOB.yaml or SWEEP.yaml")
    _add_overrides(drift, "settings of every run")
    drift.add_argument(
        "--only", type=_labels, metavar="LABEL,...", help="the runs of a sweep with these labels"
    )
    drift.add_argument(
        "--plot", type=_path, default=Path("drift.png"), help=".png, .pdf or .svg (drift.png)"
    )
    _add_size(drift)
    drift.set_defaults(command="drift")

    _add_data(commands)
    _add_plan_and_list(commands)
    _add_batch(commands)

    _add_bench(commands)
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


def _add_bench(commands: Any) -> None:
    """The commands that measure."""
    bench = commands.add_parser("bench", help="measure, as ratios within one run").add_subparsers(
        required=True, metavar="COMMAND"
    )
    rounds = bench.add_parser("round", help="a round against a bare loop of the same SGD steps")
    rounds.add_argument("job", type=_path, nargs="?", help="job (default: two built-in ones)")
    _add_overrides(rounds)
    rounds.set_defaults(command="bench round")
    sums = bench.add_parser(
        "reduce", help="the exact mean against a float all-reduce, on all ranks"
    )
    sums.add_argument(
        "--sizes", type=_count, nargs="+", help="parameters (default 800000 4000000 25000000)"
    )
    sums.add_argument(
        "--backend",
        choices=["auto", "mpi", "gloo"],
        default="auto",
        help="as comm.backend in a job (default: auto)",
    )
    sums.set_defaults(command="bench reduce")
    executors = bench.add_parser("executor", help="a local step alone and in blocks of clients")
    executors.add_argument("job", type=_path, nargs="?", help="job (default: two built-in ones)")
    _add_overrides(executors)
    executors.add_argument("--sizes", type=_count, nargs="+", help="of blocks (default 10 32)")
    executors.set_defaults(command="bench executor")
    states = bench.add_parser("store", help="client states against the bare disk, and in a round")
    states.add_argument(
        "--dir", type=_folder, help="folder to write in (default: the temporary one)"
    )
    states.add_argument("--gib", type=_size, default=1.0, help="GiB of states (default: 1)")
    states.set_defaults(command="bench store")
    peers = bench.add_parser("peers", help="the benchmark of pfl-research, beside pfl itself")
    peers.add_argument(
        "--model", choices=("cnn", "lenet", "resnet20"), default="cnn", help="(default: pfl's cnn)"
    )
    peers.add_argument(
        "--python", type=_path, help="that of an environment with pfl (default: ours)"
    )
    peers.add_argument("--precision", choices=("float32", "bf16"), help="one alone (default: both)")
    peers.add_argument(
        "--turns", type=_count, metavar="N", help="measured rounds of each side (default 9)"
    )
    peers.set_defaults(command="bench peers")
    costs = bench.add_parser("costs", help="what a round's time is made of, for plan --costs")
    costs.set_defaults(command="bench costs")
    old_costs = bench.add_parser("pieces")  # the name of version 0.1; not listed in the help
    old_costs.set_defaults(command="bench costs", renamed="bench pieces is called bench costs now")
    for command in (costs, old_costs):
        _add_job(command)
    scaling = bench.add_parser("scaling", help="ranks against as many bare loops side by side")
    scaling.add_argument("--ranks", type=_count, nargs="+", help="(default 1 2 4)")
    scaling.set_defaults(command="bench scaling")
    gpu = bench.add_parser(
        "gpu", help="rounds on a GPU: models, precisions, executors, a bare loop, pfl"
    )
    gpu.add_argument(
        "--minutes",
        type=_size,
        default=8.0,
        metavar="M",
        help="end after about so many (default 8); with --json F, the next call continues",
    )
    gpu.add_argument("--rehearse", action="store_true", help="tiny works on the CPU")
    gpu.add_argument("--python", type=_path, help="that of an environment with pfl (default: ours)")
    gpu.set_defaults(command="bench gpu")
    for command in (rounds, sums, executors, states, peers, costs, old_costs, scaling, gpu):
        command.add_argument("--json", type=_path, metavar="F", help="write every turn's figures")
        command.add_argument("--plot", type=_path, metavar="F", help=".png, .pdf or .svg to draw")
    chaos = bench.add_parser("chaos", help="kill runs over and over again; they must end the same")
    chaos.add_argument("--kills", type=_count, default=100, metavar="N", help="(default 100)")
    chaos.add_argument(
        "--stops",
        type=_natural,
        default=0,
        metavar="N",
        help="signals to stop among them (default 0)",
    )
    chaos.add_argument(
        "--ranks", type=_count, nargs="+", help="of attempts in turn (default 1 2 3)"
    )
    chaos.add_argument("--seed", type=int, default=0, help="of what is drawn (default 0)")
    chaos.add_argument("--dir", type=_path, default=Path("runs/chaos"), help="(default runs/chaos)")
    chaos.set_defaults(command="bench chaos")


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
        "--round", type=int, metavar="T", help="from this kept checkpoint; later ones are deleted"
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
    status.set_defaults(command="status")

    watch = commands.add_parser(
        "watch",
        help="the status of a run or sweep as a page that follows it",
        description="Show a run, or a folder of runs, as a page that follows it: q or Ctrl-C "
        "leaves.  Only files are read; the run is not disturbed.  Where standard output is no "
        "terminal, one page is printed.",
    )
    watch.add_argument("dir", type=_path, help="of a run or a sweep")
    watch.set_defaults(command="watch")


def _add_sweep(commands: Any) -> None:
    """The command that runs a sweep."""
    sweep = commands.add_parser("sweep", help="run every point of a grid over a job's keys")
    sweep.add_argument("sweep", type=_path, help="SWEEP.yaml, or a name of hpcfl list jobs")
    _add_overrides(sweep, "settings of every run")
    sweep.add_argument("--out", type=_path, help="directory of the runs (default runs/SWEEPNAME)")
    sweep.add_argument(
        "--parallel", type=_count, metavar="N", help="runs at once (default: as many as fit)"
    )
    sweep.add_argument("--dry-run", action="store_true", help="list the runs and start none")
    sweep.add_argument(
        "--where", action="store_true", help="print the run directories, and start nothing"
    )
    sweep.add_argument(
        "--write-jobs",
        action="store_true",
        help="write a job file for each run into the directory of the runs, and start nothing",
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
    sweep.add_argument(
        "--pack", type=_count, metavar="K", help="runs of a task of the array (default: 1)"
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
    _add_size(show)
    show.set_defaults(command="data show")

    split = data.add_parser("export-split", help="the client of each training example, as a file")
    _add_job(split)
    split.add_argument("-o", "--output", type=_path, required=True, help="F.npz, gets client [n]")
    split.set_defaults(command="data export-split")


def _add_plan_and_list(commands: Any) -> None:
    """The commands that predict what a job needs, list what it can name, and start a folder."""
    plan = commands.add_parser("plan", help="what a job will need: disk, memory, traffic, hours")
    _add_job(plan)
    plan.add_argument("--ranks", type=_count, help="how many (default 1; at most, with --scale)")
    plan.add_argument("--out", type=_path, help="run directory (default runs/JOBNAME)")
    plan.add_argument(
        "--costs", type=_path, metavar="F.json", help="measured costs, instead of stated speeds"
    )
    plan.add_argument(
        "--sizes",
        metavar="SIZES",
        help="of data that is not there: '{clients: 20, train: 6000, test: 1000, classes: 5}'",
    )
    plan.add_argument(
        "--ranks-per-node", type=_count, metavar="N", help="at most, in the command for Slurm"
    )
    plan.add_argument("--pieces", type=_path, help=argparse.SUPPRESS)  # --costs in version 0.1
    plan.add_argument(
        "--scale", action="store_true", help="JOB is a file as docs/scale.yaml: predicted rounds"
    )
    plan.add_argument("--plot", type=_path, metavar="F", help=".png, .pdf or .svg, with --scale")
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
        choices=["runs", "seeds", "paper", "chosen", "hours"],
        default="runs",
        help="a row a run, and means over seeds (default); the means alone; algorithms by set-ups, "
        "as papers do, published numbers beside ours; each algorithm's best setting, chosen on "
        "validation data where all runs have it; wall time, examples and machine of each run, "
        "published hours beside ours",
    )
    report.add_argument(
        "--columns",
        metavar="NAME[=TITLE],...",
        help="these columns alone, in this order, with other titles where given: "
        '"algorithm=Method,accuracy=Accuracy (%%),rounds to 80=Rounds"; a name is the title '
        "without its unit, with --format csv a key",
    )
    report.add_argument(
        "--names",
        metavar="NAME=TITLE,...",
        help="what methods and runs are called in the table and the legend: "
        '"fedavg=FedAvg,scaffold=SCAFFOLD"',
    )
    report.add_argument(
        "--plot",
        type=_path,
        action="append",
        nargs="?",
        default=[],
        metavar="F",
        help="draw the runs into F.png, .pdf or .svg, also several times; without F, and with "
        "other options of the plot, into report.png in a sweep, else in runs",
    )
    report.add_argument(
        "--y", metavar="KEY", help="what to plot: a key of log.jsonl (default: the score)"
    )
    report.add_argument(
        "--x",
        choices=["rounds", "bytes", "time"],
        default="rounds",
        help="what to plot against: bytes sent up and down so far, or the wall time of the rounds",
    )
    report.add_argument("--xlabel", metavar="TEXT", help="of the plot's horizontal axis")
    report.add_argument("--ylabel", metavar="TEXT", help="of the plot's vertical axis")
    _add_size(report)
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


def _natural(text: str) -> int:
    return _whole(text, 0)


def _whole(text: str, least: int) -> int:
    if not text.isdecimal() or int(text) < least:
        raise argparse.ArgumentTypeError(f"found {text!r}, expected a whole number from {least}")
    return int(text)


def _size(text: str) -> float:
    try:
        size = float(text)
    except ValueError:
        size = math.nan
    if not 0 < size < math.inf:
        raise argparse.ArgumentTypeError(f"found {text!r}, expected a number above 0")
    return size


def _path(text: str) -> Path:
    try:
        return Path(require_plain(text))
    except ValueError as e:
        raise argparse.ArgumentTypeError(str(e)) from e


def _folder(text: str) -> Path:
    path = Path(text)
    if not path.is_dir():
        raise argparse.ArgumentTypeError(f"there is no folder {text}; make it first")
    return path


def _add_overrides(
    command: argparse.ArgumentParser,
    help_text: str = "settings over those of the job",
    *,
    metavar: str = "key.path=value",
) -> None:
    # Without this default, argparse would call the overrides required if the job is missing.
    command.add_argument("overrides", nargs="*", default=[], metavar=metavar, help=help_text)


def _add_size(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--size", metavar="WxH", help="of the plot in inches: 6x4 (default: as large as it needs)"
    )


def _add_job(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("job", type=_path, help="JOB.yaml, or a name of hpcfl list jobs")
    _add_overrides(parser)
