"""Discover on which host and device every rank is; ``hpcfl.start.checks.ranks`` checks it."""

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

from hpcfl.comm.connect import choose
from hpcfl.comm.launcher import detect
from hpcfl.comm.watched import WatchedComm
from hpcfl.errors import JobError
from hpcfl.io.boot_id import boot_id
from hpcfl.io.cgroups import usable_cores
from hpcfl.io.version import __version__
from hpcfl.io.words import counted
from hpcfl.job.schema import Job, LoadedJob
from hpcfl.start.code_digests import code_digests
from hpcfl.start.device import device_of, gpu_rank
from hpcfl.start.environment import processor

_NUMA = Path("/sys/devices/system/node")
_SHOWN = 4  # hosts in a message; a history has them all


class RankInfo(BaseModel):
    """The host, device, cores and versions of a rank."""

    model_config = ConfigDict(frozen=True)

    rank: int
    host: str
    boot: str = ""
    """The host's boot id: two hosts may have one name."""
    local_rank: int
    """Its place among the ranks of its host."""
    device: str
    """"cpu", or "cuda:" and the number by which the rank knows its GPU."""
    gpu: str = ""
    """The GPU's identifier, equal on all ranks that use it."""
    nccl_host: str = ""
    """The host name that NCCL uses in place of the real one (NCCL_HOSTID); "" if not set."""
    threads: int
    cores: list[int]
    """The host's cores that it may use."""
    numa: list[int]
    """The NUMA nodes that those belong to."""
    processor: str
    versions: dict[str, str]
    """The versions of the packages that must be the same on all ranks."""
    code: dict[str, str]
    """The digests of the files of the user's classes (``code_digests``)."""
    job: str
    """A hash of the job and the run directory that it was given."""
    fault: str = ""
    """Why it cannot run there."""

    @property
    def record(self) -> dict[str, Any]:
        """Its entry in the history."""
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
    """Lines about them for the user."""

    def with_notes(self, *lines: str) -> "Ranks":
        """These ranks, with more notes."""
        return replace(self, notes=[*self.notes, *lines])


def discover_ranks(loaded: LoadedJob, out: Path, comm: WatchedComm) -> Ranks:
    """Collective: where all ranks are; this rank's GPU, if it has one, is taken.

    Args:
        loaded: the checked job.
        out: the run directory.
        comm: the group; none of its collectives has touched a GPU yet.
    """
    own = _own_info(loaded, out, comm, gpu_rank(loaded.job, comm))
    infos = [RankInfo.model_validate_json(text) for text in comm.allgather(own)]
    device = torch.device(infos[comm.rank].device)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    said = f"{describe(infos)}, by {comm.backend}{_why(loaded.job, device)}, {comm.library}"
    return Ranks(infos, device, [said] if comm.size > 1 else [])


def describe(infos: Sequence[RankInfo]) -> str:
    """One line: the number of ranks, their hosts, devices and threads."""
    hosts = [f"{host}: {_span(members)}" for host, members in by_host(infos)]
    shown = "; ".join(hosts[:_SHOWN]) + ("; ..." if len(hosts) > _SHOWN else "")
    threads = sorted({info.threads for info in infos})
    devices = sorted({info.device.partition(":")[0] for info in infos})
    return (
        f"{counted(len(infos), 'rank')} on {counted(len(hosts), 'host')} ({shown}), "
        f"{' and '.join(devices)}, {counted(threads[0], 'thread')} each"
    )


def _own_info(loaded: LoadedJob, out: Path, comm: WatchedComm, gpu_rank: int) -> str:
    """Where this rank is, as JSON."""
    cores = usable_cores()
    tree = json.dumps([loaded.tree, str(out)], sort_keys=True, default=str)
    device, fault = torch.device("cpu"), ""
    try:
        device = device_of(loaded.job, gpu_rank)
    except JobError as e:
        fault = str(e)
    gpu = device.type == "cuda"
    own = RankInfo(
        rank=comm.rank,
        host=socket.gethostname(),
        boot=boot_id(),
        local_rank=comm.local_rank,
        device=str(device),
        gpu=str(torch.cuda.get_device_properties(device).uuid) if gpu else "",
        nccl_host=os.environ.get("NCCL_HOSTID", ""),
        threads=loaded.job.threads,
        cores=cores,
        numa=_numa(cores),
        processor=f"{torch.cuda.get_device_name(device)}, {processor()}" if gpu else processor(),
        versions={"hpcfl": __version__, "torch": torch.__version__},
        code=code_digests(loaded.job),
        job=blake2b(tree.encode(), digest_size=8).hexdigest(),
        fault=fault,
    )
    return own.model_dump_json()


def _why(job: Job, device: torch.device) -> str:
    return f" (auto: {choose(detect(os.environ), device.type)[1]})" * (job.comm.backend == "auto")


def by_host(infos: Sequence[RankInfo]) -> list[tuple[str, list[RankInfo]]]:
    """The ranks of each host, by its name and boot id: hosts of a cloud may have one name."""

    def host_of(info: RankInfo) -> tuple[str, str]:
        return info.host, info.boot

    ordered = sorted(infos, key=lambda info: (*host_of(info), info.rank))
    return [(host, list(members)) for (host, _), members in groupby(ordered, host_of)]


def _span(members: Sequence[RankInfo]) -> str:
    """The ranks of a host: 0-3, or how many where they do not follow each other."""
    ranks = [info.rank for info in members]
    if len(ranks) == 1:
        return str(ranks[0])
    whole = ranks[-1] - ranks[0] == len(ranks) - 1
    return f"{ranks[0]}-{ranks[-1]}" if whole else f"{len(ranks)} of them"


def _numa(cores: Sequence[int]) -> list[int]:
    """The NUMA nodes of these cores; none where the system does not say."""
    found = []
    for node in sorted(_NUMA.glob("node[0-9]*")):
        own = (node / "cpulist").read_text().strip()
        if not set(cores).isdisjoint(_cpus(own)):
            found.append(int(node.name.removeprefix("node")))
    return sorted(found)


def _cpus(text: str) -> Iterator[int]:
    """The numbers of a list as Linux writes it: "0-3,8" is 0, 1, 2, 3, 8."""
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        yield from range(int(first), int(last or first) + 1)
