"""Check that the ranks of a start can run together, before anything is loaded."""

from collections.abc import Iterator, Sequence

from hpcfl.errors import JobError
from hpcfl.io.words import counted
from hpcfl.start.rank_layout import RankInfo, by_host


def check_ranks(infos: Sequence[RankInfo], backend: str) -> list[str]:
    """Refuse ranks that cannot run together, or only slowly; return lines about lesser oddities.

    Args:
        infos: of all ranks.
        backend: solo, mpi, gloo or nccl.

    Raises:
        JobError: the same on every rank.
    """
    for fault in _faults(infos, backend):
        raise JobError(fault, collective=True)
    return list(_oddities(infos))


def _faults(infos: Sequence[RankInfo], backend: str) -> Iterator[str]:
    yield from _differences(infos)
    if backend == "nccl":
        yield from _shared_gpus(infos)
    yield from _too_many_threads(infos)


def _differences(infos: Sequence[RankInfo]) -> Iterator[str]:
    first = infos[0]
    for info in infos:
        if info.fault:
            yield f"{info}: {info.fault}"
        if info.job != first.job:
            yield (
                f"{info} was given another job or run directory than {first}; give all ranks the "
                "same command"
            )
        for name, version in first.versions.items():
            if info.versions[name] != version:
                yield (
                    f"{info} has {name} {info.versions[name]}, {first} has {version}; "
                    "activate the same environment on all hosts"
                )
        for name, digest in first.code.items():
            if info.code.get(name, digest) != digest:
                yield (
                    f"{info} has another content of module {name} than {first}; bring the same "
                    "file to all hosts"
                )


def _shared_gpus(infos: Sequence[RankInfo]) -> Iterator[str]:
    users: dict[tuple[str, str], RankInfo] = {}  # NCCL, too, compares the GPU and the host's name
    for info in infos:
        other = users.setdefault((info.gpu, info.nccl_host), info)
        if other is not info:
            yield (
                f"comm.backend: {other} and {info} are both on GPU {info.gpu}, and nccl needs one "
                "for every rank; start fewer ranks there, ask for as many GPUs as ranks "
                "(--ntasks-per-node=4 --gpus-per-node=4), or say comm.backend=gloo"
            )


def _too_many_threads(infos: Sequence[RankInfo]) -> Iterator[str]:
    for info in infos:
        if info.threads > len(info.cores):
            yield (
                f"threads: {info} may use {counted(len(info.cores), 'core')}, but is to run "
                f"{info.threads} threads; lower threads, or let the launcher give it more "
                f"(srun --cpus-per-task={info.threads}, mpirun --bind-to none)"
            )
    for host, members in by_host(infos):
        threads, cores = _load(members)
        if threads > cores and threads > len(members):
            yield (
                f"threads: {len(members)} ranks with {threads} threads in all share "
                f"{counted(cores, 'core')} of host {host}; lower threads, or start fewer ranks "
                "there"
            )


def _oddities(infos: Sequence[RankInfo]) -> Iterator[str]:
    for host, members in by_host(infos):
        threads, cores = _load(members)
        if threads > cores:
            yield f"{len(members)} ranks share {counted(cores, 'core')} of host {host}"
    first = infos[0]
    for info in infos:
        if info.processor != first.processor:
            yield (
                f"{info} computes on {info.processor}, {first} on {first.processor}: the bits may "
                "depend on the number of ranks"
            )
            break


def _load(members: Sequence[RankInfo]) -> tuple[int, int]:
    """The threads of a host's ranks, and the cores that they may use."""
    cores = {core for info in members for core in info.cores}
    return sum(info.threads for info in members), len(cores)
