"""The bytes that rank 0's store sends where every rank tells all others a text."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import pytest

from hpcfl.comm import torch_distributed
from hpcfl.comm.launcher import Launch
from hpcfl.comm.meeting import Rendezvous
from hpcfl.comm.rendezvous import Connection
from hpcfl.comm.tcp_store import SealedStore
from hpcfl.comm.torch_distributed import Gloo

dist = torch_distributed.dist

RANKS = 64


class CountingStore(dist.Store):
    """A store that counts the bytes that it sends."""

    def __init__(self):
        super().__init__()
        self._held, self.sent = dist.HashStore(), []

    def set(self, key, value):
        self._held.set(key, value)

    def get(self, key):
        found = self._held.get(key)
        self.sent.append(len(found))
        return found

    def wait(self, keys, timeout=None):
        self._held.wait(keys)


def text(rank):
    """As a rank says where it is: some of it is its own."""
    shared = '"processor":"a processor of many cores","threads":12,"versions":{"torch":"2.13.0"}'
    return f'{{"rank":{rank},"host":"node{rank // 4}.cluster","gpu":"{rank * 7919:032x}",{shared}}}'


@pytest.fixture
def ranks(monkeypatch):
    """The groups of 64 ranks in one process, which share a store; and the store."""
    store = CountingStore()
    connection = Connection(store, 0, True, lambda: None, lambda code: None)
    met = Rendezvous(connection, SealedStore(store, "", 60.0, b"secret"))
    monkeypatch.setattr(torch_distributed, "meet", lambda *_: met)
    monkeypatch.setattr(dist, "init_process_group", lambda *_, **__: None)
    launches = [Launch(rank, RANKS, rank, "torchrun") for rank in range(RANKS)]
    return [Gloo(launch, 60.0, Path()) for launch in launches], store


def test_texts_of_64_ranks(ranks):
    groups, store = ranks
    texts = [text(rank) for rank in range(RANKS)]
    ready = Barrier(RANKS)

    def gather(group):
        ready.wait()
        return group.allgather(texts[group.rank])

    with ThreadPoolExecutor(RANKS) as threads:
        assert list(threads.map(gather, groups)) == [texts] * RANKS
    assert 0 < sum(store.sent) < RANKS * len("".join(texts)) / 4
