"""Files that were made to do harm: each is refused in one line, before it does."""

import io
import json
import struct
import zipfile
import zlib

import h5py
import numpy as np
import pytest
import torch

from hpcfl.data import encoded_images
from hpcfl.data.check_heaps import check_heaps
from hpcfl.data.hdf5 import attribute
from hpcfl.data.partition import File
from hpcfl.data.photographs import grouped
from hpcfl.data.sources.arrays import Arrays
from hpcfl.data.split import partition_examples
from hpcfl.data.tables import CsvRow, class_of
from hpcfl.errors import DataError, HpcflError, JobError, StoreError, one_line
from hpcfl.io import checksum, memory
from hpcfl.io.files import read_array, read_arrays
from hpcfl.models.weights import read_weights
from hpcfl.runs import manifest

pytestmark = pytest.mark.slow


@pytest.fixture
def little_memory(monkeypatch):
    monkeypatch.setattr(memory, "free_memory", lambda: 10**6)


def test_zeros_that_unpack_to_more_than_there_is(tmp_path, little_memory):
    np.savez_compressed(tmp_path / "a.npz", x=np.zeros(10**6), y=np.zeros(3))
    assert (tmp_path / "a.npz").stat().st_size < 10_000
    with pytest.raises(DataError, match=r"declares 8\.0 MB of content, 1\.0 MB of memory are free"):
        read_arrays(tmp_path / "a.npz", ["x"])
    assert len(read_arrays(tmp_path / "a.npz", ["y"])["y"]) == 3


def npy(shape):
    out = io.BytesIO()
    header = {"descr": "<f8", "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(out, header)
    return out.getvalue() + bytes(64)


@pytest.mark.parametrize("shape", [(2**37,), (2**62, 2**62), (-1,), (3, -(2**40))])
def test_a_header_that_claims_more_than_follows(tmp_path, shape):
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as bag:
        bag.writestr("x.npy", npy(shape))
    with pytest.raises(DataError, match="not a readable file of numpy arrays"):
        read_arrays(tmp_path / "a.npz", ["x"])
    (tmp_path / "a.npy").write_bytes(npy(shape))
    with pytest.raises(DataError, match="not a readable file of numpy arrays"):
        read_array(tmp_path / "a.npy")


def test_a_client_too_many(tmp_path):
    np.savez(tmp_path / "a.npz", x=np.zeros((3, 2)), y=np.arange(3))
    np.save(tmp_path / "split.npy", np.array([0, 1, 10**15]))
    config = Arrays(path=str(tmp_path / "a.npz"), partition=File(path=str(tmp_path / "split.npy")))
    with pytest.raises(DataError, match=f"holds client {10**15}, but 3 examples"):
        partition_examples(config, config.load(0), 0)


def test_a_class_too_many(tmp_path):
    np.savez(tmp_path / "a.npz", x=np.zeros((3, 2)), y=np.array([0, 1, 10**12]))
    with pytest.raises(DataError, match=f"y holds {10**12}: so many classes must be meant"):
        Arrays(path=str(tmp_path / "a.npz")).load(0)


def test_numbers_of_many_digits():
    row = CsvRow("a.csv:2", ())
    with pytest.raises(DataError, match="expected 0 to 9"):
        class_of(row, "9" * 5000, 10)
    names = ["10", "b", "9" * 5000, "9", "08", "a"]
    order = [name for name, _ in grouped((name, row) for name in names)]
    assert order == ["08", "9", "10", "9" * 5000, "a", "b"]


def texts(path, heap=None):
    """An HDF5 file with texts of any length, and where its heap begins."""
    with h5py.File(path, "w") as file:
        file.create_dataset("texts", data=["a" * 20, "b"], dtype=h5py.string_dtype())
        file.attrs["said"] = "of any length"
    whole = path.read_bytes()
    begin = whole.index(b"GCOL")
    if heap is not None:
        path.write_bytes(whole[:begin] + heap(whole[begin : begin + 4096]) + whole[begin + 4096 :])
    return begin


def with_size(size, index=1, at=16):
    """A heap whose object at this place has this number and size."""
    header = struct.pack("<HHIQ", index, 1, 0, size)
    return lambda heap: heap[:at] + header + heap[at + 16 :]


@pytest.mark.parametrize(
    "heap",
    [
        with_size(0, index=0),  # HDF5 2.0 never gets past it
        with_size(15, index=0),
        with_size(2**64 - 1),
        with_size(2**64 - 24),
        with_size(2**63),
        with_size(4096),
    ],
)
def test_a_heap_that_leads_nowhere(tmp_path, heap):
    begin = texts(tmp_path / "a.h5", heap)
    with pytest.raises(DataError, match=rf"a\.h5: the texts at byte {begin} are damaged"):
        check_heaps(tmp_path / "a.h5")


def test_sound_heaps_and_what_only_looks_like_one(tmp_path):
    texts(tmp_path / "a.h5")
    check_heaps(tmp_path / "a.h5")
    (tmp_path / "b.h5").write_bytes(b"GCOL\x01" * 3 + bytes(40))
    check_heaps(tmp_path / "b.h5")
    (tmp_path / "c.h5").write_bytes(b"")
    check_heaps(tmp_path / "c.h5")


def test_a_heap_across_the_blocks_that_are_searched(tmp_path):
    texts(tmp_path / "a.h5", with_size(0, index=0))
    heap = (tmp_path / "a.h5").read_bytes()
    begin = heap.index(b"GCOL")
    for shift in (2, 8, 2000):
        path = tmp_path / f"{shift}.h5"
        path.write_bytes(bytes(2**24 - shift) + heap[begin:])
        with pytest.raises(DataError, match=f"the texts at byte {2**24 - shift} are damaged"):
            check_heaps(path)


def test_attributes_in_a_heap_are_not_read(tmp_path):
    texts(tmp_path / "a.h5")
    with h5py.File(tmp_path / "a.h5", "r+") as file:
        file.attrs.update(number=3, text=np.bytes_(b"abc"), list=[1, 2])
        found = [attribute(file, name) for name in ("said", "number", "text", "list", "absent")]
    assert found == [None, 3, b"abc", None, None]


@pytest.mark.parametrize("content", [b"", b"text", b"\x89PNG\r\n\x1a\n" + bytes(40)])
def test_a_reason_names_nothing_in_memory(content):
    with pytest.raises(encoded_images.DAMAGED) as caught:
        encoded_images.pixels(content)
    assert encoded_images.reason(caught.value)
    assert "0x" not in encoded_images.reason(caught.value)


def png(width, height):
    """A PNG that says that it has so many pixels."""
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunks = [(b"IHDR", header), (b"IDAT", zlib.compress(bytes(100))), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))
        for name, body in chunks
    )


def test_an_image_of_more_pixels_than_anyone_means():
    with pytest.raises(encoded_images.DAMAGED, match="decompression bomb"):
        encoded_images.pixels(png(2**20, 2**20))


@pytest.mark.parametrize(
    "tensor", [torch.zeros(2, 3, device="meta"), torch.zeros(2, 3).to_sparse()]
)
@pytest.mark.filterwarnings("ignore")
def test_weights_whose_numbers_are_not_there(tmp_path, tensor):
    torch.save({"weight": tensor, "bias": torch.zeros(2), 3: torch.zeros(1)}, tmp_path / "w.pth")
    assert list(read_weights(tmp_path / "w.pth")) == ["bias"]


@pytest.mark.parametrize(
    "change",
    [
        {"files": {}},
        {"files": {"server.safetensors": 1, "/dev/zero": 1}},
        {"files": {"server.safetensors": 1, "../../x": 1}},
        {"files": {"server.safetensors": "1"}},
        {"files": [1]},
        {"round": float("inf")},
        {"ranks": None},
        {"log_bytes": "a"},
        {"inputs": ["/dev/zero"]},
        {"inputs": {"/dev/zero": 1}},
    ],
)
def test_a_manifest_that_points_elsewhere(tmp_path, change):
    good = {
        "format": manifest.FORMAT,
        "round": 3,
        "ranks": 1,
        "job": "a",
        "inputs": {},
        "log_bytes": 1,
        "log_crc": 1,
        "files": {"server.safetensors": 1},
        "run_files": {"initial.npy": 1},
    }
    path = tmp_path / "00000003" / "manifest.json"
    path.parent.mkdir()
    path.write_bytes(checksum.add_to_json(json.dumps(good)))
    assert manifest.read(path.parent).round == 3
    for content in (
        checksum.add_to_json(json.dumps({**good, **change})),
        b"[" * 100_000,
        checksum.add_to_json('{"a": ' + "[" * 100_000 + "}"),
    ):
        path.write_bytes(content)
        with pytest.raises(StoreError, match="is damaged"):
            manifest.read(path.parent)


def test_a_message_is_one_line_without_commands_for_a_terminal():
    text = "a\nb\x1b[31m\tc\u2028d\x00\ud800 e\u00e9\n"
    assert one_line(text) == "a b\\x1b[31m c d\\x00\\ud800 e\u00e9"
    assert str(HpcflError(text)) == str(JobError(text)) == one_line(text)
    assert len(one_line("x" * 10**6)) < 5000
