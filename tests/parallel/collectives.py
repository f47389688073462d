"""What one rank does in test_comm.py: ``collectives.py BACKEND FOLDER`` writes FOLDER/RANK.json."""

import json
import sys
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from hpcfl.comm.base import Comm, P2PMessage
from hpcfl.comm.connect import connect
from hpcfl.comm.exact import ExactReduction
from hpcfl.comm.exact_sum import exact_sums
from hpcfl.errors import DivergedError

CLIENTS, PARAMETERS = 7, 20_001
WEIGHTS = [500.0, 1.0, 37.0, 9999.0, 2.0, 64.0, 100.0]


class Upload(NamedTuple):
    delta: Tensor  # [P]
    drift: Tensor  # [P], averaged plainly
    level: Tensor  # 0-d


def upload(client: int) -> Upload:
    """Client's numbers, of very different sizes, so that float sums depend on the order."""
    generator = torch.Generator().manual_seed(client)
    vectors = torch.randn(2, PARAMETERS, generator=generator) * 10.0 ** (client - 3)
    return Upload(vectors[0], vectors[1], vectors[0, 0])


def owners(size: int) -> list[list[int]]:
    """Ways to spread the clients: in turn, all on the last rank, rank 0 empty or nearly so."""
    return [
        [i % size for i in range(CLIENTS)],
        [size - 1] * CLIENTS,
        [0] + [size - 1 - i % max(size - 1, 1) for i in range(1, CLIENTS)],
    ]


def cargo(source: int, target: int) -> list[Tensor]:
    """What a rank sends to another: of many types and shapes, two of them look alike."""
    numbers = torch.arange(12.0) + 100 * source + 10_000 * target
    large = numbers.repeat(50_000).to(torch.bfloat16)
    table = numbers.view(3, 4)
    return [table.T, table[0, 0].long(), large, table.double(), -table.double()]


def exchange(comm: Comm) -> bool:
    """Whether everybody's parcels reach everybody else; rank 0 sends nothing to the last."""
    last = comm.size - 1
    pairs = [(a, b) for a in range(comm.size) for b in range(comm.size) if a != b]
    pairs = [pair for pair in pairs if pair != (0, last)]
    came = {
        (a, b): [torch.empty(t.shape, dtype=t.dtype) for t in cargo(a, b)]
        for a, b in pairs
        if b == comm.rank
    }
    sent = [P2PMessage(b, t) for a, b in pairs if a == comm.rank for t in cargo(a, b)]
    comm.exchange(sent, [P2PMessage(a, room) for (a, _), rooms in came.items() for room in rooms])
    return all(
        torch.equal(room, t)
        for (a, b), rooms in came.items()
        for room, t in zip(rooms, cargo(a, b), strict=True)
    )


def main(backend: str, folder: Path) -> None:
    torch.set_num_threads(1)
    comm = connect(backend, "cpu", 60.0, folder)
    template = Upload(*(field.to("meta") for field in upload(0)))
    mean = ExactReduction(
        comm, template, frozenset({"drift"}), torch.float32, torch.device("cpu")
    ).mean
    said = {"rank": comm.rank, "size": comm.size, "local_rank": comm.local_rank}
    said["kind"] = type(comm).__name__
    digests, agreed = [], []
    for split in owners(comm.size):
        mine = [i for i in range(CLIENTS) if split[i] == comm.rank]
        result, sent, flags = mean(
            [upload(i) for i in mine],
            mine,
            [WEIGHTS[i] for i in mine],
            sum(WEIGHTS),
            CLIENTS,
            np.array([float(comm.rank)]),
            round=0,
        )
        digests.append(sha256(b"".join(f.numpy().tobytes() for f in result)).hexdigest())
        agreed.append([sent, *flags.tolist()])
    said |= {"digests": digests, "agreed": agreed}
    said["delta"] = result.delta[:5].tolist()
    broken = upload(0)
    broken.drift[17] = torch.nan
    last = comm.rank == comm.size - 1
    try:
        mean([broken] * last, [12] * last, [1.0] * last, 1.0, 1, np.zeros(0), round=9)
    except DivergedError as error:
        said["diverged"] = str(error)
    total = torch.tensor([comm.rank + 1, 2**61 // comm.size])
    comm.allreduce_sum(total)
    said["sum"] = total.tolist()
    said["max"] = comm.allreduce_max(np.array([float(comm.rank), -float(comm.rank)])).tolist()
    said["shared"] = [comm.bcast(f"from {comm.rank}: \u00e9\n"), comm.bcast("")]
    said["gathered"] = comm.allgather(f"rank {comm.rank}: \u00e9" * (1 + comm.rank))
    said["exchanged"] = exchange(comm)
    terms = [0.1 * i for i in range(100) if i % comm.size == comm.rank]
    said["sums"] = exact_sums(comm, [terms, [1.0], []])
    comm.barrier()
    (folder / f"{comm.rank}.json").write_text(json.dumps(said))
    comm.close()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
