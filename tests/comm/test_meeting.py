"""Where torch's store listens: at the address of the job, and at no other."""

import socket
import warnings
from itertools import count
from threading import Thread

import pytest

from hpcfl.comm import rendezvous
from hpcfl.comm.launcher import Launch
from hpcfl.comm.rendezvous import listen, meet, on_one_host
from hpcfl.errors import RankError

TORCHRUN = Launch(0, 4, 0, "torchrun")
SLURM = Launch(0, 4, 0, "slurm")
HERE = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
THERE = {"MASTER_ADDR": "node0", "MASTER_PORT": "29500"}


def reaches(host, port):
    with socket.socket() as client:
        return client.connect_ex((host, port)) == 0


def test_on_one_host_only_the_loopback_address_is_open():
    """127.0.0.2 is another address of this host: a socket on all interfaces answers there."""
    with socket.create_server(("", 0)) as everywhere:
        assert reaches("127.0.0.2", everywhere.getsockname()[1])
    with listen("127.0.0.1", 0, one_host=True) as server:
        port = server.getsockname()[1]
        assert reaches("127.0.0.1", port)
        assert not reaches("127.0.0.2", port)


def test_the_store_of_a_job_is_open_there_only():
    """TCPStore by itself would listen on all interfaces."""
    met = meet(Launch(0, 1, 0, "none"), "gloo", 60.0)
    assert met.one_host
    assert reaches("127.0.0.1", met.store.port)
    assert not reaches("127.0.0.2", met.store.port)


def test_across_hosts_it_is_the_address_that_the_others_know(monkeypatch):
    """node0 is 127.0.0.3, were that no loopback address."""
    known = [(socket.AF_INET6, 1, 6, "", ("::1", 0, 0, 0)), (socket.AF_INET, 1, 6, "", FAR)]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: known)
    monkeypatch.setattr("hpcfl.comm.rendezvous.ip_address", lambda text: Public)
    with warnings.catch_warnings(), listen("node0", 0, one_host=False) as server:
        warnings.simplefilter("error")
        assert server.getsockname()[0] == FAR[0]
        assert not reaches("127.0.0.1", server.getsockname()[1])


FAR = ("127.0.0.3", 0)


class Public:
    is_loopback = False


def test_a_name_that_only_this_host_knows_is_said():
    """As Debian's 127.0.1.1 for a host's own name: other hosts know another address."""
    with (
        pytest.warns(UserWarning, match="localhost is 127.0.0.1 on the host itself, so rank 0"),
        listen("localhost", 0, one_host=False) as server,
    ):
        assert reaches("127.0.0.2", server.getsockname()[1])


@pytest.mark.parametrize(
    ("launch", "environ", "expected"),
    [
        (Launch(0, 1, 0, "none"), {}, True),
        (TORCHRUN, HERE, True),
        (TORCHRUN, {**HERE, "MASTER_ADDR": "localhost"}, True),
        (TORCHRUN, THERE, False),
        (TORCHRUN, {**THERE, "LOCAL_WORLD_SIZE": "4"}, True),
        (TORCHRUN, {**HERE, "LOCAL_WORLD_SIZE": "2"}, False),
        (SLURM, {"SLURM_STEP_NODELIST": "gpu07"}, False),
        (SLURM, {"SLURM_STEP_NODELIST": "gpu07", "SLURM_STEP_NUM_NODES": "1"}, True),
        (SLURM, {**HERE, "SLURM_STEP_NUM_NODES": "2"}, False),
    ],
)
def test_whether_all_ranks_are_on_one_host(launch, environ, expected):
    assert on_one_host(launch, environ) is expected


def test_the_store_of_torchrun_itself_is_joined_and_not_made(monkeypatch):
    """Every rank, 0 too, is a client of the launcher's; each run of a process waits for all."""
    agent = meet(Launch(0, 1, 0, "none"), "gloo", 60.0).store
    monkeypatch.setattr(rendezvous, "_RENDEZVOUS", count())
    agent.set("from", "torchrun")
    agent.set("hpcfl/0/here/0/1", "gloo")  # the other rank, in the first run
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", str(agent.port))
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "True")
    met = meet(Launch(0, 2, 0, "torchrun"), "gloo", 60.0)
    assert met.store.get("from") == b"torchrun"
    with pytest.raises(RankError, match=r"rank 1 did not come within 0\.01 s"):
        meet(Launch(0, 2, 0, "torchrun"), "gloo", 0.01)


@pytest.mark.parametrize("rank", [0, 1])
def test_ranks_with_different_backends_end_at_once(monkeypatch, rank):
    """Rank 1 sees no GPU.  Rank 0 compares, and ends after rank 1 has read what it found."""
    said = (
        "comm.backend: rank 1 takes gloo, rank 0 nccl; give all ranks the same job, and GPUs to "
        "all of them or to none"
    )
    agent = meet(Launch(0, 1, 0, "none"), "gloo", 60.0).store
    monkeypatch.setattr(rendezvous, "_RENDEZVOUS", count())
    other = 1 - rank
    agent.set(f"hpcfl/0/here/0/{other}", ["nccl", "gloo"][other])
    if rank:
        agent.set("hpcfl/0/met/0", said)
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", str(agent.port))
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "True")
    order = []

    def read() -> None:
        """As the other rank does, once rank 0 has compared."""
        agent.wait(["hpcfl/0/met/0"])
        order.append("the other rank reads")
        agent.set(f"hpcfl/0/here/0/{other}/read", "")

    reader = Thread(target=read)
    reader.start()
    with pytest.raises(RankError) as e:
        meet(Launch(rank, 2, 0, "torchrun"), ["nccl", "gloo"][rank], 60.0)
    order.append("this rank ends")
    reader.join()
    assert str(e.value) == said
    assert agent.get("hpcfl/0/met/0").decode() == said
    assert agent.check([f"hpcfl/0/here/0/{rank}/read"])
    assert rank or order == ["the other rank reads", "this rank ends"]


def test_a_rank_0_that_came_and_does_not_answer_is_named(monkeypatch):
    """It has been stopped, for example."""
    agent = meet(Launch(0, 1, 0, "none"), "gloo", 60.0).store
    monkeypatch.setattr(rendezvous, "_RENDEZVOUS", count())
    agent.set("hpcfl/0/here/0/0", "gloo")
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", str(agent.port))
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "True")
    with pytest.raises(RankError, match=r"rank 1 of 2: rank 0 did not come within 0\.1 s"):
        meet(Launch(1, 2, 0, "torchrun"), "gloo", 0.1)
