"""Which device a rank computes on."""

from typing import Literal

import torch

from hpcfl.errors import JobError
from hpcfl.job import Job


def device_type(job: Job) -> Literal["cpu", "cuda"]:
    """Where the job computes on this host, if it can; ``device_of`` says whether."""
    return "cpu" if job.device == "cpu" or not torch.cuda.is_available() else "cuda"


def device_of(job: Job, local_rank: int) -> torch.device:
    """The device of a rank: its own GPU of the host's, or the only one that it sees.

    Raises:
        JobError: the job asks for a GPU or a precision that is not there.
    """
    if device_type(job) == "cpu":
        if job.device == "cuda":
            raise JobError("device: found no GPU, but the job says cuda; say cpu or auto")
        if job.precision == "tf32":
            raise JobError("precision: tf32 needs a GPU; say float32 or bf16 on a CPU")
        return torch.device("cpu")
    count = torch.cuda.device_count()
    if count == 1:  # as Slurm's --gpus-per-task shows it to every rank
        return torch.device("cuda", 0)
    if local_rank >= count:
        raise JobError(
            f"device: rank {local_rank} of this host needs a GPU of its own, but there are "
            f"{count}; start fewer ranks per host"
        )
    return torch.device("cuda", local_rank)
