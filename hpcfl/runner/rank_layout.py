"""Discover on which host and device every rank is, and check it before anything is loaded."""

import json
import os
import socket
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from itertools import groupby
from pathlib import Path
from typing import Any

import torch
from pydantic import BaseModel, ConfigDict

from hpcfl import __version__
from hpcfl.comm.connect import choose
from hpcfl.comm.launcher import detect
from hpcfl.comm.watched import Watched
from hpcfl.errors import JobError
from hpcfl.job.schema import Job, Loaded
from hpcfl.runner.device import device_of
from hpcfl.runner.environment import processor

_NUMA = Path("/sys/devices/system/node")
_TOLD = 4  # hosts in a message; a history has them all


class RankInfo(BaseModel):
    """Where a rank runs and what it computes with."""

    model_config = ConfigDict(frozen=True)

    rank: int
    host: str
    local_rank: int
    """Its place among the ranks of its host."""
    device: str
    """"cpu", or "cuda:" and the number by which the rank knows its GPU."""
    gpu: str = ""
    """The GPU's own identifier, the same for all who use it."""
    threads: int
    cores: list[int]
    """The host's cores that it may use."""
    numa: list[int]
    """The NUMA nodes that those belong to."""
    processor: str
    versions: dict[str, str]
    """Of what must be the same on all ranks."""
    job: str
    """What tells its job and its run directory from others."""
    fault: str = ""
    """Why it cannot run there."""

    @property
    def record(self) -> dict[str, Any]:
        """What the history keeps of it."""
        kept = self.model_dump(include={"host", "local_rank", "device", "threads", "numa"})
        return {**kept, "cores": len(self.cores)}

    def __str__(self) -> str:
        return f"rank {self.rank} (host {self.host})"


@dataclass(frozen=True)
class Ranks:
    """Where the ranks of one start of a run are."""

    infos: Sequence[RankInfo]
    """By rank."""
    device: torch.device
    """This rank's."""
    notes: Sequence[str]
    """What a person should know of them, a line each."""

    def with_notes(self, *lines: str) -> "Ranks":
        """These ranks, with more notes."""
        return replace(self, notes=[*self.notes, *lines])


def discover_ranks(loaded: Loaded, out: Path, comm: Watched) -> Ranks:
    """Collective: where all ranks are, checked; this rank's GPU, if it has one, is taken.

    Args:
        loaded: the checked job.
        out: the run directory.
        comm: the group; none of its collectives has touched a GPU yet.

    Raises:
        JobError: the same on every rank, see ``check``.
    """
    seats = [
        RankInfo.model_validate_json(text) for text in comm.allgather(_seat(loaded, out, comm))
    ]
    told = check(seats, comm.backend)
    device = torch.device(seats[comm.rank].device)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    if comm.size > 1:
        told.insert(
            0, f"{describe(seats)}, by {comm.backend}{_why(loaded.job, device)}, {comm.library}"
        )
    return Ranks(seats, device, told)


def check(seats: Sequence[RankInfo], backend: str) -> list[str]:
    """Refuse seats from which no run, or only a bad one, can come; what is merely odd, a line each.

    Args:
        seats: of all ranks.
        backend: what sums: solo, mpi, gloo or nccl.

    Raises:
        JobError: the same on every rank.
    """
    for fault in _faults(seats, backend):
        raise JobError(fault, collective=True)
    return list(_oddities(seats))


def describe(seats: Sequence[RankInfo]) -> str:
    """One line: how many ranks where, on what, with how many threads."""
    hosts = [f"{host}: {_span(members)}" for host, members in _by_host(seats)]
    shown = "; ".join(hosts[:_TOLD]) + ("; ..." if len(hosts) > _TOLD else "")
    threads = sorted({seat.threads for seat in seats})
    devices = sorted({seat.device.partition(":")[0] for seat in seats})
    return (
        f"{len(seats)} ranks on {len(hosts)} host{'s' * (len(hosts) > 1)} ({shown}), "
        f"{' and '.join(devices)}, {threads[0]} thread{'s' * (threads[0] > 1)} each"
    )


def _seat(loaded: Loaded, out: Path, comm: Watched) -> str:
    """Where this rank is, as JSON."""
    cores = _cores()
    tree = json.dumps([loaded.tree, str(out)], sort_keys=True, default=str)
    device, fault = torch.device("cpu"), ""
    try:
        device = device_of(loaded.job, comm.local_rank)
    except JobError as e:
        fault = str(e)
    gpu = device.type == "cuda"
    own = RankInfo(
        rank=comm.rank,
        host=socket.gethostname(),
        local_rank=comm.local_rank,
        device=str(device),
        gpu=str(torch.cuda.get_device_properties(device).uuid) if gpu else "",
        threads=loaded.job.threads,
        cores=cores,
        numa=_numa(cores),
        processor=processor(),
        versions={"hpcfl": __version__, "torch": torch.__version__},
        job=blake2b(tree.encode(), digest_size=8).hexdigest(),
        fault=fault,
    )
    return own.model_dump_json()


def _why(job: Job, device: torch.device) -> str:
    return f" (auto: {choose(detect(os.environ), device.type)[1]})" * (job.comm.backend == "auto")


def _faults(seats: Sequence[RankInfo], backend: str) -> Iterator[str]:
    yield from _differences(seats)
    if backend == "nccl":
        yield from _shared_gpus(seats)
    yield from _too_many_threads(seats)


def _differences(seats: Sequence[RankInfo]) -> Iterator[str]:
    first = seats[0]
    for seat in seats:
        if seat.fault:
            yield f"{seat}: {seat.fault}"
        if seat.job != first.job:
            yield (
                f"{seat} was given another job or run directory than {first}; give all ranks the "
                "same command"
            )
        for name, version in first.versions.items():
            if seat.versions[name] != version:
                yield (
                    f"{seat} has {name} {seat.versions[name]}, {first} has {version}; "
                    "activate the same environment on all hosts"
                )


def _shared_gpus(seats: Sequence[RankInfo]) -> Iterator[str]:
    users: dict[str, RankInfo] = {}
    for seat in seats:
        other = users.setdefault(seat.gpu, seat)
        if other is not seat:
            yield (
                f"comm.backend: {other} and {seat} are both on GPU {seat.gpu}, and nccl needs one "
                "for every rank; start fewer ranks there, ask for a GPU a rank "
                "(--gpus-per-task=1), or say comm.backend=gloo"
            )


def _too_many_threads(seats: Sequence[RankInfo]) -> Iterator[str]:
    for seat in seats:
        if seat.threads > len(seat.cores):
            yield (
                f"threads: {seat} may use {_count(len(seat.cores), 'core')}, but is to run "
                f"{seat.threads} threads; lower threads, or let the launcher give it more "
                f"(srun --cpus-per-task={seat.threads}, mpirun --bind-to none)"
            )
    for host, members in _by_host(seats):
        threads, cores = _load(members)
        if threads > cores and threads > len(members):
            yield (
                f"threads: {len(members)} ranks with {threads} threads in all share "
                f"{_count(cores, 'core')} of host {host}; lower threads, or start fewer ranks there"
            )


def _oddities(seats: Sequence[RankInfo]) -> Iterator[str]:
    for host, members in _by_host(seats):
        threads, cores = _load(members)
        if threads > cores:
            yield f"{len(members)} ranks share {_count(cores, 'core')} of host {host}"
    first = seats[0]
    for seat in seats:
        if seat.processor != first.processor:
            yield (
                f"{seat} computes on {seat.processor}, {first} on {first.processor}: the bits may "
                "depend on the number of ranks"
            )
            break


def _by_host(seats: Sequence[RankInfo]) -> list[tuple[str, list[RankInfo]]]:
    ordered = sorted(seats, key=lambda seat: (seat.host, seat.rank))
    return [(host, list(members)) for host, members in groupby(ordered, lambda seat: seat.host)]


def _load(members: Sequence[RankInfo]) -> tuple[int, int]:
    """The threads of a host's ranks, and the cores that they may use."""
    cores = {core for seat in members for core in seat.cores}
    return sum(seat.threads for seat in members), len(cores)


def _span(members: Sequence[RankInfo]) -> str:
    """The ranks of a host: 0-3, or how many where they do not follow each other."""
    ranks = [seat.rank for seat in members]
    if len(ranks) == 1:
        return str(ranks[0])
    whole = ranks[-1] - ranks[0] == len(ranks) - 1
    return f"{ranks[0]}-{ranks[-1]}" if whole else f"{len(ranks)} of them"


def _count(number: int, what: str) -> str:
    return f"{number} {what}" + "s" * (number != 1)


def _cores() -> list[int]:
    """The cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def _numa(cores: Sequence[int]) -> list[int]:
    """The NUMA nodes of these cores; none where the system does not say."""
    found = []
    for node in sorted(_NUMA.glob("node[0-9]*")):
        own = (node / "cpulist").read_text().strip()
        if not set(cores).isdisjoint(_cpus(own)):
            found.append(int(node.name.removeprefix("node")))
    return sorted(found)


def _cpus(text: str) -> Iterator[int]:
    """What Linux writes as "0-3,8": 0, 1, 2, 3, 8."""
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        yield from range(int(first), int(last or first) + 1)
