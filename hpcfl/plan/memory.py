"""Predict the memory of a rank and of a host, from what this process and an example take."""

from math import prod
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from hpcfl.cohort.sampling import PowerOfChoice
from hpcfl.data.partition import bytes_of
from hpcfl.engine.dry_round import nbytes
from hpcfl.io.memory import number, return_freed_memory
from hpcfl.local.examples import READ_AHEAD, WHOLE_CLIENT_BYTES
from hpcfl.local.executor import padded_width
from hpcfl.local.lanes import ROUND_BYTES
from hpcfl.models.flat_vector import layout_of
from hpcfl.models.statistics import normalises_batches
from hpcfl.plan.full_gradients import diagnosed_rounds, full_gradient_means, full_gradients
from hpcfl.setup.client_store import GIB
from hpcfl.setup.components import Components
from hpcfl.store.footprint import ALIGNMENT, STATE_OVERHEAD
from hpcfl.types import Batch

STATUS = Path("/proc/self/status")
TRAINING = 6  # vectors: y, d, a gradient and its parts, results of hooks
BLOCK_TRAINING = 10  # the same for each client of a block, with the stacked states
COPIES = 3  # of a block's inputs: as read, stacked, and in the layout of a layer
SCRATCH = 1 << 22  # bytes of an exact sum


class Process(NamedTuple):
    """Bytes of memory of a process that has loaded the job and taken a gradient.

    None where the system does not report them: only Linux does.
    """

    resident: int | None
    """Now, without freed memory."""
    peak: int | None
    """At most so far."""


def this_process() -> Process:
    """Measure this process; its freed memory is returned to the system first."""
    return_freed_memory()
    try:
        resident, peak = (number(STATUS, key) for key in ("VmRSS:", "VmHWM:"))
    except OSError:
        return Process(None, None)
    return Process(1024 * resident or None, 1024 * peak or None)  # 0: containers leave lines out


class Activations(NamedTuple):
    """Bytes that one example takes in the model."""

    kept: int
    """For the backward pass."""
    largest: int
    """In one tensor of them."""


def probe(components: Components) -> Activations:
    """Measure the activations of a gradient of one example, and of two; the difference is one's.

    Batch normalisation may have no gradient of one: then of two, and of three.
    """
    least = 2 if normalises_batches(components.model) else 1
    (fewer, largest), (more, _) = _kept(components, least), _kept(components, least + 1)
    return Activations(more - fewer, largest // least)


def _kept(components: Components, examples: int) -> tuple[int, int]:
    """Bytes that a backward pass needs of a batch, with the parameters; and the largest tensor."""
    sizes: dict[int, int] = {}

    def note(tensor: Tensor) -> Tensor:
        sizes[tensor.data_ptr()] = tensor.nbytes
        return tensor

    batch = Batch(_inputs(components, examples), components.dataset.train.labels[:examples])
    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        components.gradient().stochastic(components.x0, batch, 0)
    own = {view.data_ptr() for view in layout_of(components.model).views(components.x0)}
    return sum(sizes.values()), max((n for at, n in sizes.items() if at not in own), default=0)


def _inputs(components: Components, examples: int) -> Tensor:
    """What the model is given of the first so many examples."""
    data = components.dataset
    return data.transform(data.sample(examples), components.x0.dtype, None)


class Memory(NamedTuple):
    """Bytes of one rank's host memory, of a job on the CPU."""

    program: int | None
    """The interpreter and its libraries; None if the system does not report it."""
    data: int
    """All examples, or those that are read ahead, and each client's list of indices."""
    model: int
    """Initial model, server before and after a round and while it is saved, what a local step makes
    of vectors, for every client of a block; the model before the last round and the best one, where
    the job keeps them."""
    activations: int
    """Activations that a batch keeps for its backward pass, or has in an evaluation."""
    states: int
    """The cache of client states, and their index."""
    cohort: int
    """Uploads, new states, full gradients and last models of one round, until they are summed."""
    sums: int
    """Buffers of the sum over the ranks, and its mean."""

    loading: int | None
    """At most while the data were loaded, which is over before the rest begins; or None."""
    shared: int
    """Of ``data``, what the ranks of a host have together once."""

    @property
    def training(self) -> int:
        """From ``program`` to ``sums`` together, as far as it is known."""
        return sum(size or 0 for size in self[: self._fields.index("loading")])

    @property
    def total(self) -> int:
        """At most at a time, of a rank that is alone on its host."""
        return max(self.training, self.loading or 0)

    def of_host(self, ranks: int) -> int:
        """Bytes of a host with so many ranks like this one, at most at a time.

        One of them loads the data, and has them twice while it copies them for the others.
        """
        if ranks == 1 or not self.shared:  # then every rank loads them
            return ranks * self.total
        program = self.program or 0
        first = max(self.loading or 0, program + self.data + self.shared)
        training = ranks * self.training - (ranks - 1) * self.shared
        return max(training, first + (ranks - 1) * program)


class Holding(NamedTuple):
    """The numbers of a rank that its memory depends on."""

    rank: int
    seen: int
    """Clients that take part at least once."""
    members: int
    """Members of a cohort, at most."""
    states: int
    """Bytes of its clients' states at the end."""


def memory(
    components: Components, holding: Holding, *, process: Process, activations: Activations
) -> Memory:
    """The memory of a rank that holds this."""
    job, schema, vector = components.job, components.schema, nbytes(components.x0)
    watched, diagnosed = job.diagnostics, diagnosed_rounds(components) > 0
    gradients, means = full_gradients(components), full_gradient_means(components)
    means = means or (watched.dissimilarity and diagnosed) or components.algorithm.warm_start
    data = data_bytes(components)
    # A tensor that `finish` returns twice counts once; the message's x is counted as the model.
    ends = {id(leaf): leaf for leaf in (*schema.upload, *schema.state)}
    ends.pop(id(schema.message.x), None)
    visit = nbytes(list(ends.values())) + vector * gradients
    if diagnosed and (watched.consistency or watched.drift) and schema.local_model_field is None:
        visit += vector  # its last model, which no state is
    if components.algorithm.warm_start:  # a gradient, the first state, and the one made of both
        visit = max(visit, vector + 2 * nbytes(schema.state))
    # All means of full gradients have one buffer.
    sent = nbytes(schema.upload) + vector * bool(means)
    states = holding.states + holding.seen * (STATE_OVERHEAD + ALIGNMENT * len(schema.state))
    cache = int(job.store.cache_gib * GIB)
    if states > cache:  # a cohort's were read, the next one's are, new ones are being written
        visit += 3 * nbytes(schema.state)
    whole, largest = job.evaluate.batch_size, max(map(len, components.rows))
    # Of each client that trains, in vectors: the state of its optimiser.
    optimizer = -(-nbytes(components.descent.init(components.x0.to("meta"))) // vector)
    batch, vectors, inputs, graphs = _batch(components), TRAINING + optimizer, 0, 1
    if job.executor != "sequential":
        # A CUDA graph keeps its memory, and fine-tuning has one of its own.
        graphs += components.device.type == "cuda" and components.tuning_steps > 0
        vectors = (BLOCK_TRAINING + optimizer) * components.concurrent_clients * graphs
        batch = padded_width(batch, components.device, bf16=job.precision == "bf16")
        inputs = COPIES * components.concurrent_clients * batch * nbytes(_inputs(components, 1))
        if job.executor == "lanes":  # keep the batches of a client's steps
            steps = int(components.clients.steps_per_round.max())
            inputs += min(ROUND_BYTES, steps * inputs // COPIES)
    if gradients or components.algorithm.warm_start:
        batch = max(batch, min(whole, largest))
    trained = graphs * (components.concurrent_clients * batch * activations.kept + inputs)
    # The model before the last round, and on rank 0 the best one.
    extra = job.evaluate.best and holding.rank == 0
    # A checkpoint's copy of the server, and its file in memory, while it is written.
    saved = 2 * nbytes(schema.server) * (holding.rank == 0)
    tested = min(whole, max(len(components.tests()), len(components.validation())))
    if isinstance(job.cohort, PowerOfChoice):
        tested = max(tested, min(whole, largest))
    wide = 8 // components.x0.itemsize if job.reduction == "exact" else 1  # exact sums are of int64
    return Memory(
        program=None if process.resident is None else max(0, process.resident - data),
        data=data,
        model=(2 + vectors + extra) * vector + 2 * nbytes(schema.server) + saved,
        activations=max(trained, 2 * tested * activations.largest),
        states=min(states, cache) + 20 * len(components.rows),
        cohort=holding.members * visit,
        sums=sent * wide + nbytes(schema.upload) + vector * means + (1 + bool(means)) * SCRATCH,
        loading=process.peak,
        shared=shared_bytes(components),
    )


def data_bytes(components: Components) -> int:
    """Bytes of the data in memory: all of it, or the examples read ahead of a file."""
    total = bytes_of(components.rows)
    if components.dataset.mapped:
        return total
    for examples in filter(None, (components.dataset.train, components.dataset.test)):
        total += nbytes(examples.labels)
        if isinstance(examples.inputs, Tensor):
            total += nbytes(examples.inputs)
            continue
        one = prod(examples.inputs.shape[1:]) * examples.inputs.dtype.itemsize
        whole = components.concurrent_clients + READ_AHEAD  # clients
        window = [
            min(one * n, WHOLE_CLIENT_BYTES) for n in sorted(map(len, components.rows))[-whole:]
        ]
        if examples is components.dataset.test:
            tested = min(len(examples.labels), components.job.evaluate.batch_size)
            window = [one * tested] * (1 + READ_AHEAD)
        elif len(components.validation()):
            tested = min(len(components.validation()), components.job.evaluate.batch_size)
            window += [one * tested] * (1 + READ_AHEAD)
        total += sum(window) + max(window)  # a client's parts are in memory until they are joined
    return total


def shared_bytes(components: Components) -> int:
    """Bytes of the data that the ranks of a host have once, see ``hpcfl.data.host_copy``."""
    dataset = components.dataset
    parts = [part for part in (dataset.train, dataset.test) if part is not None]
    in_files = any(not isinstance(part.inputs, Tensor) for part in parts)
    if dataset.mapped or in_files or components.job.data.maps_files:
        return 0
    return sum(nbytes(part.inputs) + nbytes(part.labels) for part in parts)


def _batch(components: Components) -> int:
    """Examples of a local step, at most."""
    size, largest = components.job.local.batch_size, max(map(len, components.rows))
    return largest if size == "full" else min(size, largest)
