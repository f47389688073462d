"""A process that stages and commits until it is killed; and what its commits must hold."""

import itertools
import os
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor
from tracing import allow_tracing

from hpcfl.store import row_table
from hpcfl.store.footprint import footprint
from hpcfl.store.hdf5 import Hdf5Store
from hpcfl.store.row_table import SHARED, Table
from hpcfl.store.schema import Field, StateSchema
from hpcfl.store.shared import SharedStore
from tests.rundirs import row_tables, sessions

CLIENTS = 24
KEEP = 2


class State(NamedTuple):
    drift: Tensor
    anchor: Tensor
    round: Tensor


SCHEMA = StateSchema(
    State,
    (
        Field("drift", (3000,), torch.float32),
        Field("anchor", (2000,), torch.float32, shared=True),
        Field("round", (), torch.int64),
    ),
)


def model(round: int) -> Tensor:
    """What all clients of the round keep."""
    return torch.randn(2000, generator=torch.Generator().manual_seed(round))


def expected(client: int, round: int) -> State | None:
    """The state after ``round``: a third of the clients rests in each."""
    seen = [t for t in range(round + 1) if (client + t) % 3]
    if not seen:
        return None
    generator = torch.Generator().manual_seed(100 * seen[-1] + client)
    drift = torch.randn(3000, generator=generator)
    return State(drift, model(seen[-1]), torch.tensor(seen[-1]))


def committed(folder: Path) -> list[int]:
    """The rounds of complete checkpoints, oldest first."""
    return sorted(int(path.parent.name) for path in folder.glob("*/manifest.json"))


def write(folder: Path, session_id: str, tell: Callable[[int], None]) -> None:
    """Go on from the last checkpoint, commit after every round and keep two checkpoints."""
    root = folder / "stores"
    root.mkdir(exist_ok=True)
    done = committed(folder)
    (root / SHARED).mkdir(exist_ok=True)
    own, shared = (
        Hdf5Store(folder, 0, session_id, range(CLIENTS), schema, states * footprint(schema))
        for folder, schema, states in ((root, SCHEMA.own, 5), (root / SHARED, SCHEMA.shared, 1))
    )
    store = SharedStore(SCHEMA, own, shared)
    if done:
        *older, newest = (Table.load(folder / str(past), root) for past in done[-KEEP:])
        store.restore(newest, 1, older)
    for round in itertools.count(done[-1] + 1 if done else 0):
        kept = [folder / str(past) for past in committed(folder)[-KEEP:]]
        store.retain(kept)
        named = {name for at in kept for name in row_table.segments_in(at, row_tables(at))}
        row_table.prune(root, named, sessions(root) - {session_id})
        x = model(round)
        for client in range(CLIENTS):
            if (client + round) % 3:
                state = expected(client, round)
                assert state is not None
                store.save(client, state._replace(anchor=x))
        place = folder / str(round)
        place.mkdir(exist_ok=True)
        for written in store.snapshot(place):
            written.result()
        with (place / "part").open("w") as file:
            os.fsync(file.fileno())
        (place / "part").rename(place / "manifest.json")
        tell(round)


def write_and_tell(folder: Path, session_id: str, pipe) -> None:
    write(folder, session_id, pipe.send)


def write_when_told(folder: Path, session_id: str, pipe) -> None:
    allow_tracing()
    pipe.recv()
    write(folder, session_id, lambda round: None)
