"""Data sets in files of plain numbers: what comes back, and what a damaged file does."""

import dataclasses
import os
import threading
import time
from io import BytesIO

import numpy as np
import pytest
import torch

from hpcfl.data import host_copy, plain_copy
from hpcfl.data.base import Dataset
from hpcfl.data.colour import Colour, PersonalColours
from hpcfl.data.grayscale import Grey
from hpcfl.data.images import CropFlipNormalize
from hpcfl.data.named_inputs import NamedInputs
from hpcfl.data.partition import RowRanges
from hpcfl.data.sources.arrays import cast, to_indices
from hpcfl.data.sources.huggingface import to_unit
from hpcfl.errors import RankError
from hpcfl.io.regular import create_private
from hpcfl.types import Examples

CROP = CropFlipNormalize(mean=(0.1, 0.2, 0.3), std=(1.0, 2.0, 3.0), size=8)
NAMED = NamedInputs.of("x", {"ids": torch.zeros(4, 3, dtype=torch.int64), "mask": torch.ones(4, 3)})


def dataset(**changes):
    return dataclasses.replace(
        Dataset(
            train=Examples(torch.arange(24.0).view(4, 6), torch.tensor([0, 1, 2, 1])),
            test=None,
            natural=None,
            classes=3,
            loss="cross_entropy",
            transform=cast,
        ),
        **changes,
    )


def copied(data, folder):
    with create_private(folder / "data") as file:
        plain_copy.write(data, file)
    return host_copy._map(folder)


@pytest.mark.parametrize(
    "changes",
    [
        {"transform": to_indices},
        {"transform": to_unit},
        {"transform": Grey(flat=True, normal=(0.25, 0.1))},
        {"transform": Grey(flat=False)},
        {"transform": CROP, "personal": PersonalColours(Colour(saturation=0.5), CROP, 2**62)},
        {"transform": NAMED, "named": NAMED},
        {"loss": "tokens", "padding": -100, "scored": range(1, 5)},
        {"origin": "a \u00e9", "digest": "0f", "notes": ("one", "two"), "classes": np.int64(7)},
    ],
)
def test_every_transform_of_hpcfl_comes_back(changes, tmp_path):
    wanted = dataset(**changes)
    found = copied(wanted, tmp_path)
    for field in dataclasses.fields(Dataset):
        if field.name != "train":
            assert getattr(found, field.name) == getattr(wanted, field.name), field.name
    for tensor, like in zip(found.train, wanted.train, strict=True):
        assert torch.equal(tensor, like)
    assert type(found.classes) is int


@pytest.mark.parametrize("dtype", [torch.uint8, torch.bool, torch.bfloat16, torch.float64])
def test_tensors_keep_their_layout_and_what_they_share(dtype, tmp_path):
    """Kernels may choose by the strides, and the bits of a run must not depend on the ranks."""
    image = torch.arange(48).view(2, 4, 3, 2).to(dtype).permute(0, 3, 1, 2)
    wanted = dataset(
        train=Examples(image, torch.tensor([0, 1])),
        test=Examples(image[1:, :, ::2], torch.empty(0, 5)[:, 1:]),
    )
    found = copied(wanted, tmp_path)
    for part, like in ((found.train, wanted.train), (found.test, wanted.test)):
        for tensor, other in zip(part, like, strict=True):
            assert torch.equal(tensor, other)
            assert (tensor.dtype, tensor.shape, tensor.stride()) == (
                *(other.dtype, other.shape, other.stride()),
            )
    assert found.test.inputs.data_ptr() - found.train.inputs.data_ptr() == (
        wanted.test.inputs.data_ptr() - wanted.train.inputs.data_ptr()
    )
    # No byte of the shared memory is twice in the file.
    assert (tmp_path / "data").stat().st_size < 4096


def test_rows_of_clients_come_back(tmp_path):
    rows = [np.array([3, 1]), np.empty(0, np.int64), np.array([0])]
    ranges = RowRanges(np.array([0, 2]), np.array([2, 2]))
    found = copied(dataset(natural=rows, natural_tests=ranges), tmp_path)
    assert [own.tolist() for own in found.natural] == [[3, 1], [], [0]]
    assert found.natural_tests.starts.tolist() == [0, 2]
    assert found.natural_tests.sizes.tolist() == [2, 2]
    assert copied_anew(dataset(natural=[]), tmp_path).natural == []


def copied_anew(data, folder):
    (folder / "data").unlink()
    return copied(data, folder)


@pytest.mark.parametrize(
    "changes",
    [
        {"notes": (object(),)},
        {"natural": [np.array(["a"])]},
        {"train": Examples(torch.ones(2, 2).to_sparse(), torch.zeros(2))},
        {"train": Examples(torch.ones(2, dtype=torch.complex64).conj(), torch.zeros(2))},
        {"train": Examples(torch.nn.Parameter(torch.ones(2)), torch.zeros(2))},
    ],
)
def test_what_cannot_be_described_is_an_error(changes):
    with pytest.raises((TypeError, RuntimeError)):
        plain_copy.write(dataset(**changes), BytesIO())


class Executed:
    def __reduce__(self):
        return os.mkdir, ("executed",)


def test_a_pickle_in_its_place_is_not_executed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with create_private(tmp_path / "data") as file:
        torch.save({"x": Executed()}, file)
    with pytest.raises(host_copy._ERRORS):
        host_copy._map(tmp_path)
    assert not (tmp_path / "executed").exists()


def test_a_damaged_file_is_an_error_of_the_kinds_that_callers_expect(tmp_path):
    whole = BytesIO()
    plain_copy.write(dataset(natural=[np.array([1])]), whole)
    content = whole.getvalue()
    head = 8 + int.from_bytes(content[:8], "little")
    cut = [content[:end] for end in range(0, len(content), 7)]
    changed = [content[:place] + b"0" + content[place + 1 :] for place in range(head)]
    for number, text in enumerate(cut + changed):
        folder = tmp_path / str(number)
        folder.mkdir()
        with create_private(folder / "data") as file:
            file.write(text)
        try:
            found = host_copy._map(folder)
        except host_copy._ERRORS:
            continue
        assert isinstance(found, Dataset)


def open_to_the_group(path):
    path.chmod(0o620)


def of_another(path):
    os.chown(path, 65534, -1)


def named_twice(path):
    path.with_name("other").hardlink_to(path)


def a_link(path):
    path.rename(path.with_name("other"))
    path.symlink_to("other")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (open_to_the_group, "its mode is 0620, expected 0600"),
        (of_another, "it is of user 65534, expected 0"),
        (named_twice, "it has 2 names, expected one"),
        (a_link, "it is a symbolic link, expected a file"),
    ],
)
def test_a_file_that_another_user_may_have_written_is_not_mapped(change, reason, tmp_path):
    if change is of_another and os.geteuid() != 0:
        pytest.skip("needs root: only root can give a file to another user")
    copied(dataset(), tmp_path)
    change(tmp_path / "data")
    with pytest.raises(OSError, match=reason):
        host_copy._map(tmp_path)


def test_a_rank_that_loads_is_waited_for_while_it_lives(tmp_path):
    """Its thread changes the time of the lock; one that is stopped changes nothing."""
    with create_private(tmp_path / "lock") as lock:
        host_copy.take_lock(lock.fileno(), host_copy.fcntl.LOCK_EX)
        begin = time.monotonic()
        over = threading.Event()

        def live():
            while not over.wait(0.05):
                os.utime(lock.fileno())

        thread = threading.Thread(target=live)
        thread.start()
        timer = threading.Timer(1.5, over.set)
        timer.start()
        with pytest.raises(RankError, match=r"waited 0\.5 s for rank 0, which loads the data"):
            host_copy._wait(tmp_path, "rank 0", 0.5)
        assert time.monotonic() - begin > 1.5
        thread.join()
    host_copy._wait(tmp_path, "rank 0", 0.5)  # it is free
