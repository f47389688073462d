"""A small state of every dtype, and its bits."""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from hpcfl.store.row_table import Table
from hpcfl.store.schema import Field, StateSchema

torch.set_num_threads(1)


class State(NamedTuple):
    drift: Tensor
    anchor: Tensor
    last: Tensor
    brief: Tensor
    empty: Tensor


SCHEMA = StateSchema(
    State,
    (
        Field("drift", (5,), torch.float32),
        Field("anchor", (2, 3), torch.float64, shared=True),
        Field("last", (), torch.int64),
        Field("brief", (3,), torch.bfloat16),
        Field("empty", (0,), torch.float32),
    ),
)


@pytest.fixture
def schema() -> StateSchema:
    return SCHEMA


@pytest.fixture
def make() -> Callable[[int, int], State]:
    def state(client: int, version: int) -> State:
        """Random bits, with NaN payloads, infinities and negative zeros among them."""
        generator = torch.Generator().manual_seed(1000 * version + client)
        tensors = []
        for field in SCHEMA.fields:
            size = (*field.shape, field.dtype.itemsize)
            raw = torch.randint(0, 256, size, dtype=torch.uint8, generator=generator)
            tensors.append(raw.view(field.dtype).reshape(field.shape))
        return State(*tensors)

    return state


@pytest.fixture
def bits() -> Callable[[State | None], list[bytes]]:
    def of(state: State | None) -> list[bytes]:
        assert isinstance(state, State)
        assert [t.dtype for t in state] == [f.dtype for f in SCHEMA.fields]
        assert [tuple(t.shape) for t in state] == [f.shape for f in SCHEMA.fields]
        return [t.reshape(-1).view(torch.uint8).numpy().tobytes() for t in state]

    return of


@pytest.fixture
def root(tmp_path: Path) -> Path:
    path = tmp_path / "stores"
    path.mkdir()
    return path


@pytest.fixture
def commit(tmp_path: Path, root: Path) -> Callable[..., tuple[Path, Table]]:
    def play(name: str, *stores) -> tuple[Path, Table]:
        """Commit every rank's store into one checkpoint and read its row table."""
        folder = tmp_path / name
        folder.mkdir()
        for store in stores:
            for written in store.snapshot(folder):
                written.result()
        return folder, Table.load(folder, root)

    return play
