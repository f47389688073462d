"""A segment returns the bits it was given, and refuses whatever is not a whole segment."""

import errno
import fcntl
import os
import subprocess
import sys

import h5py
import numpy as np
import pytest
import torch

from hpcfl.errors import DiskError, StoreError
from hpcfl.store.schema import Field, StateSchema
from hpcfl.store.segment import Segment

ROWS = 7


@pytest.fixture
def path(root, schema, make):
    path = root / "a-r0000-s0000.h5"
    segment = Segment.create(path, schema, ROWS)
    for row in range(ROWS):
        segment.write(row, make(row, 0))
    segment.flush()
    segment.close()
    return path


def test_every_dtype_comes_back_bit_for_bit(path, schema, make, bits):
    segment = Segment.open(path, schema, "r")
    for row in range(ROWS):
        assert bits(schema.type(*segment.read(row))) == bits(make(row, 0))
    segment.close()


def test_h5py_reads_the_same_bits(path, make):
    with h5py.File(path, "r") as file:
        for row in range(ROWS):
            state = make(row, 0)
            assert file["drift"][row].tobytes() == state.drift.numpy().tobytes()
            assert file["anchor"][row].tobytes() == state.anchor.numpy().tobytes()
            assert file["last"][row] == state.last.item()
            assert file["brief"][row].tobytes() == state.brief.view(torch.uint8).numpy().tobytes()
        assert file["brief"].attrs["dtype"] == b"bfloat16"


def test_a_write_changes_its_row_and_no_other_byte_of_the_file(path, schema, make):
    before = np.fromfile(path, np.uint8)
    segment = Segment.open(path, schema, "r+")
    offsets = segment._offsets
    segment.write(3, make(99, 1))
    segment.close()
    allowed = np.zeros(len(before), np.bool_)
    for field, offset in zip(schema.fields, offsets, strict=True):
        size = torch.Size(field.shape).numel() * field.dtype.itemsize
        allowed[offset + 3 * size : offset + 4 * size] = True
    changed = before != np.fromfile(path, np.uint8)
    assert changed.any()
    assert not (changed & ~allowed).any()


def test_the_file_is_allocated_whole(path, schema):
    assert path.stat().st_blocks * 512 >= ROWS * schema.bytes
    assert not list(path.parent.glob("*.part"))


def test_a_tensor_that_is_not_contiguous_is_written_row_major(root):
    schema = StateSchema(tuple, (Field("x", (3, 2), torch.float32),))
    segment = Segment.create(root / "b.h5", schema, 1)
    x = torch.arange(6.0).reshape(2, 3).T
    segment.write(0, (x,))
    assert torch.equal(segment.read(0)[0], x)
    segment.close()


@pytest.mark.parametrize("row", [-1, ROWS])
def test_a_row_outside_is_refused(path, schema, row):
    segment = Segment.open(path, schema, "r")
    with pytest.raises(StoreError, match=rf"found {ROWS} rows, the row table names row {row}"):
        segment.read(row)
    segment.close()


def test_a_state_of_another_shape_or_dtype_is_refused(path, schema, make):
    segment = Segment.open(path, schema, "r+")
    with pytest.raises(ValueError, match=r"'drift': got torch.float32 \(6,\), expected"):
        segment.write(0, make(0, 0)._replace(drift=torch.zeros(6)))
    with pytest.raises(ValueError, match=r"'last': got torch.int32"):
        segment.write(0, make(0, 0)._replace(last=torch.tensor(1, dtype=torch.int32)))
    segment.close()


def test_a_second_writer_is_refused_and_a_reader_is_not(path, schema):
    writer = Segment.open(path, schema, "r+")
    with pytest.raises(StoreError, match="another process has it open for writing") as refused:
        Segment.open(path, schema, "r+")
    assert refused.value.exit_code == 75  # once that has ended, the same command goes on
    Segment.open(path, schema, "r").close()
    writer.close()
    Segment.open(path, schema, "r+").close()


def test_a_file_system_without_locks_keeps_no_writer_out(path, schema, no_locks):
    Segment.open(path, schema, "r+").close()


def test_a_look_at_the_lock_keeps_no_writer_out(path, schema, monkeypatch):
    """As slurm/run.sh looks whether ranks of an earlier start are alive."""
    with path.open("rb") as look:
        fcntl.flock(look, fcntl.LOCK_SH)
        monkeypatch.setattr("hpcfl.io.lock.time.sleep", lambda _: fcntl.flock(look, fcntl.LOCK_UN))
        Segment.open(path, schema, "r+").close()


def test_an_existing_file_is_never_replaced(path, schema):
    with pytest.raises(StoreError, match="exists already"):
        Segment.create(path, schema, 1)


def test_a_dtype_that_cannot_be_kept_is_refused(root):
    schema = StateSchema(tuple, (Field("x", (1,), torch.float16),))
    with pytest.raises(StoreError, match=r"field 'x' is torch.float16, a state holds"):
        Segment.create(root / "b.h5", schema, 1)


def check_refused(path, schema, match):
    with pytest.raises(StoreError, match=match) as caught:
        Segment.open(path, schema, "r")
    assert str(path) in str(caught.value)
    assert "older checkpoint" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_missing_file(path, schema):
    path.unlink()
    check_refused(path, schema, "the file is missing")


@pytest.mark.parametrize("kept", [0.0, 0.1, 0.5, 0.999])
def test_a_truncated_file(path, schema, kept):
    os.truncate(path, int(path.stat().st_size * kept))
    check_refused(path, schema, "damaged or not HDF5")


def test_a_file_that_is_not_hdf5(path, schema):
    path.write_bytes(b"states" * 1000)
    check_refused(path, schema, "damaged or not HDF5")


def test_another_hdf5_file(path, schema):
    path.unlink()
    with h5py.File(path, "w") as file:
        file["drift"] = np.zeros((ROWS, 5))
    check_refused(path, schema, "format: found None, expected hpcfl client states 1")


@pytest.mark.parametrize(
    ("index", "field", "match"),
    [
        (0, Field("drift", (6,), torch.float32), r"'drift': shape: found \(5,\), expected \(6,\)"),
        (0, Field("drift", (5,), torch.float64), "'drift': dtype: found float32, expected"),
        (0, Field("other", (5,), torch.float32), "fields: found"),
    ],
)
def test_a_segment_of_another_schema(path, schema, index, field, match):
    fields = list(schema.fields)
    fields[index] = field
    check_refused(path, schema._replace(fields=tuple(fields)), match)


def replace_drift(path, **kwargs):
    with h5py.File(path, "r+") as file:
        del file["drift"]
        file.create_dataset("drift", (ROWS, 5), "f4", **kwargs).attrs["dtype"] = np.bytes_(
            "float32"
        )


def test_a_chunked_dataset(path, schema):
    replace_drift(path, chunks=(1, 5))
    check_refused(path, schema, "'drift': layout")


def test_storage_that_was_never_allocated(path, schema):
    replace_drift(path)
    check_refused(path, schema, "'drift': end of its storage: found None")


def test_storage_in_another_file(path, schema):
    replace_drift(path, external=[(str(path.parent / "raw"), 0, h5py.h5f.UNLIMITED)])
    check_refused(path, schema, "'drift': external files: found 1, expected 0")


@pytest.mark.parametrize("link", [h5py.SoftLink("/anchor"), h5py.ExternalLink("b.h5", "/drift")])
def test_a_link(path, schema, link):
    with h5py.File(path, "r+") as file:
        del file["drift"]
        file["drift"] = link
    check_refused(path, schema, "'drift': link: found (Soft|External)Link")


def test_fields_of_unequal_length(path, schema):
    with h5py.File(path, "r+") as file:
        del file["last"]
        file["last"] = np.zeros(ROWS + 1, np.int64)
        file["last"].attrs["dtype"] = np.bytes_("int64")
    check_refused(path, schema, "rows of the fields")


def test_any_flipped_byte_of_the_metadata_is_found_or_harmless(path, schema, make, bits):
    """Metadata is checksummed: a flip never leads reads or writes to a wrong place.

    Every 7th byte here, for speed; all of them passed once.
    """
    whole = path.read_bytes()
    segment = Segment.open(path, schema, "r")
    raw = set()
    for field, offset in zip(schema.fields, segment._offsets, strict=True):
        size = ROWS * torch.Size(field.shape).numel() * field.dtype.itemsize
        raw |= set(range(offset, offset + size))
    segment.close()
    found = 0
    for at in sorted(set(range(len(whole))) - raw)[::7]:
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 0x55]) + whole[at + 1 :])
        try:
            segment = Segment.open(path, schema, "r")
        except StoreError:
            found += 1
            continue
        assert bits(schema.type(*segment.read(4))) == bits(make(4, 0))
        segment.close()
    assert found > 50


def test_too_little_room_is_met_at_allocation(root, schema):
    rows = 2**50 // schema.bytes
    with pytest.raises(DiskError, match=r"needs 1\.1 PB, \d+\.\d [GT]B free"):
        Segment.create(root / "b.h5", schema, rows)
    assert not list(root.iterdir())


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EIO])
def test_a_failed_allocation_leaves_nothing(root, schema, monkeypatch, code):
    def fail(fd, offset, length):
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "posix_fallocate", fail)
    with pytest.raises(DiskError, match=rf"cannot allocate client states \({os.strerror(code)}\)"):
        Segment.create(root / "b.h5", schema, ROWS)
    assert not list(root.iterdir())


def test_a_disk_without_inodes_is_named(root, schema, monkeypatch):
    def fail(fd, offset, length):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    found = os.statvfs(root)
    full = os.statvfs_result((*found[:6], 0, 0, *found[8:]))  # f_ffree, f_favail
    monkeypatch.setattr(os, "posix_fallocate", fail)
    monkeypatch.setattr(os, "statvfs", lambda folder: full)
    with pytest.raises(DiskError, match=r"B free, but no inode \(`df -i`\); delete files there, "):
        Segment.create(root / "b.h5", schema, ROWS)


@pytest.mark.slow
@pytest.mark.parametrize("room", [0, 100, 1000])
def test_a_disk_that_fills_up_inside_hdf5(root, room):
    """A file's size limit stands for the disk; in a process of its own, for HDF5 may crash it."""
    done = subprocess.run(
        [sys.executable, "-c", FILL, str(root / "b.h5"), str(room)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    (line,) = done.stdout.splitlines()
    assert "b.h5: cannot allocate client states (" in line
    assert line.endswith("into a file; raise `ulimit -f`, then resume")
    assert not list(root.iterdir())


FILL = """
import resource, sys
from pathlib import Path
import torch
from hpcfl.errors import DiskError
from hpcfl.store import segment_file as layout
from hpcfl.store.schema import Field, StateSchema

resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), resource.RLIM_INFINITY))
schema = StateSchema(tuple, (Field("x", (10,), torch.float32),))
try:
    layout.create(Path(sys.argv[1]), schema, 100)
except DiskError as error:
    print(error)
"""


@pytest.mark.parametrize(("call", "verb"), [("preadv", "read"), ("pwrite", "write")])
def test_a_failing_disk_names_file_and_row(path, schema, make, monkeypatch, call, verb):
    def fail(fd, buffer, offset):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    segment = Segment.open(path, schema, "r+")
    monkeypatch.setattr(os, call, fail)
    with pytest.raises(DiskError, match=rf"{path}: cannot {verb} row 2: Input/output error"):
        segment.read(2) if verb == "read" else segment.write(2, make(0, 0))
    segment.close()


def test_a_close_that_fails_names_the_file(path, schema, monkeypatch):
    """As on NFS, which reports some failed writes only then."""

    def fail(fd):
        close(fd)
        raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))

    segment, close = Segment.open(path, schema, "r+"), os.close
    monkeypatch.setattr(os, "close", fail)
    with pytest.raises(DiskError, match=rf"{path}: cannot be written: Disk quota exceeded; the l"):
        segment.close()


def test_a_file_cut_while_open_is_found(path, schema):
    segment = Segment.open(path, schema, "r")
    os.truncate(path, 0)
    with pytest.raises(StoreError, match="cannot read row 0: the file ends before it"):
        segment.read(0)
    segment.close()


def test_short_reads_and_writes_are_carried_on(path, schema, make, bits, monkeypatch):
    pwrite, preadv = os.pwrite, os.preadv
    monkeypatch.setattr(os, "pwrite", lambda fd, view, at: pwrite(fd, view[:3], at))
    monkeypatch.setattr(os, "preadv", lambda fd, views, at: preadv(fd, [views[0][:3]], at))
    segment = Segment.open(path, schema, "r+")
    segment.write(1, make(8, 8))
    assert bits(schema.type(*segment.read(1))) == bits(make(8, 8))
    assert bits(schema.type(*segment.read(2))) == bits(make(2, 0))
    segment.close()
