"""The output of `hpcfl check` (``check_job``) and of `hpcfl data show` (``show_partition``)."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.box import ASCII2
from rich.filesize import decimal
from rich.table import Table
from torch import Tensor

from hpcfl.data.base import Dataset
from hpcfl.data.fingerprints import Digests, digest, fingerprints, shown
from hpcfl.data.partition import Dirichlet, ExampleRows, Partition
from hpcfl.data.split import effective_partition, split_examples
from hpcfl.engine.dry_round import traffic
from hpcfl.errors import JobError
from hpcfl.io.table import render_tables
from hpcfl.io.words import counted
from hpcfl.job.resolve import resolve_algorithm
from hpcfl.job.schema import Job, LoadedJob
from hpcfl.models.base import TORCHVISION
from hpcfl.runs.job_file.resume_rules import input_places
from hpcfl.runs.job_file.settings import flatten, written
from hpcfl.start.checks.algorithm import check_algorithm_without_data
from hpcfl.start.checks.preflight import check_components
from hpcfl.start.components.build import build_components
from hpcfl.start.components.choose_executor import choose_executor
from hpcfl.start.components.components import Components
from hpcfl.start.components.initial_model import fetch_model
from hpcfl.start.components.load_data import fetch_data, load_data
from hpcfl.start.device import bfloat16_warning, device_type
from hpcfl.tools.listing import multiples, multiples_of
from hpcfl.tools.report.columns import duration
from hpcfl.tools.report.plots import plot_partition
from hpcfl.tools.report.plots.figure import check_plot
from hpcfl.types import IntArray, Section
from hpcfl.user_code.names import short_name

_WHAT = ("down", "up", "kept")  # of what a client receives, sends and keeps
FEW = 20  # clients whose classes are counted, or inputs whose ranges are given, one by one


@dataclass(frozen=True)
class CheckedJob:
    """A job that was found to be right."""

    job: Mapping[str, Any]
    """The resolved job, section by section; defaults that depend on the data are filled in where
    these were loaded."""
    clients: int | None
    """How many there are; None where only the data says."""
    parameters: int | None
    """The model's parameters; None where the data were not loaded."""
    examples: int | None
    """For training; None where the data were not loaded."""
    summary: str
    """What ``hpcfl check`` prints."""

    def __str__(self) -> str:
        return self.summary


def check_job(loaded: LoadedJob, *, data: bool) -> CheckedJob:
    """Check a job and summarise it.

    Args:
        loaded: the job, whose keys were checked as it was read.
        data: also fetch and load the data, build the model, and try the job's classes on batches;
            without it nothing is read but the job, and the files that it names need only exist.

    Raises:
        JobError, DataError: something in the job does not fit.
    """
    if data:
        fetch_data(loaded)
        fetch_model(loaded)
    components, inputs = _assembled(loaded) if data else (None, {})
    notes: Sequence[str] = ()
    if components:
        notes = (*check_components(components), *components.function().notes)
    population = len(components.population.rows) if components else loaded.job.data.population
    if not components:
        loaded = resolve_algorithm(loaded, population)
        _check_files(loaded.job)
        check_algorithm_without_data(loaded)
    in_force = _in_force(components.loaded if components else loaded, components)
    dealt = loaded.job.data.partition_clients
    if components:
        dealt = len(components.population.rows) + components.population.split.kept_clients
    if components:
        sizes = multiples_of(components.training.algorithm, components.training.schema)
    else:
        sizes = multiples(loaded.job.algorithm)
    lines = [
        *_job_lines(in_force, population, dealt, sizes),
        *_executor_lines(in_force, components),
    ]
    if components:
        lines += [*_data_lines(components), *(("note", note) for note in notes)]
        lines += _input_lines(inputs)
    else:
        lines += [("note", note) for note in loaded.notes]
    return CheckedJob(
        in_force.tree,
        population,
        components.model.x0.numel() if components else None,
        sum(map(len, components.population.rows)) if components else None,
        "\n".join(f"{title:<11} {text}" for title, text in lines),
    )


def _assembled(loaded: LoadedJob) -> tuple[Components, Digests]:
    """The loaded job, and the fingerprints of its inputs."""
    components = build_components(loaded, torch.device("cpu"))
    dataset = replace(components.population.dataset, digest=digest(components.population.dataset))
    return components, fingerprints(loaded.job.data, dataset, input_places(flatten(loaded.tree)))


def show_partition(loaded: LoadedJob, plot: Path | None) -> str:
    """Show the examples of each client, as tables and perhaps as a plot.

    Args:
        loaded: the job.
        plot: the file to draw, if one is wanted.

    Raises:
        JobError, DataError: the data cannot be loaded or partitioned, or the plot not be written.
    """
    if plot:
        check_plot(plot)
    job = loaded.job
    fetch_data(loaded)
    dataset = load_data(loaded)
    split = split_examples(job.data, dataset, job.seed)
    rows = split.rows
    counts = count_classes(dataset, rows)
    if plot:
        plot_partition(counts, plot)
    partition = effective_partition(job.data, dataset)
    heading = f"partition: {_setting(partition)}{_other_form(partition, dataset.classes)}\n"
    heading += "".join(f"note: {note}\n" for note in (*dataset.notes, *split.notes))
    heading += f"not trained on: {split.note}\n" if split.note else ""
    heading += f"{_kept_clients(split.kept_clients, len(rows))}\n" if split.kept_clients else ""
    sizes = counts if counts.ndim == 1 else counts.sum(axis=1)
    table = Table(counted(len(rows), "client"), "min", "median", "max", box=ASCII2)
    table.add_row("examples", *_spread(sizes))
    if counts.ndim == 1:
        return heading + render_tables(table)
    table.add_row("classes", *_spread((counts > 0).sum(axis=1)))
    if len(rows) > FEW:
        return heading + render_tables(table)
    every = Table("class | client", *(f"{client}" for client in range(len(rows))), box=ASCII2)
    for label, held in enumerate(counts.T):
        every.add_row(f"{label}", *(f"{n}" if n else "." for n in held))
    return heading + render_tables(table, every)


def _other_form(partition: Partition, classes: int | None) -> str:
    """How a Dirichlet partition would be written in the other form, were its classes balanced."""
    if not isinstance(partition, Dirichlet) or not partition.alpha or not classes:
        return ""
    form, alpha = (
        ("symmetric", partition.alpha / classes)
        if partition.form == "prior"
        else ("prior", partition.alpha * classes)
    )
    return (
        f"; with {classes} equally frequent classes the same as form {form}, alpha {alpha:g}, "
        f"order {partition.effective_order}"
    )


def count_classes(dataset: Dataset, rows: Iterable[ExampleRows]) -> IntArray:
    """[N, classes] examples of each client and class; [N] where examples have no one class."""
    if dataset.classes is None or dataset.loss == "tokens":
        return np.array([len(own) for own in rows])
    labels = dataset.train.labels.numpy()
    return np.array([np.bincount(labels[own], minlength=dataset.classes) for own in rows])


def _check_files(job: Job) -> None:
    init = job.model.init_file
    if init is not None and job.model.init != TORCHVISION and not init.is_file():
        raise JobError(f"model.init: {init}: there is no such file")
    trace = None if job.devices is None else job.devices.path
    if trace is not None and not Path(trace).is_file():
        raise JobError(f"devices.path: {trace}: there is no such file")


def _in_force(loaded: LoadedJob, components: Components | None) -> LoadedJob:
    """The job with the defaults that depend on other keys, or on its data, filled in."""
    data, local = loaded.job.data, loaded.job.local
    if components:
        data = replace(data, partition=effective_partition(data, components.population.dataset))
    if local.epochs is None and local.steps is None:
        local = replace(local, epochs=1)
    return replace(loaded, job=replace(loaded.job, data=data, local=local))


def _job_lines(
    loaded: LoadedJob, population: int | None, dealt: int | None, sizes: Sequence[str]
) -> Iterable[tuple[str, str]]:
    """Lines on the job itself.

    Args:
        loaded: the job.
        population: the clients that train; None if only the data knows their number.
        dealt: these and the clients kept for validation.
        sizes: of what a client receives, sends and keeps, in vectors; "-" if not known.
    """
    job, tree = loaded.job, loaded.tree
    yield "job", loaded.name + (f" (task {job.task})" if job.task else "")
    count = (
        "as many clients as the data has" if population is None else counted(population, "client")
    )
    yield "data", f"{tree['data']['kind']}, {count}{_settings(job.data, 'clients')}"
    if population and dealt and dealt > population:
        yield "", _kept_clients(dealt - population, population)
    if job.data.partition is None:
        default = job.data.default_partition.kind
        yield "", f"partition: natural where the data set names its clients, else {default}"
    share = f", C = {job.cohort.participation(population):.4g}" if population else ""
    yield "cohort", f"{job.cohort.kind}{_settings(job.cohort, 'kind')}{share}"
    if job.devices is not None:
        yield "devices", _settings(job.devices).removeprefix(": ")
    yield "algorithm", f"{short_name(tree['algorithm']['name'])}{_settings(job.algorithm)}"
    known = [f"{n} {what}" for n, what in zip(sizes, _WHAT, strict=False) if n != "-"]
    if known:
        yield "", f"vectors per client: {', '.join(known)}"
    if job.algorithm.warm_start:
        yield "", "before round 1 every client receives x and sends its full gradient"
    yield "local", f"sgd{_settings(job.local)}"
    yield "weights", job.weights
    unused = () if job.model.init else ("init_layers",)
    yield "model", f"{tree['model']['name']}{_settings(job.model, *unused)}"
    yield "run", f"{counted(job.rounds, 'round')}, {job.precision}, seed {job.seed}"
    slow = bfloat16_warning(job, torch.device(device_type(job)))
    if slow:
        yield "warning", slow
    yield "evaluate", _settings(job.evaluate).removeprefix(": ")
    if job.stop is not None:
        yield "stop", _settings(job.stop).removeprefix(": ")
    if measured := [
        f.name for f in fields(job.diagnostics) if getattr(job.diagnostics, f.name) is True
    ]:
        yield (
            "diagnostics",
            f"{', '.join(measured)}, every {counted(job.diagnostics.every, 'round')}",
        )
    yield "checkpoint", _settings(job.checkpoint).removeprefix(": ")


def _executor_lines(loaded: LoadedJob, components: Components | None) -> Iterable[tuple[str, str]]:
    """How clients are trained; with data as a start settles it, unless a GPU takes part in that."""
    job, settled = loaded.job, dict[str, str]()
    on_cpu = job.device != "cuda" and device_type(job) == "cpu"
    if components and job.executor != "sequential" and (job.executor != "auto" or on_cpu):
        _, lines = choose_executor(components, None)
        settled = dict(line.split(": ", 1) for line in lines)
    yield "executor", settled.get("executor", job.executor)
    if size := settled.get("block_size", job.block_size):
        yield "block_size", f"{size}"


_OWN = {
    "holdout": "held-out examples",
    "test": "test examples of their own",
    "train": "training examples",
}


def _data_lines(components: Components) -> Iterable[tuple[str, str]]:
    population, model, training = components.population, components.model, components.training
    sizes = np.array([len(own) for own in population.rows])
    tests = len(population.tests())
    low, median, high = _spread(sizes)
    spread = f"{_between(low, high)} a client, median {median}"
    apart = f", {population.split.note}" if population.split.note else ""
    yield "examples", f"{spread}; {sizes.sum()} in all{apart}, {tests} for testing"
    if components.job.evaluate.scores_clients:
        data, rows = population.client_tests
        scored = (
            f"{sum(map(len, rows))} {_OWN[data]}, of {counted(population.tested_clients, 'client')}"
        )
        yield "", f"clients are scored on {scored}"
    if population.dataset.named is not None:
        yield "forward", f"{population.dataset.named.given(model.x0.dtype)}"
    if ranges := _input_ranges(population.dataset):
        more = f", ... ({len(ranges)} in all)" if len(ranges) > FEW else ""
        yield "trained on", f"{', '.join(ranges[:FEW])}{more}"
    steps = population.clients.steps_per_round
    yield "steps", f"K = {_between(int(steps.min()), int(steps.max()))}"
    if components.job.devices is not None:
        seconds = population.participants.typical()
        fast, median, slow = (duration(s) for s in np.quantile(seconds, (0, 0.5, 1)).tolist())
        yield (
            "devices",
            f"a round takes the fastest {fast}, the median {median}, the slowest {slow}",
        )
    yield "parameters", model.text.replace(" parameters", "", 1)
    bytes_ = traffic(training.algorithm, training.schema)
    yield "traffic", f"{decimal(bytes_.down)} down, {decimal(bytes_.up)} up per client and round"
    kept = training.stored_state
    own, shared = kept.own.bytes, kept.shared.bytes
    once = f"; {decimal(shared)} a round and rank, once for all its clients" if shared else ""
    yield "states", f"{decimal(own)} a client, {decimal(own * len(sizes))} in all{once}"
    for number, note in enumerate((*components.loaded.notes, *population.dataset.notes)):
        yield "" if number else "note", note
    if model.missing_weights:
        yield "skipped", f"model.init left out {', '.join(model.missing_weights)}"


def _input_ranges(dataset: Dataset) -> list[str]:
    """The inputs of the training examples as they are stored: "age 18 to 70".

    None of a file that is mapped or read in parts, which may be larger than the memory.
    """
    inputs = dataset.train.inputs
    if dataset.mapped or not isinstance(inputs, Tensor):
        return []
    if dataset.named is not None:
        parts = dataset.named.unpack(inputs)
    elif dataset.columns:
        parts = dict(zip(dataset.columns, inputs.unbind(1), strict=True))
    else:
        parts = {f"x {[*inputs.shape[1:]]}": inputs}
    return [f"{name:.40} {_between(*_range(part))}" for name, part in parts.items()]


def _range(values: Tensor) -> tuple[str, str]:
    """The least and the largest of numbers or booleans."""
    ends = values.min().item(), values.max().item()
    low, high = (f"{end:.6g}" if isinstance(end, float) else f"{end}" for end in ends)
    return low, high


def _input_lines(inputs: Digests) -> Iterable[tuple[str, str]]:
    """The digests that a run records, to compare with another machine's."""
    for number, (name, found) in enumerate(inputs.items()):
        yield "" if number else "inputs", f"{name}: {shown(found)}..."


def _settings(section: Any, *but: str) -> str:
    """The fields of a section that are set: ": lr 0.1, steps 3"."""
    named = {f.name: getattr(section, f.name) for f in fields(section) if f.name not in but}
    set_ = [f"{name} {_setting(v)}" for name, v in named.items() if v is not None]
    return ": " + ", ".join(set_) if set_ else ""


def _setting(value: Any) -> str:
    if isinstance(value, Section) and not hasattr(value, "kind"):
        return f"({_settings(value).removeprefix(': ')})"
    if hasattr(value, "kind"):
        return f"{value.kind}{_settings(value, 'kind').replace(':', ' of', 1)}"
    if isinstance(value, tuple) and any(isinstance(part, tuple) for part in value):
        return f"of {len(value)} lists"
    return written(value)


def _kept_clients(kept: int, population: int) -> str:
    return (
        f"kept for validation, in no round: {kept} of {kept + population} clients; the others are "
        "numbered anew, in their order"
    )


def _between(low: Any, high: Any) -> str:
    return f"{low}" if low == high else f"{low} to {high}"


def _spread(numbers: IntArray) -> tuple[str, str, str]:
    """The least, the median and the most."""
    return f"{numbers.min()}", f"{np.median(numbers):g}", f"{numbers.max()}"
