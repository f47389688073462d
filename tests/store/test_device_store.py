"""The store in a GPU's memory: what stays there, what it hands on, and when."""

from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from hpcfl.clients.client_states import ClientStates
from hpcfl.errors import DiskError
from hpcfl.job.schema import Store
from hpcfl.start.components.client_store import DEVICE_SHARE, GIB, make_client_store
from hpcfl.store.device import ALIGNMENT, DeviceStore
from hpcfl.store.null import NullStore
from hpcfl.store.schema import Field, StateSchema
from tests.gpu.fake_cuda import CUDA, fake_cuda, is_fake


class State(NamedTuple):
    own: Tensor
    model: Tensor


SCHEMA = StateSchema(State, tuple(Field(name, (2,), torch.float32) for name in State._fields))
EACH = 2 * ALIGNMENT  # bytes of a state on the device


@pytest.fixture
def gpu():
    with fake_cuda() as found:
        yield found


class Behind(NullStore):
    """Notes what it is handed, and can say that its disk is full."""

    def __init__(self):
        super().__init__(0)
        self.saved, self.prefetched, self.full = [], [], False

    def prefetch(self, clients):
        self.prefetched.append(clients)

    def load(self, client):
        return next((state for one, state in reversed(self.saved) if one == client), None)

    def save(self, client, state):
        if self.full:
            raise DiskError("no space left")
        self.saved.append((client, State(*(leaf.cpu() for leaf in state))))

    def snapshot(self, folder):
        return []


def on_device(value):
    return torch.full((2,), float(value)).to("cuda")


def values(states):
    return [(client, state.own.tolist()[0]) for client, state in states]


def test_the_states_saved_last_stay(gpu, tmp_path):
    behind = Behind()
    store, x = DeviceStore(behind, SCHEMA, 3 * EACH), on_device(9)
    for client in (0, 1, 2):
        store.save(client, State(on_device(client), x))
    gpu.reads.clear()
    store.save(0, State(on_device(10), x))
    assert (behind.saved, gpu.reads) == ([], [])
    assert all(is_fake(leaf) for leaf in store.load(0))
    store.save(3, State(on_device(3), x))
    assert values(behind.saved) == [(1, 1)]  # 0 was saved again after it
    store.prefetch([0, 1, 2, 3, 4])
    assert behind.prefetched == [[1, 4]]
    assert values((i, store.load(i)) for i in range(4)) == [(0, 10), (1, 1), (2, 2), (3, 3)]
    assert store.load(4) is None
    store.snapshot(tmp_path)
    assert values(behind.saved) == [(1, 1), (2, 2), (0, 10), (3, 3)]
    store.snapshot(tmp_path)
    store.save(4, State(on_device(4), x))  # 2 makes room: it was handed on before
    assert len(behind.saved) == 4


SHARING = StateSchema(State, (SCHEMA.fields[0], SCHEMA.fields[1]._replace(shared=True)))


def test_a_model_that_states_share_is_copied_once(gpu, tmp_path):
    """Also where one of its states left before the others."""
    config = Store(cache_gib=2 * EACH / GIB)
    store = make_client_store(config, SHARING, tmp_path, 0, "a", range(5), CUDA)
    first, second = on_device(1), on_device(2)
    for client, x in enumerate([first, first, first, second, second]):
        store.save(client, State(on_device(client), x))
    store.snapshot(tmp_path)[-1].result()
    store.close()
    assert gpu.reads == ["a copy of (2,)"] * 7


@pytest.mark.parametrize("cache_gib", [0.0, 1.0])
def test_states_are_pinned_in_blocks(gpu, tmp_path, cache_gib):
    """Those that leave the device, and those that are read from the disk."""
    (tmp_path / "checkpoint").mkdir()
    config = Store(cache_gib=cache_gib)
    store = make_client_store(config, SCHEMA, tmp_path, 0, "a", range(100), CUDA)
    for client in range(100):
        store.save(client, State(on_device(client), on_device(-client)))
    for future in store.snapshot(tmp_path / "checkpoint"):
        future.result()
    states = ClientStates(store._behind, SCHEMA, SCHEMA, lambda _: None, CUDA)
    for client in range(100):
        found = states.to_device(client, states.read(client))
        assert [leaf.tolist() for leaf in found] == [2 * [client], 2 * [-client]]
    assert 0 < len(gpu.pinned) < 10
    store.close()


def test_a_disk_that_is_full_is_said_where_a_state_leaves(gpu, tmp_path):
    behind, state = Behind(), State(on_device(0), on_device(0))
    store = DeviceStore(behind, SCHEMA, EACH)
    behind.full = True
    store.save(0, state)
    with pytest.raises(DiskError):
        store.snapshot(tmp_path)
    with pytest.raises(DiskError):
        store.save(1, state)
    behind.full = False
    store.snapshot(tmp_path)
    assert values(behind.saved) == [(0, 0), (1, 0)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_states_are_kept_on_the_device_as_the_disk_would_have_them(gpu, dtype):
    behind, stored = Behind(), SCHEMA.narrowed(dtype)
    states = ClientStates(
        DeviceStore(behind, stored, 1 << 20), SCHEMA, stored, lambda _: None, CUDA
    )
    third, x = (torch.ones(2) / 3).to("cuda"), on_device(1)
    states.write([5], [State(third, x)], x)
    kept = states.to_device(5, states.read(5))
    assert all(is_fake(leaf) and leaf.dtype == torch.float32 for leaf in kept)
    assert torch.equal(kept.own.cpu(), third.cpu().to(dtype).to(torch.float32))
    assert behind.saved == []


def test_a_part_of_a_larger_tensor_is_kept_alone(gpu):
    store = DeviceStore(Behind(), SCHEMA, 1 << 20)
    states = ClientStates(store, SCHEMA, SCHEMA, lambda _: None, CUDA)
    many = torch.arange(20.0).view(10, 2).to("cuda")
    states.write([5], [State(many[3], many[4])], on_device(0))
    assert [leaf.untyped_storage().nbytes() for leaf in store.load(5)] == [8, 8]


@pytest.mark.parametrize(
    ("cache_gib", "free", "most"),
    [
        (1.0, 80 * GIB, GIB // EACH),
        (1.0, GIB, int(DEVICE_SHARE * GIB) // EACH),
        (0.0, 80 * GIB, 0),
    ],
)
def test_how_many_states_a_gpu_keeps(gpu, tmp_path, cache_gib, free, most):
    gpu.free = free

    def store(device):
        return make_client_store(
            Store(cache_gib=cache_gib), SCHEMA, tmp_path, 0, "a", [0, 1], device
        )

    kept = store(CUDA)
    assert kept._capacity == most
    kept.close()
    assert not isinstance(store(torch.device("cpu")), DeviceStore)
