"""What a job will need, found without training: disk, memory, traffic and gradients.

Sizes follow from the dry round, from the data and from the cohorts, all of which are drawn here:
they are a function of the seed.  Nothing of a resumed run is counted: on another number of ranks
its states are copied before the old ones are removed.
"""

import ctypes
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hpcfl.assemble import GIB, Parts
from hpcfl.placement import owners
from hpcfl.schema import Traffic, nbytes, traffic
from hpcfl.store.hdf5 import STATE_OVERHEAD, TENSOR_OVERHEAD
from hpcfl.store.size import ENTRY, INDEX, Occupancy
from hpcfl.types import Batch
from hpcfl.vectors import Layout

Counts = NDArray[np.int64]

HEADER, TENSOR_HEADER = 16, 60  # bytes of server.safetensors before its numbers, of each tensor
MANIFEST, MANIFEST_FILE = 140, 35  # bytes of manifest.json, of each file but one that it names
TRAINING = 6  # vectors: y, d, a gradient and its parts, what hooks make
SCRATCH = 1 << 22  # bytes of an exact sum
STATUS = Path("/proc/self/status")


class Memory(NamedTuple):
    """Bytes of one rank's host memory, of a job on the CPU."""

    program: int | None
    """The interpreter and its libraries; None where the system does not tell."""
    data: int
    """All examples, and each client's list of its own."""
    model: int
    """Initial model, server before and after a round, what a local step makes of vectors; the
    model before the last round and the best one, where the job keeps them."""
    activations: int
    """What a batch leaves for its backward pass, or passes through when it is evaluated."""
    states: int
    """The cache of client states, or all of them where they live in memory; their index."""
    cohort: int
    """Uploads, new states, full gradients and last models of one round, until they are summed."""
    sums: int
    """Buffers of the sum over the ranks, and its mean."""

    loading: int | None
    """At most while the data were loaded, which is over before the rest begins; or None."""

    @property
    def training(self) -> int:
        """All but ``loading`` together, as far as it is known."""
        return sum(size or 0 for size in self[:-1])

    @property
    def total(self) -> int:
        """At most at a time."""
        return max(self.training, self.loading or 0)


class Share(NamedTuple):
    """What falls to one rank."""

    clients: int
    examples: int
    seen: int
    """Clients that take part at least once."""
    members: int
    """Members of a cohort, at most."""
    store: int
    """Bytes of its stores at the end."""
    memory: Memory


@dataclass(frozen=True)
class Plan:
    """What a job will need; sizes in bytes."""

    parameters: int
    vector: int
    """Size of the model."""
    population: int
    rounds: int
    visits: int
    """Sizes of all cohorts together."""
    steps: tuple[int, int]
    """Local steps of a client and round, least and most."""
    gradients: int
    """Gradients of a step."""
    surveys: int
    """Rounds in which a client takes a gradient over all its examples too."""
    traffic: Traffic
    counted: str
    """How a paper counts the traffic, where it counts otherwise."""
    own: int
    """Kept for each client that was seen."""
    shared: int
    """Kept once for all clients of a rank and a round."""
    server: int
    checkpoint: int
    """One checkpoint, without the states."""
    best: int
    """The best model's file, of which every checkpoint holds one more; 0 if none is kept."""
    checkpoints: int
    """Checkpoints on the disk, at most."""
    shares: tuple[Share, ...]
    """One a rank."""

    @property
    def overhead(self) -> float:
        """Traffic as a multiple of FedAvg's, which sends the model down and up."""
        return sum(self.traffic) / (2 * self.vector)

    @property
    def cohort(self) -> float:
        """Mean size of a cohort."""
        return self.visits / self.rounds

    @property
    def seen(self) -> int:
        """Clients that take part at least once."""
        return sum(share.seen for share in self.shares)

    @property
    def in_all(self) -> Traffic:
        """Traffic of the whole job."""
        return Traffic(*(self.visits * size for size in self.traffic))

    @property
    def store(self) -> int:
        """The stores of all ranks."""
        return sum(share.store for share in self.shares)

    @property
    def disk(self) -> int:
        """What the run directory will take at most, without logs."""
        return self.store + self.checkpoints * self.checkpoint + self.best + self.vector


class Process(NamedTuple):
    """Bytes of memory of a process that has loaded the job and taken a gradient.

    None where the system does not tell: only Linux does.
    """

    resident: int | None
    """Now, without what was freed."""
    peak: int | None
    """At most so far."""


def this_process() -> Process:
    """This process; what it freed is given back to the system."""
    if not STATUS.exists():
        return Process(None, None)
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:  # glibc's
        trim(0)
    told = dict(line.split(":", 1) for line in STATUS.read_text().splitlines())
    # Some containers leave a line out.
    known = (told.get(key, "").split() for key in ("VmRSS", "VmHWM"))
    return Process(*(1024 * int(words[0]) if words else None for words in known))


class Activations(NamedTuple):
    """Bytes that one example takes in the model."""

    kept: int
    """For the backward pass."""
    largest: int
    """In one tensor of them."""


def probe(parts: Parts) -> Activations:
    """Take a gradient of one example, and one of two, and see what they keep."""
    (one, largest), (two, _) = _kept(parts, 1), _kept(parts, 2)
    return Activations(two - one, largest)


def _kept(parts: Parts, examples: int) -> tuple[int, int]:
    """Bytes that a backward pass needs of a batch, with the parameters; and the largest tensor."""
    sizes: dict[int, int] = {}

    def note(tensor: Tensor) -> Tensor:
        sizes[tensor.data_ptr()] = tensor.nbytes
        return tensor

    data = parts.dataset
    inputs = data.transform(data.train.inputs[:examples], parts.x0.dtype, None)
    batch = Batch(inputs, data.train.labels[:examples])
    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        parts.gradient().stochastic(parts.x0, batch, 0)
    own = {view.data_ptr() for view in Layout.of(parts.model).views(parts.x0)}
    return sum(sizes.values()), max((n for at, n in sizes.items() if at not in own), default=0)


def plan(parts: Parts, ranks: int, *, process: Process, activations: Activations) -> Plan:
    """What the job of ``parts`` will need on so many ranks.

    Args:
        parts: the job, loaded.
        ranks: how many.
        process: one that has loaded the job and taken a gradient.
        activations: what ``probe`` says.

    Raises:
        JobError: there are more ranks than clients.
    """
    job, schema, population = parts.job, parts.schema, parts.population
    examples = population.examples
    owner = owners(examples, ranks)
    shared = nbytes([leaf for leaf in schema.state if leaf is schema.message.x])
    own = nbytes(schema.state) - shared
    in_memory = job.store.kind == "memory"
    states = [
        Occupancy(owner, ranks, size, job.checkpoint.keep, shared=common, memory=in_memory)
        for size, common in ((own, False), (shared, True))
        if size
    ]
    visits, last, members = _play_cohorts(parts, owner, ranks, states)
    seen = np.bincount(owner[last > 0], minlength=ranks)
    nothing = np.zeros(ranks, np.int64)
    stores = sum((part.bytes for part in states), nothing)
    held = sum((part.states * part.each for part in states), nothing)
    steps = [int(population.visit(client, 0).about.steps) for client in range(len(examples))]
    count = int(seen.sum()) if schema.state else 0
    tables = max(1, len(states)) * (ranks * INDEX + count * ENTRY)
    best = _best(parts)
    return Plan(
        parameters=parts.x0.numel(),
        vector=nbytes(schema.message.x),
        population=len(examples),
        rounds=job.rounds,
        visits=visits,
        steps=(min(steps), max(steps)),
        gradients=schema.gradients,
        surveys=_surveys(parts),
        traffic=traffic(parts.algorithm, schema),
        counted=parts.algorithm.counted,
        own=own,
        shared=shared,
        server=nbytes(schema.server),
        checkpoint=_checkpoint(parts, best, ranks * max(1, len(states))) + tables,
        best=best,
        checkpoints=min(job.checkpoint.keep, _commits(parts)) + 1,
        shares=tuple(
            Share(
                clients=int((owner == rank).sum()),
                examples=int(np.array(examples)[owner == rank].sum()),
                seen=int(seen[rank]),
                members=int(members[rank]),
                store=int(stores[rank]),
                memory=_memory(
                    parts,
                    rank,
                    int(held[rank]),
                    int(seen[rank]),
                    int(members[rank]),
                    process,
                    activations,
                ),
            )
            for rank in range(ranks)
        ),
    )


def _play_cohorts(
    parts: Parts, owner: Counts, ranks: int, states: list[Occupancy]
) -> tuple[int, Counts, Counts]:
    """All visits; every client's last round, 0 for none; every rank's largest part of a cohort."""
    job, population = parts.job, len(parts.rows)
    visits, last, most = 0, np.zeros(population, np.int64), np.zeros(ranks, np.int64)
    for t in range(job.rounds):
        members = job.cohort.draw(t, population, job.seed)
        visits += len(members)
        last[members] = t + 1
        most = np.maximum(most, np.bincount(owner[members], minlength=ranks))
        if job.checkpoint.due(t + 1, job.rounds):
            for part in states:
                part.commit(last.copy())
    return visits, last, most


def _commits(parts: Parts) -> int:
    """Checkpoints that the rounds make."""
    return -(-parts.job.rounds // parts.job.checkpoint.every)


def _measured(parts: Parts) -> int:
    """Rounds that the diagnostics measure."""
    return parts.job.rounds // parts.job.diagnostics.every


def _surveys(parts: Parts) -> int:
    """Rounds in which full gradients are taken, for the algorithm or for the diagnostics."""
    if parts.algorithm.full_gradient != "none":
        return parts.job.rounds
    return _measured(parts) if parts.job.diagnostics.dissimilarity else 0


def _checkpoint(parts: Parts, best: int, tables: int) -> int:
    """A checkpoint's bytes but for the contents of its ``tables`` row tables."""
    files = [_file(parts.schema.server)]
    if parts.job.diagnostics.cosine:
        files.append(_file([parts.schema.message.x]))
    if best:
        files.append(best)
    return sum(files) + MANIFEST + (len(files) - 1 + tables) * MANIFEST_FILE


def _best(parts: Parts) -> int:
    """The bytes of best.safetensors: the model, its round and its score."""
    if not parts.job.evaluate.best:
        return 0
    number = torch.empty((), dtype=torch.float64)
    return _file([parts.schema.message.x, number, number])


def _file(fields: Any) -> int:
    """The bytes of a safetensors file."""
    tensors = sum(len(field) if isinstance(field, tuple) else 1 for field in fields)
    return nbytes(fields) + HEADER + tensors * TENSOR_HEADER


def _memory(
    parts: Parts,
    rank: int,
    held: int,
    seen: int,
    members: int,
    process: Process,
    activations: Activations,
) -> Memory:
    """The memory of a rank with ``held`` bytes of states, of ``seen`` clients."""
    job, schema, vector = parts.job, parts.schema, nbytes(parts.x0)
    watched, due = job.diagnostics, _measured(parts) > 0
    surveyed = _surveys(parts) > 0
    summed = parts.algorithm.full_gradient == "cohort" or (watched.dissimilarity and due)
    data = nbytes([parts.dataset.train, parts.dataset.test or ()])
    data += sum(rows.nbytes for rows in parts.rows)
    # What `finish` returns twice is one tensor; what it returns of the message is the model's.
    ends = {id(leaf): leaf for leaf in (*schema.upload, *schema.state)}
    ends.pop(id(schema.message.x), None)
    visit = nbytes(list(ends.values())) + vector * surveyed
    if due and (watched.consistency or watched.drift) and schema.own is None:
        visit += vector  # its last model, which no state is
    sent = nbytes(schema.upload) + vector * summed
    states = held + seen * (STATE_OVERHEAD + TENSOR_OVERHEAD * len(schema.state))
    cache = states if job.store.kind == "memory" else int(job.store.cache_gib * GIB)
    if states > cache:  # those of the cohort may be read anew, while the cache is full
        visit += nbytes(schema.state)
    whole, largest = job.evaluate.batch_size, max(map(len, parts.rows))
    batch = _batch(parts)
    if surveyed:
        batch = max(batch, min(whole, largest))
    # The model before the last round, and on rank 0 the best one.
    extra = watched.cosine + (job.evaluate.best and rank == 0)
    tested = min(whole, len(parts.tests()))
    wide = 8 // parts.x0.itemsize if job.reduction == "exact" else 1  # exact sums are of int64
    return Memory(
        program=None if process.resident is None else max(0, process.resident - data),
        data=data,
        model=(2 + TRAINING + extra) * vector + 2 * nbytes(schema.server),
        activations=max(batch * activations.kept, 2 * tested * activations.largest),
        states=min(states, cache) + 20 * len(parts.rows),
        cohort=members * visit,
        sums=sent * (wide + 1) + (1 + summed) * SCRATCH,
        loading=process.peak,
    )


def _batch(parts: Parts) -> int:
    """Examples of a local step, at most."""
    size, largest = parts.job.local.batch_size, max(map(len, parts.rows))
    return largest if size == "full" else min(size, largest)
