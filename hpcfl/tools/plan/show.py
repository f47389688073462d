"""Show what a job will need: first what a user asks for, then what it follows from."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from shutil import disk_usage
from textwrap import fill

import torch
from rich.box import ASCII2
from rich.filesize import decimal
from rich.table import Table

from hpcfl.errors import JobError
from hpcfl.evaluation.privacy import Accountant
from hpcfl.io.table import render_tables
from hpcfl.io.words import counted
from hpcfl.job.schema import LoadedJob
from hpcfl.runs.job_file.run_name import RUNS
from hpcfl.start.checks.preflight import check_sizes
from hpcfl.start.components.build import build_components
from hpcfl.start.components.choose_executor import with_equal_blocks
from hpcfl.start.components.components import Components
from hpcfl.start.components.executors import unused_places
from hpcfl.start.components.load_data import fetch_data, load_data
from hpcfl.tools.plan import rank_counts
from hpcfl.tools.plan.data import EXAMPLE, OPTION, Sizes, planned_job
from hpcfl.tools.plan.host_memory import HostMemory, computed_memory, measured_memory
from hpcfl.tools.plan.measure import Measurement, measure
from hpcfl.tools.plan.rank_counts import RankCount
from hpcfl.tools.plan.resources import Plan, plan
from hpcfl.tools.plan.slurm_request import LONGEST_H, slurm_request
from hpcfl.tools.plan.time import Prediction, predict
from hpcfl.tools.report.columns import duration
from hpcfl.user_code.names import short_name

WIDTH = 100  # columns
FEW = 16  # ranks whose shares are listed one by one


@dataclass(frozen=True)
class JobPlan:
    """What a job will need."""

    resources: Plan
    """Disk, traffic and gradients."""
    memory: HostMemory
    """Host memory of a rank."""
    prediction: Prediction | None
    """Time, of a plan that measures."""
    sbatch: str
    """The command that submits the job to Slurm."""
    summary: str
    """What ``hpcfl plan`` prints."""

    def __str__(self) -> str:
        return self.summary


def make_plan(
    loaded: LoadedJob,
    ranks: int | None,
    *,
    measure_rounds: bool = False,
    sizes: Sizes | None = None,
    ranks_per_node: int | None = None,
    words: Sequence[str] = (),
    epsilon: float | None = None,
    others: Sequence[int] = (),
) -> JobPlan:
    """Find out what the job will need on so many ranks.

    With ``sizes`` its data need not be there; initial weights need only to measure.

    Args:
        loaded: the job.
        ranks: how many; None: those that measure, or 1.
        measure_rounds: run a few rounds, collectively on all ranks that are there.
        sizes: of the data, instead of the real ones.
        ranks_per_node: at most, in the command for Slurm.
        words: the job and its settings, in that command.
        epsilon: of the privacy for which the noise is to be found.
        others: other numbers of ranks, which are compared with the first; then the plan is that of
            the best, and its summary a table of all.

    Raises:
        JobError, DataError: something in the job does not fit.
    """
    if ranks is not None and ranks < 1:
        raise JobError(f"ranks: found {ranks}, expected 1 at least")
    folder = RUNS / loaded.name
    loaded, notes = planned_job(loaded, sizes, in_memory=measure_rounds)
    # First, so that the peak of memory is that of the rounds.
    measured = measure(loaded, folder, max(ranks or 1, *others, 1)) if measure_rounds else None
    parts = _components(loaded, sizes)
    asked = [ranks or (1 if measured is None else measured.ranks), *others]
    # Of several numbers, one is not to refuse the others.
    too_many = [count for count in asked if count > len(parts.population.rows)]
    too_many = too_many if len(too_many) < len(asked) else []
    counts = [
        _count(parts, count, measured, ranks_per_node) for count in asked if count not in too_many
    ]
    best = rank_counts.best(counts)
    command = best.request.command(words or ["JOB.yaml"])
    algorithm = short_name(loaded.names["algorithm"])
    lines = [
        f"{loaded.name}: {algorithm}",
        render_tables(rank_counts.table(counts, too_many), width=WIDTH)
        if others
        else _tables(best, measured, folder),
        *([] if epsilon is None else [_noise(best.plan, algorithm, epsilon)]),
        *notes,
        *(f"{n} ranks: more than the {len(parts.population.rows)} clients" for n in too_many),
        *(rank_counts.advice(counts) if others else []),
        *([f"{measured}"] if others and measured is not None else []),
        *_unused_places(parts, counts),
        *_warnings(best.plan, folder),
        *_on_slurm(best, measured, parts.job.device),
        command,
    ]
    wrapped = (line if "\n" in line or line is command else fill(line, WIDTH) for line in lines)
    return JobPlan(best.plan, best.memory, best.prediction, command, "\n".join(wrapped))


def _components(loaded: LoadedJob, sizes: Sizes | None) -> Components:
    """The job's components on the CPU, with its data.

    Raises:
        JobError, DataError: something in the job does not fit, or its data are not there.
    """
    try:
        fetch_data(loaded)
        dataset = load_data(loaded)
    except JobError as error:
        if sizes is not None:
            raise
        why = str(error).partition(";")[0]
        raise JobError(
            f"data.kind: {loaded.names['data']}: cannot be loaded ({why}); put it there, or "
            f"say its sizes, some of which docs/data has: {OPTION} {EXAMPLE}"
        ) from error
    parts = build_components(loaded, torch.device("cpu"), resumed=True, dataset=dataset)
    check_sizes(parts)
    return with_equal_blocks(parts)[0]


def _count(
    parts: Components, ranks: int, measured: Measurement | None, ranks_per_node: int | None
) -> RankCount:
    """What the job needs on a number of ranks."""
    found, prediction = plan(parts, ranks), None
    gpus = parts.job.device == "cuda" if measured is None else measured.gpus
    memory = computed_memory(found, gpus=gpus)
    if measured is not None:
        prediction = predict(parts, measured, ranks)
        if measured.memory:
            there = found if ranks == measured.ranks else plan(parts, measured.ranks)
            memory = measured_memory(found, measured, there)
    hours = None if prediction is None else prediction.hours
    request = slurm_request(parts, ranks, memory, hours=hours, gpus=gpus, most=ranks_per_node)
    return RankCount(found, request, memory, prediction)


def _unused_places(parts: Components, counts: Sequence[RankCount]) -> Iterable[str]:
    """A line for each number of ranks on which blocks have more places than clients."""
    for each in counts:
        most = max(share.members for share in each.plan.shares)
        who = f"at most {counted(most, 'client')} a rank"
        if line := unused_places(parts, most, who + f" of {each.ranks}" * (len(counts) > 1)):
            yield line


def _warnings(found: Plan, folder: Path) -> Iterable[str]:
    """What hardly is meant to be so."""
    ranks = len(found.shares)
    if found.cohort < ranks:
        yield (
            f"a round has {counted(found.cohort, 'client', '.4g')} on average: at "
            f"least {ranks - found.cohort:.4g} of {ranks} ranks train none"
        )
    needed, free = found.disk_budget.total, _free_disk(folder)
    if needed > free:
        yield f"WARNING: {folder} needs {decimal(needed)} of disk; {decimal(free)} are free"


def _on_slurm(count: RankCount, measured: Measurement | None, device: str) -> Iterable[str]:
    """What the command for Slurm supposes."""
    if measured is None:
        gpus = ", and for no GPU: device=cuda asks for one" * (device == "auto")
        yield f"the command asks for {LONGEST_H} hours, as nothing was measured{gpus}"
    if count.request.starts > 1:
        yield f"it is requeued: about {count.request.starts} starts of that length in all"


def _tables(count: RankCount, measured: Measurement | None, folder: Path) -> str:
    """What the job needs, and what that follows from."""
    found = count.plan
    made = []
    for rows in (_needs(count, measured, folder), _details(found)):
        table = Table(box=ASCII2, show_header=False)
        table.add_column(no_wrap=True)
        table.add_column()
        for title, text in rows:
            table.add_row(title, text)
        made.append(table)
    return render_tables(*made, _ranks(found), width=WIDTH)


def _needs(
    count: RankCount, measured: Measurement | None, folder: Path
) -> Iterable[tuple[str, str]]:
    found = count.plan
    yield (
        "rounds",
        f"{found.rounds} of {counted(found.cohort, 'client', '.4g')}; "
        f"{'at most ' * bool(found.candidates)}"
        f"{found.seen} of {found.population} take part",
    )
    if count.prediction is None or measured is None:
        yield "time", "not measured; --measure runs a few rounds, where the job is to run"
    else:
        yield from _time(count.prediction, measured)
    yield "memory", count.memory.text
    disk = found.disk_budget
    yield (
        "disk",
        f"{decimal(disk.total)} in {folder}, where {decimal(_free_disk(folder))} are free: client "
        f"states {decimal(disk.stores)}, {counted(disk.checkpoints, 'checkpoint')} of "
        f"{decimal(disk.checkpoint)} at a time",
    )
    visit, in_all = found.traffic, found.in_all
    yield "traffic", f"{decimal(in_all.down)} down, {decimal(in_all.up)} up in all"
    yield "", f"{decimal(visit.down)} down, {decimal(visit.up)} up per client and round"
    down, up = (f"{size / found.vector:.3g}" for size in visit)
    yield "", f"{found.overhead:.3g}x FedAvg: {down} + {up} vectors"


def _time(found: Prediction, measured: Measurement) -> Iterable[tuple[str, str]]:
    hours = found.hours
    all_ = f"{hours:.4g} hours" if hours * 60 >= 1 else f"{hours * 3600:.2g} s"
    yield (
        "time",
        f"{all_} in all: {found.round:.4g} s a round, {found.evaluate:.3g} s an evaluation",
    )
    yield (
        "",
        f"a round: {found.train:.4g} s training on the busiest rank ({found.busiest:.3g}x the mean "
        f"of the ranks), {found.mean:.3g} s the mean of the uploads, {found.rest:.3g} s else",
    )
    yield "", f"{measured}"


def _details(found: Plan) -> Iterable[tuple[str, str]]:
    yield "model", f"{found.parameters} parameters, {decimal(found.vector)}"
    if found.asked:
        asked = found.asked / found.rounds
        yield (
            "devices",
            f"{found.cohort:.4g} of {asked:.4g} clients that are asked count in a round; "
            f"{duration(found.simulated_s)} simulated in all",
        )
    low, high = found.steps
    steps = counted(low, "step") if low == high else f"{low} to {high} steps"
    over_all = "one" if found.full_gradients == 1 else f"{found.full_gradients}"
    whole = f"and {over_all} over all its examples" if found.full_gradient_rounds else ""
    always = f", {whole}" if found.full_gradient_rounds == found.rounds else ""
    each = "a gradient" if found.gradients == 1 else f"{found.gradients} gradients"
    if found.forwards:
        passes = "pass" if found.forwards == 1 else "passes"
        each += f" and {found.forwards} forward {passes}"
    yield "local work", f"{steps} of {each} per client and round{always}"
    if whole and not always:
        yield "", f"{whole}, in {found.full_gradient_rounds} of the rounds"
    if found.candidates:
        down, up = map(decimal, found.choice)
        yield (
            "choice",
            f"{found.candidates} candidates a round compute the loss of all their examples: "
            f"{down} more down, {up} up",
        )
    if found.warm_start.down:
        yield (
            "warm start",
            f"before round 1, every client's gradient over all its examples: "
            f"{decimal(found.warm_start.down)} down, {decimal(found.warm_start.up)} up",
        )
    if found.validation:
        yield (
            "evaluation",
            f"{found.tests} test and {counted(found.validation, 'validation example')}, "
            f"{counted(found.evaluations, 'time')}",
        )
    if found.tuning_steps:
        yield (
            "fine-tuning",
            f"{counted(found.tuning_steps, 'step')} of each of "
            f"{counted(found.tested, 'client')}, {counted(found.evaluations, 'time')}",
        )
    once = f", and {decimal(found.shared)} for all of a rank and round" if found.shared else ""
    if found.accountant is not None:
        yield "privacy", _privacy(found.accountant, found.rounds)
    yield "states", f"{decimal(found.own)} per client{once}"
    yield "server", f"{decimal(found.server)}, on every rank"


def _privacy(found: Accountant, rounds: int) -> str:
    """Epsilon after all rounds, and what it means."""
    if why := found.why_none:
        return f"epsilon is not computed: {why}"
    return f"epsilon {found.epsilon(rounds):.4g} for delta {found.delta:.3g}: {found.bound}"


def _noise(found: Plan, name: str, epsilon: float) -> str:
    """The noise with which all rounds keep an epsilon."""
    if found.accountant is None:
        raise JobError(f"--epsilon: {name} promises no privacy; use algorithm.name: dpfedavg")
    noise = found.accountant.noise_for(epsilon, found.rounds)
    return (
        f"epsilon {epsilon:g} after {counted(found.rounds, 'round')}: algorithm.noise={noise:.6g}"
    )


def _ranks(found: Plan) -> Table:
    made = Table(box=ASCII2)
    for title in ("rank", "clients", "examples", "taking part", "in a round", "store"):
        made.add_column(title, justify="right", no_wrap=True)
    rows = [(s.clients, s.examples, s.seen, s.members, s.store) for s in found.shares]
    named = [(f"{rank}", row) for rank, row in enumerate(rows)]
    if len(rows) > FEW:
        columns = list(zip(*rows, strict=True))
        named = [("least", tuple(map(min, columns))), ("most", tuple(map(max, columns)))]
    for name, (*counts, store) in named:
        made.add_row(name, *map(str, counts), decimal(store))
    return made


def _free_disk(folder: Path) -> int:
    """Bytes that are free where the run directory will be."""
    there = next(path for path in (folder, *folder.absolute().parents) if path.is_dir())
    return disk_usage(there).free
