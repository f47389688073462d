"""Ranks of a host share one copy of the data; here they are threads of one process."""

import dataclasses
import errno
import gc
import os
import re
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch

from hpcfl.comm.solo import Solo
from hpcfl.data import SOURCES, host_copy, plain_copy
from hpcfl.data.base import DataConfig, Dataset
from hpcfl.data.colour import Colour
from hpcfl.data.fingerprints import digest
from hpcfl.data.grayscale import Grey
from hpcfl.data.host_copy import load_on_hosts
from hpcfl.data.partition import RowRanges, sizes_of
from hpcfl.data.sources.arrays import cast
from hpcfl.errors import DataError, HpcflError, RemoteRankError
from hpcfl.types import Examples
from tests.jobs.miniatures import MAKERS, SMALLER, SUBSETS

PATIENCE_S = 60.0  # only against a hang


class Threads:
    """A group of ranks that are threads."""

    def __init__(self, group: "Group", rank: int) -> None:
        self._group, self.rank, self.size = group, rank, group.size

    def allgather(self, text: str) -> list[str]:
        return self._group.gather(self.rank, text)

    def allreduce_max(self, values):
        return np.max(self._group.gather(self.rank, values), axis=0)


class Group:
    def __init__(self, size: int) -> None:
        self.size, self._given = size, [None] * size
        self._barrier = threading.Barrier(size, timeout=PATIENCE_S)

    def gather(self, rank, value):
        self._given[rank] = value
        self._barrier.wait()
        found = list(self._given)
        self._barrier.wait()
        return found


class Ended(NamedTuple):
    data: host_copy.HostData | None
    error: Exception | None


def on_ranks(load: Callable[[], Dataset], size: int = 2, **how) -> list[Ended]:
    """How ``load_on_hosts`` ended on each rank; the thread of rank r is called r."""
    group = Group(size)
    ended: list[Ended | None] = [None] * size

    def run(rank: int) -> None:
        try:
            ended[rank] = Ended(load_on_hosts(load, Threads(group, rank), PATIENCE_S, **how), None)
        except HpcflError as error:
            ended[rank] = Ended(None, error)

    threads = [threading.Thread(target=run, args=(r,), name=str(r)) for r in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    return ended


class Loader:
    """A function that loads ``dataset``, and counts the ranks that call it."""

    def __init__(self, dataset: Dataset | Exception) -> None:
        self._dataset, self.ranks = dataset, []

    def __call__(self) -> Dataset:
        self.ranks.append(int(threading.current_thread().name))
        if isinstance(self._dataset, Exception):
            raise self._dataset
        return self._dataset


def made(**changes) -> Dataset:
    """A data set of 6 examples and 3 clients, one of which has no test example."""
    joined = torch.arange(20, dtype=torch.uint8)
    rows = [np.array([0, 5]), np.array([4, 1, 2]), np.array([3])]
    return dataclasses.replace(
        Dataset(
            train=Examples(joined.unfold(0, 8, 2)[:6], joined[8:14].to(torch.int64)),
            test=Examples(torch.arange(16.0).view(2, 8), torch.tensor([1, 0])),
            natural=rows,
            classes=20,
            loss="cross_entropy",
            transform=cast,
            natural_tests=[np.array([1]), np.empty(0, dtype=np.int64), np.array([0])],
            notes=("a note",),
        ),
        **changes,
    )


def mapped_copies() -> list[str]:
    """The lines of this process's map of memory that are of copies."""
    gc.collect()
    lines = Path("/proc/self/maps").read_text().splitlines()
    return [line for line in lines if "/hpcfl-data-" in line]


def open_copies() -> list[str]:
    """The open files of this process that are copies."""
    found = []
    for entry in list(Path("/proc/self/fd").iterdir()):
        with suppress(FileNotFoundError):  # that of the listing itself
            found.append(str(entry.readlink()))
    return [name for name in found if "/hpcfl-data-" in name]


@pytest.fixture(autouse=True)
def temporary(tmp_path, monkeypatch):
    """The folder of temporary files, which is empty again after every test."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    # Not tempfile.tempdir, which multiprocessing would use for its sockets.
    monkeypatch.setattr(
        host_copy, "TemporaryDirectory", partial(host_copy.TemporaryDirectory, dir=folder)
    )
    yield folder
    assert not list(folder.iterdir())


def equal(found: Dataset, wanted: Dataset) -> None:
    assert digest(found) == digest(wanted)
    for part, other in ((found.train, wanted.train), (found.test, wanted.test)):
        assert (part is None) == (other is None)
        for tensor, like in zip(part or (), other or (), strict=True):
            if not torch.is_tensor(tensor):
                assert type(tensor) is type(like)
                continue
            assert (tensor.stride(), tensor.storage_offset()) == (
                like.stride(),
                like.storage_offset(),
            )
    for mine, theirs in (
        (found.natural, wanted.natural),
        (found.natural_tests, wanted.natural_tests),
    ):
        assert (mine is None) == (theirs is None)
        for rows, like in zip(mine or (), theirs or (), strict=True):
            assert rows.dtype == like.dtype
            assert np.array_equal(rows, like)
    assert (found.classes, found.loss, found.notes) == (wanted.classes, wanted.loss, wanted.notes)


def test_one_rank_loads_and_all_have_the_same():
    load = Loader(made())
    ended = on_ranks(load, 3)
    assert load.ranks == [0]
    for one in ended:
        equal(one.data.dataset, made())
        assert one.data.notes == ()
    del ended, one
    assert not mapped_copies()
    assert not open_copies()


def test_pages_are_shared_and_nobody_changes_what_others_see():
    ended = on_ranks(Loader(made()))
    first, second = (one.data.dataset.train for one in ended)
    inodes = [line.split()[4] for line in mapped_copies()]
    assert len(inodes) == 2
    assert len(set(inodes)) == 1
    second.labels[0] = 99
    second.inputs[0, 0] = 77
    assert first.labels[0] == 8
    assert first.inputs[0, 0] == 0


@pytest.mark.parametrize("natural", [None, [], RowRanges(np.array([0, 2]), np.array([2, 4]))])
def test_rows_of_clients(natural):
    for one in on_ranks(Loader(made(natural=natural, natural_tests=None, test=None))):
        found = one.data.dataset
        equal(found, made(natural=natural, natural_tests=None, test=None))
        assert isinstance(found.natural, RowRanges) == isinstance(natural, RowRanges)
        if natural is not None:
            assert sizes_of(found.natural).tolist() == sizes_of(natural).tolist()


def test_an_error_of_the_loading_rank_is_that_of_all():
    load = Loader(DataError("a.npz: damaged"))
    first, *others = (one.error for one in on_ranks(load, 3))
    assert load.ranks == [0]
    assert isinstance(first, DataError)
    for error in others:
        assert isinstance(error, RemoteRankError)
        assert "DataError: a.npz: damaged" in str(error)
        assert error.exit_code == first.exit_code
    assert not mapped_copies()
    assert not open_copies()


class InFile:
    """Inputs that stay in a file."""

    shape, dtype, workers = (6, 8), torch.uint8, 1

    def read(self, rows):
        return torch.zeros(len(rows), 8, dtype=torch.uint8)


def test_examples_in_files_are_opened_by_every_rank():
    inputs = Examples(InFile(), made().train.labels)
    for load, how in (
        (Loader(made(train=inputs)), {}),
        (Loader(made(mapped=True)), {}),
        (Loader(made()), {"mapped": True}),
    ):
        ended = on_ranks(load, **how)
        assert sorted(load.ranks) == [0, 1]
        assert all(one.data.notes == () for one in ended)


class OwnGrey(Grey):
    """A transform of a user's, of a class that looks like one of hpcfl."""


OwnGrey.__name__ = "Grey"


def own_cast(inputs, dtype, draws):
    return inputs


own_cast.__name__ = "cast"

CANNOT = {
    "lambda": ("<lambda>", {"transform": lambda inputs, dtype, draws: inputs}),
    "function": ("own_cast", {"transform": own_cast}),
    "object": ("OwnGrey", {"transform": OwnGrey(flat=True)}),
    "personal": ("<lambda>", {"personal": lambda client: cast}),
}


@pytest.mark.parametrize("kind", CANNOT)
def test_what_is_not_hpcfls_own_is_loaded_by_every_rank_which_a_note_says(kind):
    load = Loader(made(**CANNOT[kind][1]))
    ended = on_ranks(load, 5)
    assert sorted(load.ranks) == [0, 1, 2, 3, 4]
    for one in ended:
        (found,) = one.data.notes
        assert re.fullmatch(
            rf"data: its data set is not shared \({CANNOT[kind][0]} is not hpcfl's own\): a copy "
            r"holds tensors, numbers and transforms of hpcfl alone; each rank loads its own copy "
            r"\(ranks 0, 1, 2, 3, \.\.\.\)",
            found,
        ), found


def full(*arguments):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_where_there_is_no_space_every_rank_loads(monkeypatch, temporary):
    monkeypatch.setattr(plain_copy, "write", full)
    load = Loader(made())
    for one in on_ranks(load):
        assert one.data.notes == (
            f"data: a copy for the ranks of this host cannot be saved in {temporary} (TMPDIR): No "
            "space left on device; each rank loads its own copy (ranks 0, 1)",
        )
    assert sorted(load.ranks) == [0, 1]


def test_where_there_is_no_folder_every_rank_loads(monkeypatch, tmp_path):
    absent = partial(host_copy.TemporaryDirectory, dir=tmp_path / "absent")
    monkeypatch.setattr(host_copy, "TemporaryDirectory", absent)
    monkeypatch.chdir(tmp_path)
    load = Loader(made())
    for one in on_ranks(load):
        assert one.data.notes == (
            "data: no folder for temporary files (TMPDIR) can be used: No such file or directory; "
            "each rank loads its own copy (ranks 0, 1)",
        )
    assert sorted(load.ranks) == [0, 1]


def test_a_rank_that_does_not_see_the_copy_loads_its_own(monkeypatch):
    """As in containers of one host that have temporary files of their own."""
    map_copy = host_copy._map

    def elsewhere(folder):
        return map_copy(folder if threading.current_thread().name == "0" else folder / "other")

    monkeypatch.setattr(host_copy, "_map", elsewhere)
    load = Loader(made())
    for one in on_ranks(load):
        assert one.data.notes == (
            "data: the copy of rank 0 cannot be mapped (No such file or directory); each rank "
            "loads its own copy (rank 1)",
        )
    assert sorted(load.ranks) == [0, 1]


def test_others_wait_for_a_lock_and_not_in_a_collective():
    """Of the time-out of collectives, a load of any length takes nothing."""
    waits = []

    def load():
        while not open_locks():
            pass
        waits.append(threading.current_thread().name)
        return made()

    def open_locks():
        return [name for name in open_copies() if name.endswith("/lock")][1:]

    assert all(one.error is None for one in on_ranks(load))
    assert waits == ["0"]


def test_every_host_loads_once(monkeypatch):
    monkeypatch.setattr(host_copy, "boot_id", lambda: str(int(threading.current_thread().name) % 2))
    load = Loader(made())
    ended = on_ranks(load, 5)
    assert sorted(load.ranks) == [0, 1]
    for one in ended:
        equal(one.data.dataset, made())


def test_a_single_rank_copies_nothing(monkeypatch):
    monkeypatch.setattr(plain_copy, "write", full)
    dataset = made()
    found = load_on_hosts(lambda: dataset, Solo(), PATIENCE_S)
    assert found.dataset is dataset
    assert found.notes == ()


@pytest.mark.parametrize("kind", MAKERS)
def test_every_data_set_is_shared_or_mapped(kind, tmp_path):
    MAKERS[kind](tmp_path)
    source = SOURCES[kind]
    names = {field.name for field in dataclasses.fields(source)}
    given = {key: value for key, value in SMALLER.items() if key in names}
    given |= {"root": str(tmp_path)} if "root" in names else {}
    given |= {"subset": True} if kind in SUBSETS else {}
    given |= {"colour": Colour(brightness=0.5)} if "colour" in names else {}
    if kind == "quadratics":
        given |= {"clients": 3}
    config: DataConfig = source(**given)
    wanted = config.load(0)
    load = Loader(wanted)
    first, second = (one.data for one in on_ranks(load, mapped=source.maps_files))
    assert (first.notes, second.notes) == ((), ())
    assert sorted(load.ranks) == ([0, 1] if source.maps_files else [0])
    assert source.maps_files == (wanted.mapped or not torch.is_tensor(wanted.train.inputs))
    equal(second.dataset, wanted)
    sample = wanted.sample(2)
    draws = torch.tensor([3, 2**40])
    for mine, theirs in [(second.dataset.transform, wanted.transform)] + [
        (second.dataset.personal(client), wanted.personal(client))
        for client in range(2)
        if wanted.personal is not None
    ]:
        assert torch.equal(mine(sample, torch.float32, draws), theirs(sample, torch.float32, draws))
