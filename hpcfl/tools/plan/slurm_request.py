"""The command that submits a planned job to Slurm: nodes, GPUs, memory, time."""

from collections.abc import Sequence
from math import ceil
from shlex import quote
from typing import NamedTuple

from hpcfl.start.components.components import Components
from hpcfl.tools.plan.host_memory import HostMemory

GPUS_PER_NODE, CORES_PER_NODE = 4, 32  # where the user does not say how many ranks a node has
SLACK = 1.5  # of time, over the prediction
START_H = 1 / 6  # hours for the start
STAGED = ("inaturalist", "landmarks", "stackoverflow")
"""The jobs of jobs/papers/base that have a script of their own in slurm/."""
LONGEST_H = 24  # of a submission: a longer run is requeued


class SlurmRequest(NamedTuple):
    """What a job asks Slurm for."""

    nodes: int
    ranks_per_node: int
    gpus: bool
    cores: int
    """Of a rank."""
    gigabytes: int
    """Of memory of a node."""
    minutes: int
    starts: int
    """How many such limits the run takes."""

    def command(self, words: Sequence[str]) -> str:
        """The command line: these words behind slurm/run.sh, or the script that stages the data."""
        limit = f"{self.minutes // 60:02d}:{self.minutes % 60:02d}:00"
        gpus = f" --gpus-per-node={self.ranks_per_node}" if self.gpus else ""
        return (
            f"sbatch -N {self.nodes} --ntasks-per-node={self.ranks_per_node}{gpus} "
            f"-c {self.cores} --mem={self.gigabytes}G -t {limit} {' '.join(_script(words))}"
        )


def _script(words: Sequence[str]) -> list[str]:
    """The script that suits a job, and its arguments."""
    job, *settings = words
    name = job.removesuffix(".yaml")
    for staged in STAGED:
        if name.endswith(f"papers/base/{staged}"):
            return [f"slurm/{staged}.sh", *map(quote, settings)]
    return ["slurm/run.sh", *map(quote, words)]


def slurm_request(
    components: Components,
    ranks: int,
    memory: HostMemory,
    *,
    hours: float | None,
    gpus: bool,
    most: int | None,
) -> SlurmRequest:
    """What the planned job asks for.

    Args:
        components: of the job.
        ranks: how many.
        memory: of a rank.
        hours: that it will take; None: not known, and as many are asked for as are at most.
        gpus: whether each rank has a GPU.
        most: ranks of a node, at most; 4 on GPUs and as many as 32 cores hold when None.
    """
    job = components.job
    decoding = not components.population.dataset.mapped and getattr(job.data, "workers", None)
    cores = job.threads + (decoding or 0) + gpus  # a thread starts the GPU's work
    most = most or (GPUS_PER_NODE if gpus else max(1, CORES_PER_NODE // cores))
    # Every node gets as many ranks as the others.
    per_node = max(k for k in range(1, min(ranks, most) + 1) if ranks % k == 0)
    asked = LONGEST_H if hours is None else hours * SLACK + START_H
    step = 10 if asked < 2 else 60  # minutes
    minutes = step * ceil(60 * min(asked, LONGEST_H) / step)
    return SlurmRequest(
        nodes=ranks // per_node,
        ranks_per_node=per_node,
        gpus=gpus,
        cores=cores,
        gigabytes=ceil(memory.to_ask(per_node) / 1e9),
        minutes=minutes,
        starts=ceil(asked * 60 / minutes),
    )
