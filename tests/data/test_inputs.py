"""The digests of a job's inputs: of what its data set loads, of the split and of the cohorts."""

import os
from hashlib import sha256

import h5py
import numpy as np
import pytest
import torch

from hpcfl.data.base import Dataset
from hpcfl.data.download import quiet
from hpcfl.data.fingerprints import digest, fingerprints
from hpcfl.data.partition import RowRanges
from hpcfl.data.sources.arrays import Arrays, cast
from hpcfl.data.sources.digits import Digits
from hpcfl.data.sources.image_folder import ImageFolder
from hpcfl.data.sources.tiny_imagenet import TinyImageNet
from hpcfl.errors import DataError
from hpcfl.types import Examples
from tests import image_layouts
from tests.data import test_stackoverflow


def photos(root):
    image_layouts.image_folder(root)
    return ImageFolder(root=str(root), size=32, margin=4, workers=1)


def tiny_imagenet(root):
    image_layouts.tiny_imagenet(root)
    return TinyImageNet(root=str(root), subset=True)


def sentences(root):
    for part, users in (("train", test_stackoverflow.TRAIN), ("test", test_stackoverflow.TEST)):
        test_stackoverflow.write(root, part, users)
    (root / "stackoverflow.word_count").write_text(test_stackoverflow.COUNTS)
    return test_stackoverflow.config(root)


PREPARED = {photos: "train/bytes", tiny_imagenet: "train/images", sentences: "train/tokens"}


def flip(path, at):
    with path.open("r+b") as file:
        file.seek(at)
        (byte,) = file.read(1)
        file.seek(at)
        file.write(bytes([byte ^ 1]))


@pytest.mark.parametrize("make", PREPARED, ids=lambda make: make.__name__)
def test_of_a_prepared_file_the_examples_are_not_read(make, tmp_path):
    config = make(tmp_path)
    path = config.prepare(quiet)
    before = digest(config.load(0))
    assert digest(config.load(0)) == before
    with h5py.File(path) as file:
        inside = file[PREPARED[make]].id.get_offset()
    flip(path, inside)
    assert digest(config.load(0)) == before
    flip(path, inside)
    with path.open("ab") as file:
        file.write(b"x")
    assert digest(config.load(0)) != before


@pytest.mark.parametrize("make", PREPARED, ids=lambda make: make.__name__)
def test_a_file_that_was_prepared_from_others_is_another(make, tmp_path):
    config = make(tmp_path)
    path = config.prepare(quiet)
    before = digest(config.load(0))
    path.unlink()
    config.prepare(quiet)
    assert digest(config.load(0)) == before
    path.unlink()
    source = next(
        file
        for file in sorted(tmp_path.rglob("*"))
        if file.suffix in (".jpg", ".JPEG") or file.name == "stackoverflow_train.h5"
    )
    os.utime(source, (2e9, 2e9))
    config.prepare(quiet)
    assert digest(config.load(0)) != before


def test_data_split_and_cohorts_are_named_by_the_keys_that_say_where_they_are(tmp_path):
    np.savez(tmp_path / "own.npz", x=np.eye(4), y=np.arange(4))
    split, cohorts = tmp_path / "split.npy", tmp_path / "cohorts.json"
    np.save(split, np.arange(4))
    cohorts.write_text("[[0]]")
    config = Arrays(path=str(tmp_path / "own.npz"))
    data = made(digest="sha256:0")
    places = {"data.path": config.path, "data.partition.path": str(split)}
    places["cohort.path"] = str(cohorts)
    found = fingerprints(config, data, places)
    assert found == {
        "cohort.path": f"sha256:{sha256(b'[[0]]').hexdigest()}",
        "data.partition.path": f"sha256:{sha256(split.read_bytes()).hexdigest()}",
        "data.path": "sha256:0",
    }
    assert list(found) == sorted(found)
    assert fingerprints(config, data, {"data.root": "/a"}) == {"data.root": "sha256:0"}
    assert fingerprints(Digits(), data, {}) == {"what Digits loads": "sha256:0"}
    cohorts.unlink()
    with pytest.raises(DataError, match=r"cohorts\.json: cannot be read: No such file"):
        fingerprints(config, data, places)
    os.mkfifo(cohorts)
    with pytest.raises(DataError, match=r"cohorts\.json: .*is a FIFO, expected a file"):
        fingerprints(config, data, places)


class Lazy:
    """Inputs that stay in a file."""

    dtype, workers = torch.float32, 1

    def __init__(self, rows):
        self._rows, self.shape = rows, tuple(rows.shape)

    def read(self, rows):
        return self._rows[rows]


X, Y = torch.arange(8.0).reshape(4, 2), torch.tensor([0, 1, 0, 1])


def made(**changes):
    given = {
        "train": Examples(X, Y), "test": Examples(X[:1], Y[:1]),
        "natural": [np.array([0, 1]), np.array([2, 3])], "classes": 2,
        "loss": "cross_entropy", "transform": cast, **changes,
    }  # fmt: skip
    return Dataset(**given)


def test_a_digest_is_that_of_all_examples_and_their_clients():
    plain = digest(made())
    assert digest(made()) == plain
    assert digest(made(train=Examples(Lazy(X), Y))) == plain
    assert digest(made(train=Examples(X.t().contiguous().t(), Y))) == plain  # as it lies in memory
    others = [
        {"train": Examples(X + 1, Y)},
        {"train": Examples(X, Y.flip(0))},
        {"train": Examples(X.to(torch.bfloat16), Y)},
        {"train": Examples(Lazy(X + 1), Y), "test": None},
        {"train": Examples(X.reshape(4, 2, 1), Y)},
        {"test": None},
        {"test": Examples(X[1:2], Y[:1])},
        {"natural": None},
        {"natural": [np.array([0, 1, 2]), np.array([3])]},
        {"natural": RowRanges(np.array([0, 3]), np.array([3, 1]))},
        {"natural_tests": [np.array([0]), np.array([], dtype=np.int64)]},
        {"classes": 3},
        {"origin": "another"},
    ]
    assert len({plain, *(digest(made(**other)) for other in others)}) == len(others) + 1


def test_more_examples_than_are_read_at_a_time():
    x, y = torch.arange(10_000.0).view(-1, 1), torch.arange(10_000)
    plain = digest(made(train=Examples(x, y)))
    assert digest(made(train=Examples(Lazy(x), y))) == plain
    x[9_999] = 0
    assert digest(made(train=Examples(x, y))) != plain
