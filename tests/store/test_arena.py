"""States side by side in memory: their bits, their places, what they cost."""

import gc
import re
import subprocess
import sys

import pytest
import torch

from hpcfl.store import arena
from hpcfl.store import footprint as footprints
from hpcfl.store.arena import StateArena
from hpcfl.store.footprint import footprint, offsets
from hpcfl.store.schema import Field, StateSchema
from tests.gpu.fake_cuda import fake_cuda

PAIR = StateSchema(
    tuple, (Field("a", (3,), torch.float32), Field("b", (2, 2), torch.float64))
)  # fmt: skip


def pair(number):
    return torch.full((3,), float(number)), torch.full((2, 2), float(number), dtype=torch.float64)


def same(kept, number):
    return all(map(torch.equal, kept, pair(number)))


def test_every_dtype_comes_back_with_its_bits(schema, make, bits):
    arena = StateArena(schema)
    kept = [arena.copy_of(make(client, 0)) for client in range(100)]
    for client, state in enumerate(kept):
        assert bits(schema.type(*state)) == bits(make(client, 0))


def test_it_is_a_copy_and_what_is_read_are_views():
    arena, given = StateArena(PAIR), pair(1)
    kept = arena.copy_of(given)
    given[0].zero_()
    assert same(kept, 1)
    first, second = list(kept), list(kept)
    assert [t.data_ptr() for t in first] == [t.data_ptr() for t in second]
    assert all(tensor.data_ptr() % 64 == 0 for tensor in first)


def test_offsets_by_hand(schema):
    """20, 48, 8, 6 and 0 bytes, each from a multiple of 64."""
    assert offsets(schema) == ([0, 64, 128, 192, 256], 256)
    assert offsets(PAIR) == ([0, 64], 128)
    assert offsets(StateSchema(tuple, (Field("none", (0,), torch.float32),))) == ([0], 64)


def test_a_place_is_taken_as_long_as_a_view_of_it_lives():
    """The next state takes the place of one that is gone, never of one that somebody looks at."""
    arena = StateArena(PAIR)
    kept = arena.copy_of(pair(1))
    place = next(iter(kept)).data_ptr()
    view = next(iter(kept))[1:].reshape(1, 2)
    del kept
    gc.collect()
    others = [arena.copy_of(pair(number)) for number in range(2, 50)]
    assert view.tolist() == [[1, 1]]
    del view
    assert next(iter(arena.copy_of(pair(50)))).data_ptr() == place
    assert all(same(other, number) for number, other in enumerate(others, 2))


def test_blocks_are_added_and_used_again(monkeypatch):
    monkeypatch.setattr(arena, "FIRST_STATES", 2)
    monkeypatch.setattr(footprints, "BLOCK_BYTES", 5 * 128 + 1)
    memory = StateArena(PAIR)
    for _ in range(3):
        kept = [memory.copy_of(pair(number)) for number in range(12)]
        assert all(same(state, number) for number, state in enumerate(kept))
        assert [block.nbytes for block in memory._blocks] == [2 * 128, 2 * 128, 4 * 128, 5 * 128]
        del kept


def test_a_state_larger_than_a_block(monkeypatch):
    monkeypatch.setattr(footprints, "BLOCK_BYTES", 100)
    memory = StateArena(PAIR)
    assert same(memory.copy_of(pair(1)), 1)
    assert [block.nbytes for block in memory._blocks] == [128]


@pytest.mark.parametrize(
    "state",
    [
        (torch.zeros(4), torch.zeros(2, 2, dtype=torch.float64)),
        (torch.zeros(3), torch.zeros(2, 2)),
        (torch.zeros(3),),
    ],
)
def test_another_shape_dtype_or_number_is_refused(state):
    with pytest.raises(ValueError, match=r"expected torch\.float|shorter"):
        StateArena(PAIR).copy_of(state)


@pytest.mark.parametrize("where", ["cpu", "cuda"])
def test_only_tensors_of_the_cpu_are_borrowed(where):
    with fake_cuda():
        state = tuple(leaf.to(where) for leaf in pair(1))
        kept = StateArena(PAIR).copy_of(state, borrow=True)
        assert (kept is state) == (where == "cpu")
        assert where == "cpu" or same(kept, 1)


@pytest.mark.parametrize(
    ("floats", "blocks", "each"),
    [
        (16, [128, 128, 256, 512, 1024], 64),
        (48, [512, 512, 1024, 1024, 1024, 1024], 205),  # 5 slots of 192 bytes in 1024
        (80, [1024, 1024, 2048, 2048, 2048], 342),  # 4 slots of 320 bytes in 2048, and 2 more
    ],
)
def test_slots_fill_the_pinned_memory_that_torch_takes(monkeypatch, floats, blocks, each):
    """It takes a power of two for every piece; a cache counts what that leaves unused."""
    monkeypatch.setattr(arena, "FIRST_STATES", 2)
    monkeypatch.setattr(footprints, "BLOCK_BYTES", 1024)
    schema = StateSchema(tuple, (Field("a", (floats,), torch.float32),))
    with fake_cuda() as gpu:
        memory = StateArena(schema, pinned=True)
        given = [torch.full((floats,), float(number)) for number in range(20)]
        kept = [memory.copy_of((leaf.to("cuda"),)) for leaf in given]
        assert all(torch.equal(*state, leaf) for state, leaf in zip(kept, given, strict=True))
        assert [block.nbytes for block in memory._blocks] == blocks
        assert all(map(gpu.is_pinned, memory._blocks))
        assert len(gpu.pinned) == len(blocks)
    assert footprint(schema, pinned=True) == each + footprints.STATE_OVERHEAD


HEAP = """
import os, threading
from collections import deque
from pathlib import Path
import torch
from hpcfl.start.device import keep_freed_memory, share_one_heap
from hpcfl.store.schema import Field, StateSchema
from hpcfl.store.arena import StateArena

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

share_one_heap()
keep_freed_memory()
torch.set_num_threads(1)
threading.Thread(target=threading.Event().wait, daemon=True).start()
size, room = 50_000, 500
arena = StateArena(StateSchema(tuple, (Field("last", (size,), torch.float32),)))
before, kept = resident(), deque(maxlen=room)
for _ in range(2000):
    y = torch.rand(size)
    for _ in range(3):
        d = torch.cat([y[:1000], y[1000:]]).add(y, alpha=0.1)
        y = torch.add(y, d, alpha=-0.1)
    kept.append(arena.copy_of((y,)))
print("ratio", (resident() - before) / (4 * size * room))
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_kept_states_leave_no_gaps_in_memory():
    """Steps come and go between them; as tensors of their own they would take 1.3 to 2.2."""
    done = subprocess.run([sys.executable, "-c", HEAP], capture_output=True, text=True, check=True)
    assert float(re.search(r"ratio (.*)", done.stdout)[1]) < 1.2
