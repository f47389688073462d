"""The row table is found whole, or refused in one line."""

import numpy as np
import pytest

from hpcfl.errors import StoreError
from hpcfl.store import row_table
from hpcfl.store.row_table import Rows, Table
from tests.rundirs import row_tables as contents

NAMES = ("a-r0000-s0000.h5", "a-r0000-s0001.h5")


def part(clients, segments=None, places=None, names=NAMES) -> Rows:
    n = len(clients)
    return Rows(
        np.array(clients, np.int64),
        np.array([0] * n if segments is None else segments, np.int64),
        np.array(range(n) if places is None else places, np.int64),
        np.array([2**32 - 1] * n, np.int64),
        names,
    )


def test_every_rank_is_merged(tmp_path):
    row_table.write(tmp_path, 0, part([8, 2], [1, 0], [5, 6]))
    row_table.write(tmp_path, 1, part([], names=()))
    row_table.write(tmp_path, 2, part([5], [0], [7], ("a-r0002-s0000.h5",)))
    root = tmp_path / "stores"
    table = Table.load(tmp_path, root)
    assert table.ranks == 3
    assert table.owners == (0, 0, 2)
    assert table.clients.tolist() == [2, 5, 8]
    assert table.find(2) == (root / "a-r0000-s0000.h5", 6, 2**32 - 1)
    assert table.find(5) == (root / "a-r0002-s0000.h5", 7, 2**32 - 1)
    assert table.find(8) == (root / "a-r0000-s0001.h5", 5, 2**32 - 1)
    assert table.find(3) is None
    some = table.for_clients([8, 3, 5])
    assert some.clients.tolist() == [5, 8]
    assert some.find(8) == table.find(8)
    assert some.find(2) is None
    assert row_table.segments_in(tmp_path, contents(tmp_path)) == {*NAMES, "a-r0002-s0000.h5"}
    again = Table.load(tmp_path, root, contents(tmp_path))
    assert again.rows.tolist() == table.rows.tolist()
    assert again.paths == table.paths
    one = Table.load(tmp_path, root, only=2)
    assert (one.clients.tolist(), one.owners, one.ranks) == ([5], (2,), 3)
    none = Table.load(tmp_path, root, only=7)
    assert (none.clients.tolist(), none.paths, none.ranks) == ([], (), 3)


def test_a_missing_part(tmp_path):
    with pytest.raises(StoreError, match=r"rows-0000\.npz: the file is missing"):
        Table.load(tmp_path, tmp_path)
    for rank in (0, 2):
        row_table.write(tmp_path, rank, part([rank]))
    with pytest.raises(StoreError, match=r"rows-0001\.npz: the file is missing, found row tables"):
        Table.load(tmp_path, tmp_path)


def test_a_client_on_two_ranks(tmp_path):
    row_table.write(tmp_path, 0, part([3, 4]))
    row_table.write(tmp_path, 1, part([4]))
    with pytest.raises(StoreError, match="client 4 has two rows"):
        Table.load(tmp_path, tmp_path)


@pytest.mark.slow
def test_any_flipped_byte_is_found_or_harmless(tmp_path):
    good = part([3, 4])
    row_table.write(tmp_path, 0, good)
    path = tmp_path / "rows-0000.npz"
    whole = path.read_bytes()
    found = 0
    for at in range(len(whole)):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 0x55]) + whole[at + 1 :])
        try:
            again = row_table.read(tmp_path, 0)
        except StoreError as error:
            assert str(path) in str(error)
            found += 1
            continue
        assert all(map(np.array_equal, again, good))
    assert found > len(whole) // 2


@pytest.mark.parametrize("kept", [0, 100, -1])
def test_a_truncated_part(tmp_path, kept):
    row_table.write(tmp_path, 0, part([3, 4]))
    path = tmp_path / "rows-0000.npz"
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(StoreError, match="damaged"):
        row_table.read(tmp_path, 0)


@pytest.mark.parametrize(
    "odd",
    [
        part([3], segments=[2]),
        part([3], segments=[-1]),
        part([3], places=[-1]),
        part([3, 4], places=[0]),
        part([3], names=("../a-r0000-s0000.h5",)),
        part([3])._replace(crcs=np.zeros(1)),
        part([[3]]),
    ],
)
def test_a_part_that_points_outside_its_segments(tmp_path, odd):
    row_table.write(tmp_path, 0, odd)
    with pytest.raises(StoreError, match="do not fit together"):
        row_table.read(tmp_path, 0)


def test_objects_are_never_unpickled(tmp_path):
    np.savez(tmp_path / "rows-0000.npz", clients=np.array([{}], object), allow_pickle=True)
    with pytest.raises(StoreError, match="damaged"):
        row_table.read(tmp_path, 0)


def test_a_folder_that_cannot_be_written(tmp_path):
    with pytest.raises(StoreError, match=r"rows-0000\.npz: cannot write \d+ bytes: No such file"):
        row_table.write(tmp_path / "absent", 0, part([]))
