"""Damage in any file ends in success or in one line; whatever may hang or crash does so elsewhere.

A flipped bit in the numbers themselves is no damage that a reader could see.
"""

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcfl.errors import HpcflError
from tests.forked import python
from tests.hostile.damage import damaged, ends_well, many
from tests.hostile.files import HDF5, PICTURES, PLAIN, segment

pytestmark = pytest.mark.slow


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("case", PLAIN, ids=lambda case: case.__name__)
def test_any_damage_ends_in_a_line(case, tmp_path):
    path, read = case(tmp_path)
    read(0)  # as it is
    whole = path.read_bytes()

    @many(40)
    @given(st.data())
    def play(data):
        path.write_bytes(data.draw(damaged(whole)))
        ends_well(lambda: read(0))

    play()


@pytest.mark.parametrize("case", HDF5, ids=lambda case: case.__name__)
def test_any_damage_to_hdf5_ends_in_a_line(case, tmp_path):
    """In a process of its own, with more time of the processor than it ever needs."""
    ended = python(1, "-m", "tests.hostile.play_hdf5", case.__name__, tmp_path)
    assert ended.returncode == 0, ended.stderr[-3000:]


@pytest.mark.parametrize("other", ["fifo", "device"])
@pytest.mark.parametrize(
    "case",
    [case for case in (*PLAIN, *HDF5) if case not in (*PICTURES, segment)],
    ids=lambda case: case.__name__,
)
def test_what_is_no_file_is_told_at_once(case, other, tmp_path):
    """A FIFO, whose open would wait for a writer, and /dev/zero, which has no end."""
    path, read = case(tmp_path)
    path.unlink()
    if other == "fifo":
        os.mkfifo(path)
    else:
        path.symlink_to("/dev/zero")
    with pytest.raises(HpcflError, match=r"is a (FIFO|device), expected a file") as caught:
        read(0)
    assert path.name in str(caught.value)
