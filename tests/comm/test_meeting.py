"""How ranks meet by a store: where it listens, and whom they believe."""

import os
import socket
import warnings
from concurrent.futures import ThreadPoolExecutor
from itertools import count, repeat
from pathlib import Path

import pytest

from hpcfl.comm import meeting, secret
from hpcfl.comm.launcher import Launch
from hpcfl.comm.meeting import meet
from hpcfl.comm.rendezvous import Connection, TCPStore, listen, on_one_host
from hpcfl.comm.tcp_store import LimitedStore
from hpcfl.errors import JobError, RankError, RemoteRankError

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
    met = meet(Launch(0, 1, 0, "none"), "gloo", 60.0, Path())
    assert met.connection.one_host
    assert reaches("127.0.0.1", met.connection.store.port)
    assert not reaches("127.0.0.2", met.connection.store.port)


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


@pytest.fixture
def agent(monkeypatch):
    """A store as torchrun holds it; its address and the first number of a run are set."""
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    monkeypatch.setattr(meeting, "_MEETINGS", count())
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", str(store.port))
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "True")
    return store


def stranger(agent):
    """What any process can set in the store."""
    return LimitedStore(TCPStore("127.0.0.1", agent.port), "hpcfl/0/0", 60.0)


@pytest.fixture
def together(agent, monkeypatch):
    """Calls ``meet`` for two ranks at once, each with a connection of its own."""
    monkeypatch.setattr(meeting, "_MEETINGS", repeat(0))

    def connect(*_):
        client = TCPStore("127.0.0.1", agent.port)
        return Connection(client, 0, True, lambda: None, lambda code: None)

    monkeypatch.setattr(meeting, "connect_to_store", connect)

    def both(backends, folders):
        def one(rank):
            return meet(Launch(rank, 2, 0, "torchrun"), backends[rank], 5.0, folders[rank])

        with ThreadPoolExecutor(2) as threads:
            futures = [threads.submit(one, rank) for rank in range(2)]
        return [future.exception() or future.result() for future in futures]

    return both


def test_the_store_of_torchrun_itself_is_joined_and_not_made(agent, tmp_path):
    """Every rank, 0 too, is a client of the launcher's; each run of a process waits for all."""
    agent.set("from", "torchrun")

    def rank_1():
        store = stranger(agent)
        store.set("here/1")
        texts = store.sealed(secret.read(store.get("place").decode(), tmp_path))
        texts.set("backend/1", b"gloo")

    with ThreadPoolExecutor(1) as threads:
        other = threads.submit(rank_1)
        met = meet(Launch(0, 2, 0, "torchrun"), "gloo", 60.0, tmp_path)
        other.result()
    assert met.connection.store.get("from") == b"torchrun"
    with pytest.raises(RankError, match=r"rank 1 did not come within 0\.01 s"):
        meet(Launch(0, 2, 0, "torchrun"), "gloo", 0.01, tmp_path)


def test_ranks_with_different_backends_end_at_once(together, tmp_path):
    """Rank 1 sees no GPU.  Rank 0 compares, and ends after rank 1 has read what it found."""
    for error in together(["nccl", "gloo"], [tmp_path, tmp_path]):
        assert isinstance(error, RankError)
        assert str(error) == (
            "comm.backend: rank 1 takes gloo, rank 0 nccl; give all ranks the same job, and GPUs "
            "to all of them or to none"
        )


def test_a_rank_0_that_came_and_does_not_answer_is_named(agent, tmp_path):
    """It has been stopped, for example."""
    stranger(agent).set("here/0")
    with pytest.raises(RankError, match=r"rank 1 of 2: rank 0 did not come within 0\.1 s"):
        meet(Launch(1, 2, 0, "torchrun"), "gloo", 0.1, tmp_path)


@pytest.mark.parametrize("levels", [0, 2])
def test_ranks_share_a_secret_that_is_nowhere_afterwards(together, tmp_path, levels):
    """By a file in the run directory, or in the nearest folder above it."""
    run = tmp_path.joinpath(*["new"] * levels)
    first, second = (met.texts for met in together(["gloo"] * 2, [run] * 2))
    first.set("word", b"from rank 0")
    assert second.get("word") == b"from rank 0"
    assert [*tmp_path.iterdir()] == []


def test_a_text_without_the_secret_is_refused(together, agent, tmp_path):
    """Nor is one with the code of another text, or of another key."""
    texts = together(["gloo"] * 2, [tmp_path] * 2)[1].texts
    texts.set("word", b"right")
    right = stranger(agent).get("word")
    for key, forged in (
        ("word", b"wrong"),
        ("word", right[:32] + b"wrong"),
        ("other", right),
        ("word", b""),
    ):
        stranger(agent).set(key, forged)
        with pytest.raises(
            RankError, match=rf"the text hpcfl/0/0/{key} .* does not carry the code"
        ):
            texts.get(key)
    stranger(agent).set("word", right)
    assert texts.get("word") == b"right"


def test_ranks_with_two_folders_say_so_at_once(together, tmp_path, monkeypatch):
    """As with the directory of each host alone."""
    monkeypatch.setattr(secret, "LAG_S", 0.1)
    folders = [tmp_path / name for name in "ab"]
    for folder in folders:
        folder.mkdir()
    first, second = together(["gloo"] * 2, folders)
    assert "hpcfl/0/0/backend/1 that this rank received does not carry the code" in str(first)
    assert str(second).startswith(f"the secret of the ranks cannot be read: {tmp_path}/b/.hpcfl-")
    assert "with one run directory on a file system that all hosts share" in str(second)
    assert isinstance(first, RankError)
    assert isinstance(second, RankError)


def test_a_folder_that_nobody_can_write_to_ends_all_ranks(together, tmp_path, monkeypatch):
    def full(path):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(secret, "create_private", full)
    first, second = together(["gloo"] * 2, [tmp_path] * 2)
    assert isinstance(first, JobError)
    assert str(first).startswith(f"{tmp_path}: no file can be made there (Permission denied)")
    assert isinstance(second, RemoteRankError)
    assert second.exit_code == 2


PLACE = "0 " + "0" * 32


def in_place(tmp_path):
    return tmp_path / f".hpcfl-{'0' * 32}"


def linked(path):
    path.symlink_to(path.with_name("other"))


def named_twice(path):
    os.link(path.with_name("other"), path)


def open_to_all(path):
    path.write_bytes(bytes(32))
    path.chmod(0o644)


def of_another(path):
    path.write_bytes(bytes(32))
    path.chmod(0o600)
    os.chown(path, 65534, -1)


def short(path):
    path.write_bytes(bytes(31))
    path.chmod(0o600)


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (linked, "it is a symbolic link, expected a file"),
        (os.mkfifo, "it is a FIFO, expected a file"),
        (named_twice, "it has 2 names, expected one"),
        (open_to_all, "its mode is 0644, expected 0600"),
        (of_another, "it is of user 65534, expected 0"),
        (short, "holds no secret"),
    ],
)
def test_a_file_that_another_user_may_know_is_no_secret(tmp_path, make, reason):
    if make is of_another and os.geteuid() != 0:
        pytest.skip("needs root: only root can give a file to another user")
    other = tmp_path / "other"
    other.write_bytes(bytes(32))
    other.chmod(0o600)
    make(in_place(tmp_path))
    with pytest.raises(RankError, match=reason):
        secret.read(PLACE, tmp_path)


@pytest.mark.parametrize(
    "place", ["", "/somewhere/else", "0 ../../other", "99999 " + "0" * 32, PLACE + "\n"]
)
def test_a_place_leads_to_no_other_file(tmp_path, place):
    with pytest.raises(RankError, match=r"cannot be read: found .* as its place"):
        secret.read(place, tmp_path)


def test_the_file_of_the_secret_is_of_its_owner_alone(tmp_path):
    drawn = secret.draw()
    with secret.offered(drawn, tmp_path / "run") as place:
        (path,) = tmp_path.iterdir()
        assert path.stat().st_mode & 0o777 == 0o600
        assert secret.read(place, tmp_path / "run") == drawn
    assert not path.exists()
