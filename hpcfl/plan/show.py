"""Show a plan as tables."""

from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from shutil import disk_usage
from textwrap import fill

import torch
from rich.box import ASCII2
from rich.filesize import decimal
from rich.table import Table

from hpcfl.checks.preflight import check_sizes
from hpcfl.comm.base import Comm
from hpcfl.comm.connect import connect
from hpcfl.comm.failure import group, raise_collectively
from hpcfl.errors import JobError
from hpcfl.evaluation.privacy import Accountant
from hpcfl.io.table import render_tables
from hpcfl.job.schema import LoadedJob
from hpcfl.job_file.run_name import RUNS
from hpcfl.plan import rank_counts
from hpcfl.plan.data import Sizes, planned_data
from hpcfl.plan.measure import measure_costs
from hpcfl.plan.memory import Process, data_bytes, probe, this_process
from hpcfl.plan.rank_counts import RankCount
from hpcfl.plan.resources import Plan, plan
from hpcfl.plan.slurm_request import LONGEST_H, slurm_request
from hpcfl.plan.time import CostModel, Prediction, predict, work
from hpcfl.report.columns import duration
from hpcfl.setup.components import Components, build_components
from hpcfl.setup.device import device_type
from hpcfl.user_code.names import short_name

WIDTH = 100  # columns
FEW = 16  # ranks whose shares are listed one by one


@dataclass(frozen=True)
class JobPlan:
    """What a job will need."""

    resources: Plan
    """Disk, memory, traffic and gradients."""
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
    out: Path | None,
    *,
    measure: bool = False,
    sizes: Sizes | None = None,
    ranks_per_node: int | None = None,
    words: Sequence[str] = (),
    epsilon: float | None = None,
    others: Sequence[int] = (),
) -> JobPlan:
    """Find out what the job will need on so many ranks.

    Neither its data nor initial weights need be there: sizes and the architecture do.

    Args:
        loaded: the job.
        ranks: how many; None: those that measure, or 1.
        out: the run directory; runs/NAME when absent.
        measure: run a few rounds, collectively on all ranks that are there, and predict the time.
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
    if not measure:
        return _make_plan(
            loaded, ranks or 1, out, None, sizes, ranks_per_node, words, epsilon, others
        )
    job, comms = loaded.job, loaded.job.comm
    exact, device, run = job.reduction == "exact", device_type(job), out or RUNS / loaded.name
    with group(connect(comms.backend, device, comms.timeout_s, run, exact=exact)) as comm:
        most = ranks or comm.size
        return _make_plan(loaded, most, out, comm, sizes, ranks_per_node, words, epsilon, others)


def _make_plan(
    loaded: LoadedJob,
    ranks: int,
    out: Path | None,
    comm: Comm | None,
    sizes: Sizes | None,
    ranks_per_node: int | None,
    words: Sequence[str],
    epsilon: float | None,
    others: Sequence[int],
) -> JobPlan:
    """See ``make_plan``; collective on the ranks of ``comm``, which measure."""
    with nullcontext() if comm is None else raise_collectively(comm):
        data = planned_data(loaded, sizes)
        parts = build_components(
            data.loaded, torch.device("cpu"), resumed=True, dataset=data.dataset
        )
        check_sizes(parts)
        activations = probe(parts)
        process = this_process()
        if not data.real and process.resident is not None:  # as if it were loaded
            process = Process(process.resident + data_bytes(parts), None)
        # Of several numbers, one is not to refuse the others.
        too_many = [count for count in (ranks, *others) if count > len(parts.rows)]
        too_many = too_many if len(too_many) <= len(others) else []
        plans = [
            plan(parts, count, process=process, activations=activations)
            for count in (ranks, *others)
            if count not in too_many
        ]
    found = plans[0]
    if others:
        costs = None if comm is None else measure_costs(data.loaded, comm, data.dataset)
        return _compare(parts, plans, too_many, costs, out, ranks_per_node, words, data.notes)
    algorithm = short_name(parts.loaded.tree["algorithm"]["name"])
    lines = [
        render_tables(
            _summary(found, f"{loaded.name}: {algorithm}"),
            _ranks(found),
            _memory(found),
            width=WIDTH,
        ),
        *([] if epsilon is None else [_noise(found, algorithm, epsilon)]),
        *(fill(note, WIDTH) for note in data.notes),
        _disk_line(found, out or Path("runs") / loaded.name),
    ]
    mean = found.visits / found.rounds
    if mean < ranks:
        lines.append(
            f"a round has {mean:.4g} client{'s' * (mean != 1)} on average: at least "
            f"{ranks - mean:.4g} of {ranks} ranks train none"
        )
    prediction, gpus = None, loaded.job.device == "cuda"
    if comm is None:
        lines.append(
            "hours: not measured; add --measure where the job is to run; until then the command "
            f"below asks for\n       {LONGEST_H} hours"
            + " and for no GPU: device=cuda asks for one"
            * (loaded.job.device == "auto")
        )
    else:
        costs = measure_costs(data.loaded, comm, data.dataset)
        gpus = costs.device == "cuda"
        asked = work(parts)
        prediction = predict(asked, ranks, costs)
        lines.append(_hours(prediction))
        if ranks > 1:
            other = replace(asked, balance="owner" if asked.balance == "steal" else "steal")
            otherwise = predict(other, ranks, costs).round
            lines.append(f"with balance={other.balance}: {otherwise:.4g} s a round")
        lines.append(fill(f"costs: {costs.origin}", WIDTH))
    hours = None if prediction is None else prediction.hours
    request = slurm_request(parts, found, hours=hours, gpus=gpus, most=ranks_per_node)
    command = request.command(words or ["JOB.yaml"], out)
    lines.append(command)
    if request.starts > 1:
        lines.append(f"which is requeued: about {request.starts} starts of that length in all")
    return JobPlan(found, prediction, command, "\n".join(lines))


def _compare(
    parts: Components,
    plans: Sequence[Plan],
    too_many: Sequence[int],
    costs: CostModel | None,
    out: Path | None,
    ranks_per_node: int | None,
    words: Sequence[str],
    notes: Sequence[str],
) -> JobPlan:
    """The plan for the best number of ranks, with a table of all."""
    gpus = parts.job.device == "cuda" if costs is None else costs.device == "cuda"
    asked, counts, predictions = work(parts), [], {}
    for found in plans:
        ranks = len(found.shares)
        predictions[ranks] = None if costs is None else predict(asked, ranks, costs)
        hours = None if (said := predictions[ranks]) is None else said.hours
        request = slurm_request(parts, found, hours=hours, gpus=gpus, most=ranks_per_node)
        counts.append(RankCount(found, request, hours))
    best = rank_counts.best(counts)
    command = best.request.command(words or ["JOB.yaml"], out)
    name = f"{parts.loaded.name}: {short_name(parts.loaded.tree['algorithm']['name'])}"
    measured = (
        "hours: not measured; add --measure where the job is to run"
        if costs is None
        else f"costs: {costs.origin}"
    )
    impossible = [
        f"{count} ranks: more than the {len(parts.rows)} clients, a rank would own none"
        for count in too_many
    ]
    told = (*notes, *impossible, *rank_counts.advice(counts), measured)
    lines = [
        name,
        render_tables(rank_counts.table(counts, too_many), width=WIDTH),
        *(fill(line, WIDTH) for line in told),
        command,
    ]
    return JobPlan(best.plan, predictions[best.ranks], command, "\n".join(lines))


def _duration(hours: float) -> str:
    """Hours, or seconds if they are less than a minute."""
    return f"{hours:.4g} hours" if hours * 60 >= 1 else f"{hours * 3600:.2g} s"


def _hours(found: Prediction) -> str:
    """The time of a round and of all."""
    more = f",\n         {found.choose:.3g} s the candidates' losses" if found.choose else ""
    ship = (
        f",\n         {found.ship:.3g} s states on their way to other ranks" if found.ship else ""
    )
    return (
        f"{_duration(found.hours)} in all: {found.round:.4g} s a round, {found.evaluate:.3g} s an "
        f"evaluation\na round: {found.train:.4g} s training on the busiest rank "
        f"({found.busiest:.3g}x the mean of all),\n         {found.convert:.3g} s the exact mean, "
        f"{found.exchange:.3g} s all-reduces, {found.rest:.3g} s else{ship}{more}"
    )


def _summary(found: Plan, name: str) -> Table:
    made = Table(box=ASCII2, show_header=False, title=name, title_justify="left")
    made.add_column(no_wrap=True)
    made.add_column()
    for title, text in _lines(found):
        made.add_row(title, text)
    return made


def _lines(found: Plan) -> Iterable[tuple[str, str]]:
    yield "model", f"{found.parameters} parameters, {decimal(found.vector)}"
    yield (
        "clients",
        (
            f"{'at most ' * bool(found.candidates)}{found.seen} of {found.population} take part; "
            f"{found.rounds} rounds "
            f"of {found.cohort:.4g}"
        ),
    )
    if found.asked:
        asked = found.asked / found.rounds
        yield (
            "devices",
            f"{found.cohort:.4g} of {asked:.4g} clients that are asked count in a round; "
            f"{duration(found.simulated_s)} simulated in all",
        )
    low, high = found.steps
    steps = f"{low}" if low == high else f"{low} to {high}"
    over_all = "one" if found.full_gradients == 1 else f"{found.full_gradients}"
    whole = f"and {over_all} over all its examples" if found.full_gradient_rounds else ""
    always = f", {whole}" if found.full_gradient_rounds == found.rounds else ""
    each = "a gradient" if found.gradients == 1 else f"{found.gradients} gradients"
    if found.forwards:
        passes = "pass" if found.forwards == 1 else "passes"
        each += f" and {found.forwards} forward {passes}"
    yield "local work", f"{steps} steps of {each} per client and round{always}"
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
            f"{found.tests} test and {found.validation} validation examples, "
            f"{found.evaluations} times",
        )
    if found.tuning_steps:
        yield (
            "fine-tuning",
            f"{found.tuning_steps} steps of each of {found.tested} clients, "
            f"{found.evaluations} times",
        )
    visit, in_all = found.traffic, found.in_all
    yield "traffic", f"{decimal(visit.down)} down, {decimal(visit.up)} up per client and round"
    yield "", f"{decimal(in_all.down)} down, {decimal(in_all.up)} up in all"
    down, up = (f"{size / found.vector:.3g}" for size in visit)
    yield "overhead", f"{found.overhead:.3g}x FedAvg: {down} + {up} vectors"
    once = f", and {decimal(found.shared)} for all of a rank and round" if found.shared else ""
    if found.accountant is not None:
        yield "privacy", _privacy(found.accountant, found.rounds)
    yield "states", f"{decimal(found.own)} per client{once}"
    yield "server", f"{decimal(found.server)}, on every rank"
    yield "stores", f"{decimal(found.disk_budget.stores)} on {len(found.shares)} rank(s)"
    yield (
        "checkpoints",
        f"{decimal(found.disk_budget.checkpoint)} each, "
        f"{found.disk_budget.checkpoints} at most at a time",
    )


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
    return f"epsilon {epsilon:g} after {found.rounds} rounds: algorithm.noise={noise:.6g}"


def _ranks(found: Plan) -> Table:
    made = Table(box=ASCII2)
    for title in ("rank", "clients", "examples", "taking part", "in a round", "store", "memory"):
        made.add_column(title, justify="right", no_wrap=True)
    rows = [
        (s.clients, s.examples, s.seen, s.members, s.store, s.memory.total) for s in found.shares
    ]
    named = [(f"{rank}", row) for rank, row in enumerate(rows)]
    if len(rows) > FEW:
        columns = list(zip(*rows, strict=True))
        named = [("least", tuple(map(min, columns))), ("most", tuple(map(max, columns)))]
    for name, (*counts, store, memory) in named:
        made.add_row(name, *map(str, counts), decimal(store), decimal(memory))
    return made


def _memory(found: Plan) -> Table:
    """The parts of the memory of the rank that needs most."""
    rank, share = max(enumerate(found.shares), key=lambda pair: pair[1].memory.total)
    made = Table(f"memory of rank {rank}, without a GPU", box=ASCII2)
    made.add_column("at most", justify="right", no_wrap=True)
    *training, (_, loading), (_, shared) = share.memory._asdict().items()
    for name, size in training:
        made.add_row(name, _known(size))
        if name == "data" and shared and len(found.shares) > 1:
            made.add_row("  of it once for all ranks of a host", decimal(shared))
    made.add_section()
    made.add_row("while training: the sum", decimal(share.memory.training))
    made.add_row("while loading", _known(loading))
    made.add_section()
    made.add_row("at a time: the larger of both", decimal(share.memory.total))
    return made


def _known(size: int | None) -> str:
    return "unknown here" if size is None else decimal(size)


def _disk_line(found: Plan, folder: Path) -> str:
    """The disk space that the run needs, and that is free; a warning if it is too little."""
    there = next(path for path in (folder, *folder.absolute().parents) if path.is_dir())
    free = disk_usage(there).free
    line = f"{folder} needs {decimal(found.disk_budget.total)} of disk; {decimal(free)} are free"
    return line if found.disk_budget.total <= free else f"WARNING: {line}"
