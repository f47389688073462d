"""Client states that are sent to other ranks and back: the stores hold the same in the end."""

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier, BrokenBarrierError
from typing import NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor

from hpcfl.clients.assignment import Balance
from hpcfl.clients.client_states import ClientStates
from hpcfl.clients.remote_states import RemoteClientStates
from hpcfl.store.device import ALIGNMENT, DeviceStore
from hpcfl.store.schema import Field, StateSchema
from tests.gpu.fake_cuda import FakeDevice, fake_cuda, is_fake

RANKS, CLIENTS, ROUNDS, P = 3, 7, 12, 5
CPU = torch.device("cpu")
OWNER = np.arange(CLIENTS) % 2  # rank 2 owns nobody


class State(NamedTuple):
    own: Tensor  # [P]
    model: Tensor  # [P], as it was received
    count: Tensor  # 0-d


def schema(dtype):
    fields = Field("own", (P,), dtype), Field("model", (P,), dtype, shared=True)
    return StateSchema(State, (*fields, Field("count", (), torch.int64)))


class Ranks:
    """Ranks as threads of one process, which count what they send."""

    def __init__(self, size):
        self.size, self.barrier = size, Barrier(size, timeout=600)
        self.brought, self.mail, self.sent = [None] * size, {}, []

    def run(self, work):
        def play(rank):
            try:
                return work(One(self, rank))
            except BaseException:
                self.barrier.abort()  # the others would wait for this one
                raise

        with ThreadPoolExecutor(self.size) as pool:
            played = [pool.submit(play, rank) for rank in range(self.size)]
        errors = [error for each in played if (error := each.exception()) is not None]
        # Of the first to fail; those that waited for it have a broken barrier.
        for error in sorted(errors, key=lambda error: isinstance(error, BrokenBarrierError)):
            raise error
        return [each.result() for each in played]


class One:
    def __init__(self, ranks, rank):
        self.ranks, self.rank = ranks, rank

    def allreduce_max(self, values):
        self.ranks.brought[self.rank] = values
        self.ranks.barrier.wait()
        found = np.max(self.ranks.brought, axis=0)
        self.ranks.barrier.wait()
        return found

    def exchange(self, sent, received):
        for other, tensor in sent:
            self.ranks.sent.append(tensor.numel())
            self.ranks.mail.setdefault((self.rank, other), []).append(tensor.clone())
        self.ranks.barrier.wait()
        for other, room in received:
            tensor = self.ranks.mail[other, self.rank].pop(0)
            assert (tensor.shape, tensor.dtype) == (room.shape, room.dtype)
            room.copy_(tensor)
        assert not any(left for (_, to), left in self.ranks.mail.items() if to == self.rank)
        self.ranks.barrier.wait()


class Store:
    """A store that takes its own clients only, and remembers in which order."""

    def __init__(self, own):
        self.own, self.states, self.staged, self.expected = own, {}, [], []

    def prefetch(self, clients):
        assert set(clients) <= self.own
        self.expected = list(clients)

    def load(self, client):
        assert client in self.own
        return self.states.get(client)

    def save(self, client, state):
        assert client in self.own
        self.states[client] = state
        self.staged.append((client, state))


def draw(t):
    return np.random.default_rng(t).permutation(CLIENTS)[
        : (0, 6, 4, 5)[t % 4]
    ]  # after an empty round clients move


def first(client):
    return State(torch.full((P,), client + 0.1), torch.zeros(P), torch.tensor(0))


def trained(client, state, x):
    """A round of a client: depends on all of its state."""
    own = state.own * 0.5 + state.model + client + state.count
    return State(own, x, state.count + 1)


def ones(round):
    """Equal work of all clients."""
    return np.ones(len(draw(round)), np.int64)


def play(comm, work, stored, rounds=range(ROUNDS), shelf=None):
    """What a rank's store holds, and what it was handed in the last round."""
    shelf = shelf or Store({i for i in range(CLIENTS) if OWNER[i] == comm.rank})
    balance = Balance(draw, ROUNDS, OWNER, work, comm.rank, comm.ranks.size)
    owned = ClientStates(shelf, schema(torch.float32), stored, first, CPU)
    states_of_round = owned if work is None else RemoteClientStates(owned, stored, comm, CPU)
    for t in rounds:
        if not len(draw(t)):
            continue
        x, assignment, shelf.staged = torch.full((P,), t + 0.3), balance.assignment(t), []
        states = states_of_round.load(assignment, balance.assignment(t + 1))
        assert all(state.own.dtype == torch.float32 for state in states)
        after = [trained(i, s, x) for i, s in zip(assignment.trained, states, strict=True)]
        states_of_round.save(assignment, after, x)
        assert [client for client, _ in shelf.staged] == assignment.owned
        if work is not None and t + 1 < ROUNDS:
            assert states_of_round._received[0] == t + 1  # while the ranks are together
        models = {id(state.model) for _, state in shelf.staged}
        assert len(models) <= 1  # stored once
        if stored.fields[0].dtype == torch.float32:
            assert models <= {id(x)}
        if t + 1 < ROUNDS and len(draw(t + 1)):
            assert shelf.expected == balance.assignment(t + 1).owned or work is None
    assert states_of_round.pop_elapsed_s() >= 0
    return shelf.states


def bits(shelves):
    held = {client: state for states in shelves for client, state in states.items()}
    return {i: [(t.dtype, t.float().tolist()) for t in held[i]] for i in sorted(held)}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_stores_hold_the_same_as_without_moves(dtype):
    stored = schema(dtype)
    home = Ranks(RANKS).run(lambda comm: play(comm, None, stored))
    away = Ranks(RANKS)
    found = away.run(lambda comm: play(comm, ones, stored))
    assert bits(found) == bits(home)
    assert len(bits(home)) == CLIENTS
    assert all(states[2].dtype == torch.int64 for held in found for states in held.values())


def test_what_travels():
    """Out: the whole state of who has one. Home: all but the model that the owner has."""
    ranks = Ranks(RANKS)
    balance = Balance(draw, ROUNDS, OWNER, ones, 0, RANKS)
    seen, expected = set(), []
    for t in range(ROUNDS):
        for move in balance.assignment(t).transfers:
            expected += [P, P, 1] if move.client in seen else []
            expected += [P, 1]
        seen |= set(draw(t).tolist())
    ranks.run(lambda comm: play(comm, ones, schema(torch.float32)))
    assert sorted(ranks.sent) == sorted(expected)
    assert len(expected) > 30


def test_a_new_life_in_the_middle_takes_states_out_of_the_stores():
    stored = schema(torch.float32)
    home = Ranks(RANKS).run(lambda comm: play(comm, None, stored))

    def two_lives(comm):
        shelf = Store({i for i in range(CLIENTS) if OWNER[i] == comm.rank})
        play(comm, ones, stored, range(6), shelf)
        return play(comm, ones, stored, range(6, ROUNDS), shelf)

    assert bits(Ranks(RANKS).run(two_lives)) == bits(home)


def test_another_model_than_the_dry_round_saw_is_an_error():
    stored, ranks = schema(torch.float32), Ranks(1)
    states_of_round = RemoteClientStates(
        ClientStates(Store(set()), stored, stored, first, CPU), stored, None, CPU
    )
    state = first(0)
    with pytest.raises(RuntimeError, match="another model than in the dry round"):
        states_of_round._fields_to_send(state, state.model.clone())
    assert ranks.sent == []


class OfTheDevice(One):
    """A rank receives on its device; what it sends may come from the disk."""

    def exchange(self, sent, received):
        if not all(is_fake(tensor) for _, tensor in received):
            self.ranks.barrier.abort()
        super().exchange(sent, received)


@pytest.mark.parametrize("states", [0, 2, CLIENTS])
@pytest.mark.parametrize("work", [None, ones], ids=["owner", "steal"])
def test_states_in_the_memory_of_gpus_are_the_same(states, work, tmp_path):
    stored = schema(torch.bfloat16)
    expected = Ranks(RANKS).run(lambda comm: play(comm, None, stored))

    def on_gpu(comm):
        behind = Store({i for i in range(CLIENTS) if OWNER[i] == comm.rank})
        behind.snapshot = lambda folder: []
        own, device = OfTheDevice(comm.ranks, comm.rank), torch.device("cuda", 0)
        balance = Balance(draw, ROUNDS, OWNER, work, comm.rank, RANKS)
        with FakeDevice():  # of this thread
            shelf = DeviceStore(behind, stored, states * 3 * ALIGNMENT)
            owned = ClientStates(
                shelf, schema(torch.float32), stored, lambda i: moved(first(i)), device
            )
            kept = owned if work is None else RemoteClientStates(owned, stored, own, device)
            for t in range(ROUNDS):
                if not len(draw(t)):
                    continue
                x, assignment = torch.full((P,), t + 0.3).to("cuda"), balance.assignment(t)
                given = kept.load(assignment, balance.assignment(t + 1))
                after = [trained(i, s, x) for i, s in zip(assignment.trained, given, strict=True)]
                kept.save(assignment, after, x)
            shelf.snapshot(tmp_path)
        return behind.states

    def moved(state):
        return State(*(leaf.to("cuda") for leaf in state))

    with fake_cuda():
        assert bits(Ranks(RANKS).run(on_gpu)) == bits(expected)
