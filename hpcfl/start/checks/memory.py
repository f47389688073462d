"""Bound the host memory of a rank from below, and refuse jobs that need more than there is.

What a rank holds in a round follows from the job: the data, the server, the uploads of its clients,
their sum, and their states.  Batches, and what a local step makes of the model, come on top: what
they take depends on the model and is measured (``hpcfl plan --measure``), not computed.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from hpcfl.engine.dry_round import nbytes
from hpcfl.io.memory import refuse_large_job
from hpcfl.start.checks.disk import ScheduleUsage, most_trained, state_bytes
from hpcfl.start.components.client_store import GIB
from hpcfl.start.components.components import Components


class RankMemory(NamedTuple):
    """Bytes that a rank holds at least."""

    data: int
    """The examples; the ranks of a host hold them once."""
    server: int
    uploads: int
    """The uploads of the most clients that it trains in a round."""
    sum: int
    """The buffer of the ranks' sum, beside the uploads."""
    states: int
    """The clients' states at the end of the run, up to ``store.cache_gib``."""

    @property
    def total(self) -> int:
        """The sum of all parts."""
        return sum(self)


def rank_memory(components: Components, usage: ScheduleUsage) -> list[RankMemory]:
    """The memory of each rank, by its simulated schedule."""
    upload, cache = (
        nbytes(components.training.schema.upload),
        int(components.job.store.cache_gib * GIB),
    )
    data, server = _data_bytes(components), nbytes(_server(components))
    summed = _sum_bytes(components)
    trained = most_trained(components, usage).tolist()
    states = state_bytes(components, usage).tolist()
    return [
        RankMemory(data, server, upload * clients, summed, min(kept, cache))
        for clients, kept in zip(trained, states, strict=True)
    ]


def check_memory(components: Components, usage: ScheduleUsage) -> None:
    """Refuse a job of which a rank needs more memory than is free, once its data is loaded.

    Raises:
        JobError: it does.
    """
    if components.device.type != "cpu":
        return
    needed = max(rank_memory(components, usage), key=lambda rank: rank.total)._replace(data=0)
    parts = {
        "cohort": needed.uploads,
        "store.cache_gib": needed.states,
        _server_key(components): needed.server + needed.sum,
    }
    what = "a rank, for the server, the uploads of its clients, their sum and their states,"
    refuse_large_job(max(parts, key=lambda key: parts[key]), what, needed.total)


def check_server_memory(components: Components) -> None:
    """Refuse a server whose past models do not fit into memory; others are as large as the model.

    Raises:
        JobError: they do not.
    """
    if components.device.type != "cpu":
        return
    kept, name = _server(components), components.loaded.names["algorithm"]
    what = f"the server of {name} ({len(kept)} vectors)"
    refuse_large_job(_server_key(components), what, nbytes(kept))


def _server_key(components: Components) -> str:
    """The key of the job that makes the server large."""
    return "algorithm.tau" if hasattr(components.job.algorithm, "tau") else "algorithm.name"


def _server(components: Components) -> list[Tensor]:
    """The tensors of the server.

    Where it keeps models of more rounds than there are, many are the initial one.
    """
    server = components.training.schema.server
    leaves = [leaf for field in server for leaf in (field if isinstance(field, tuple) else [field])]
    return leaves[: components.job.rounds + len(server)]


def _sum_bytes(components: Components) -> int:
    """Bytes of the buffer of the sum: of integers where it is exact."""
    dtype = torch.int64 if components.job.reduction == "exact" else components.model.x0.dtype
    fields = components.training.schema.reduced
    numbers: int = sum(field.numel() for field in fields)
    return dtype.itemsize * numbers


def _data_bytes(components: Components) -> int:
    """Bytes of the examples that are in memory, and not in files."""
    dataset = components.population.dataset
    if dataset.mapped:
        return 0
    parts = [part for part in (dataset.train, dataset.test) if part is not None]
    held = [tensor for part in parts for tensor in part if isinstance(tensor, Tensor)]
    return sum(map(nbytes, held))
