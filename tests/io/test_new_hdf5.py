"""A new HDF5 file on a disk that is too small for it."""

import subprocess
import sys
from pathlib import Path

import h5py
import numpy as np
import pytest

from hpcfl.io.new_hdf5 import METADATA, new_hdf5

# The system refuses to let a file grow beyond the limit, as a full disk does.
FULL = """
import errno, resource, sys
from pathlib import Path
import numpy as np
from hpcfl.io.new_hdf5 import new_hdf5

limit = int(sys.argv[2])
resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
try:
    with new_hdf5(Path(sys.argv[1]), 1_000_000) as file:
        for k in range(100):
            file[f"part{k}"] = np.zeros(10_000, dtype=np.uint8)
except OSError as error:
    assert error.errno == errno.EFBIG, error
    print("told")
"""
NEED = METADATA + 1_000_000


@pytest.mark.parametrize(
    ("limit", "said"),
    [(NEED, ""), (NEED - 1, "told\n"), (1000, "told\n"), (100, "told\n"), (10, "told\n")],
)
def test_a_full_disk_is_an_error_and_no_crash(tmp_path, limit, said):
    """HDF5's own close would fail, and the interpreter end by a segmentation fault."""
    done = subprocess.run(
        [sys.executable, "-c", FULL, tmp_path / "x.h5", str(limit)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, said, "")


def test_the_file_takes_no_more_than_it_needs(tmp_path):
    path = tmp_path / "x.h5"
    with new_hdf5(path, 10_000_000) as file:
        file["rows"] = np.arange(5)
        file.create_dataset("later", (1_000_000,), np.uint8, fillvalue=None)
    with h5py.File(path) as file:
        assert file["rows"][()].tolist() == [0, 1, 2, 3, 4]
    assert path.stat().st_size < 100_000


def test_an_error_of_the_block_passes(tmp_path):
    before = len(list(Path("/proc/self/fd").iterdir()))
    with pytest.raises(RuntimeError, match="thread"), new_hdf5(tmp_path / "x.h5", 100) as file:
        file["rows"] = np.arange(5)
        raise RuntimeError("can't start new thread")
    assert len(list(Path("/proc/self/fd").iterdir())) == before
