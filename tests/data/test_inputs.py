"""Every data set tells the files that it reads; a digest of each tells its content."""

import os
import shutil
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from threading import Event

import h5py
import numpy as np
import pytest
import torch

from hpcfl.cohort.sampling import Cyclic, Replay
from hpcfl.data import SOURCES, inputs
from hpcfl.data.base import DataConfig, Dataset
from hpcfl.data.download import quiet
from hpcfl.data.fingerprints import Fingerprints, InputNames
from hpcfl.data.inputs import InputFile
from hpcfl.data.partition import File
from hpcfl.data.sources.arrays import Arrays, cast
from hpcfl.data.sources.cifar10 import Cifar10
from hpcfl.data.sources.concrete import Concrete
from hpcfl.data.sources.digits import Digits
from hpcfl.data.sources.emnist import Emnist
from hpcfl.data.sources.huggingface import Huggingface
from hpcfl.data.sources.image_folder import ImageFolder
from hpcfl.data.sources.leaf import Leaf
from hpcfl.data.sources.mnist import Mnist
from hpcfl.data.sources.quadratics import Quadratics
from hpcfl.data.sources.shakespeare import Shakespeare
from hpcfl.data.sources.tff import Tff
from hpcfl.data.sources.tiny_imagenet import TinyImageNet
from hpcfl.errors import DataError
from hpcfl.types import Examples
from tests import image_layouts
from tests.data import (
    test_cifar,
    test_emnist,
    test_leaf,
    test_mnist,
    test_shakespeare,
    test_small,
    test_stackexchange,
    test_tff,
)

ALWAYS = Cyclic(size=1)


def arrays(root):
    np.savez(root / "own.npz", x=np.eye(4), y=np.arange(4))
    return Arrays(path=str(root / "own.npz"))


def cifar_folder(root):
    folder = test_cifar.write_batches(root)

    class Mini(Cifar10):
        layout = test_cifar.listing(folder, Cifar10.layout)

    return Mini(root=str(root))


def cifar_npz(root):
    x, y = test_cifar.PIXELS, test_cifar.LABELS
    np.savez(root / "cifar10.npz", x_train=x, y_train=y, x_test=x, y_test=y)
    return Cifar10(root=str(root))


def concrete(root):
    test_small.write_table(root, test_small.ROWS)
    return Concrete(root=str(root))


def emnist(root, packed=False):
    test_emnist.write_raw(root, "letters", packed)
    return Emnist(root=str(root), split="letters")


def emnist_packed(root):
    return emnist(root, packed=True)


def emnist_npz(root):
    test_emnist.write_npz(root, "letters")
    return Emnist(root=str(root), split="letters")


def mnist(root):
    test_mnist.write_raw(root, Mnist)
    return Mnist(root=str(root))


def leaf_json(root):
    for part in ("train", "test"):
        test_leaf.write(root, part, "a.json", {"u": test_leaf.images([0, 1])})
    test_leaf.write(root, "train", "b.json", {"v": test_leaf.images([2])})
    return Leaf(root=str(root))


def leaf_prepared(root):
    config = leaf_json(root)
    config.prepare(quiet)
    return config


def shakespeare(root):
    for name, roles in (
        ("train", test_shakespeare.TRAIN),
        ("test", test_shakespeare.TEST),
    ):
        test_shakespeare.write(root, name, roles)
    return Shakespeare(root=str(root))


def tff(root):
    test_tff.write_emnist(root)
    return Tff(root=str(root))


def photos(root):
    image_layouts.image_folder(root)
    config = ImageFolder(root=str(root), size=32, margin=4, workers=1)
    config.prepare(quiet)
    return config


def tiny_imagenet(root):
    image_layouts.tiny_imagenet(root)
    config = TinyImageNet(root=str(root), subset=True)
    config.prepare(quiet)
    return config


def sentences(root):
    test_stackexchange.write(root, test_stackexchange.POSTS)
    config = test_stackexchange.config(root)
    config.prepare(quiet)
    return config


def saved(root):
    datasets = pytest.importorskip("datasets", reason="datasets is absent")
    both = {"x": [[1.0], [2.0]], "label": [0, 1]}
    whole = datasets.DatasetDict(
        train=datasets.Dataset.from_dict(both), test=datasets.Dataset.from_dict(both)
    )
    whole.save_to_disk(root / "set")
    (root / "set/train/cache-0123.arrow").write_text("of a map that somebody tried")
    return Huggingface(path=str(root / "set"), inputs="x")


def parquet(root):
    datasets = pytest.importorskip("datasets", reason="datasets is absent")
    for name in ("train-00000-of-00002", "train-00001-of-00002", "test", "validation"):
        path = root / "set/data" / f"{name}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        datasets.Dataset.from_dict({"x": [[1.0], [2.0]], "label": [0, 1]}).to_parquet(path)
    return Huggingface(path=str(root / "set"), inputs="x")


def one_parquet(root):
    parquet(root)
    return Huggingface(path=str(root / "set/data/test.parquet"), inputs="x")


PREPARED = {photos: "train/bytes", tiny_imagenet: "train/images", sentences: "train/tokens"}
FILES = {
    arrays: 1, cifar_folder: 6, cifar_npz: 1, concrete: 1, emnist: 4, emnist_packed: 4,
    emnist_npz: 1, mnist: 4, leaf_json: 3, leaf_prepared: 1, shakespeare: 2, tff: 2, photos: 1,
    tiny_imagenet: 1, sentences: 1, saved: 7, parquet: 3, one_parquet: 1,
}  # fmt: skip


def content(dataset):
    """All examples, and who owns them."""
    found = []
    for examples in (dataset.train, dataset.test):
        if examples is not None:
            rows = np.arange(len(examples.labels))
            whole = isinstance(examples.inputs, torch.Tensor)
            given = examples.inputs if whole else examples.inputs.read(rows)
            found += [given.tolist(), examples.labels.tolist()]
    return found, [rows.tolist() for rows in dataset.natural or ()]


def digest(file):
    return file.digest(Event())


def fingerprints(config, cohort=ALWAYS):
    with Fingerprints(config, cohort, {}) as found:
        return found.of(config.load(0))


def moved(config, old, new):
    """The same data set below another folder."""
    key = "path" if hasattr(config, "path") else "root"
    return replace(config, **{key: getattr(config, key).replace(str(old), str(new))})


def other_or_refused(config, expected):
    """Whether the data set cannot be loaded, or is another one."""
    try:
        return content(config.load(0)) != expected
    except DataError:
        return True


@pytest.mark.parametrize("make", FILES, ids=lambda make: make.__name__)
def test_it_reads_the_files_that_it_tells_and_no_other(make, tmp_path):
    old, new = tmp_path / "old", tmp_path / "new"
    old.mkdir()
    config = make(old)
    expected = content(config.load(0))
    files = config.input_files()
    assert len({file.path for file in files}) == len(files) == FILES[make]
    assert [digest(file) for file in files] == [
        f"sha256:{sha256(file.path.read_bytes()).hexdigest()}" for file in files
    ]
    places = [new / file.path.relative_to(old) for file in files]
    for file, place in zip(files, places, strict=True):
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file.path, place)
    assert content(moved(config, old, new).load(0)) == expected
    for place in places:
        kept = place.read_bytes()
        place.unlink()
        assert other_or_refused(moved(config, old, new), expected)
        place.write_bytes(kept)


def test_all_data_sets_tell_theirs():
    assert all(source.input_files is not DataConfig.input_files for source in SOURCES.values())
    assert Quadratics().input_files() == ()
    (file,) = Digits().input_files()
    assert file.path.name == "digits.csv.gz"
    assert file.label == "scikit-learn: digits.csv.gz"  # wherever the environment is


def flip(path, at):
    with path.open("r+b") as file:
        file.seek(at)
        (byte,) = file.read(1)
        file.seek(at)
        file.write(bytes([byte ^ 1]))


@pytest.mark.parametrize("make", PREPARED, ids=lambda make: make.__name__)
def test_of_a_large_prepared_file_all_but_the_examples_is_read(make, tmp_path, monkeypatch):
    monkeypatch.setattr(inputs, "LARGE", 0)
    (file,) = make(tmp_path).input_files()
    before = digest(file)
    assert before.startswith("index-sha256:")
    assert digest(file) == before
    with h5py.File(file.path) as opened:
        skipped = opened[PREPARED[make]]
        inside, end = skipped.id.get_offset(), skipped.id.get_offset() + skipped.nbytes
        other = opened["train/offsets" if "offsets" in opened["train"] else "train/labels"]
        outside = other.id.get_offset()
    flip(file.path, inside)
    assert digest(file) == before
    flip(file.path, end - 1)
    assert digest(file) == before
    flip(file.path, outside)
    assert digest(file) != before
    flip(file.path, outside)
    assert digest(file) == before
    with file.path.open("ab") as opened:
        opened.write(b"x")
    assert digest(file) != before


@pytest.mark.parametrize("make", PREPARED, ids=lambda make: make.__name__)
def test_a_large_file_that_was_prepared_from_others_is_another(make, tmp_path, monkeypatch):
    monkeypatch.setattr(inputs, "LARGE", 0)
    config = make(tmp_path)
    (file,) = config.input_files()
    before = digest(file)
    file.path.unlink()
    config.prepare(quiet)
    assert digest(file) == before
    file.path.unlink()
    source = next(
        path for path in sorted(tmp_path.rglob("*")) if path.suffix in (".jpg", ".JPEG", ".jsonl")
    )
    os.utime(source, (2e9, 2e9))
    config.prepare(quiet)
    assert digest(file) != before


def test_a_prepared_file_of_another_layout_is_refused(tmp_path):
    path = tmp_path / "chunked.h5"
    with h5py.File(path, "w") as file:
        file.create_dataset("train/bytes", data=np.arange(100), chunks=(10,))
    with pytest.raises(DataError, match="train/bytes is not in one piece of the file"):
        inputs.extents(path, ["train/bytes"])
    assert inputs.extents(path, ["test/bytes"]) == []


def test_an_empty_part_of_a_large_prepared_file_lies_nowhere(tmp_path, monkeypatch):
    path = tmp_path / "packed.h5"
    with h5py.File(path, "w") as file:
        file.create_dataset("train/bytes", data=np.arange(100))
        file.create_dataset("test/bytes", shape=(0,), dtype=np.uint8)
    monkeypatch.setattr(inputs, "LARGE", 0)
    assert len(inputs.extents(path, ["train/bytes", "test/bytes"])) == 1
    assert digest(InputFile(path, skipped_datasets=("train/bytes", "test/bytes"))).startswith(
        "index-sha256:"
    )


def test_the_split_and_the_cohorts_have_files_too(tmp_path):
    config = arrays(tmp_path)
    split, cohorts = tmp_path / "split.npy", tmp_path / "cohorts.json"
    np.save(split, np.arange(4))
    cohorts.write_text("[[0]]")
    whole = replace(config, partition=File(path=str(split)))
    found = fingerprints(whole, Replay(path=str(cohorts)))
    assert list(found) == sorted(map(str, (cohorts, tmp_path / "own.npz", split)))
    assert found[str(cohorts)] == f"sha256:{sha256(b'[[0]]').hexdigest()}"
    assert list(fingerprints(config, Replay(rounds=((0,),)))) == [config.path]


def test_names_of_files():
    places = {"data.path": "/a/own.npz", "data.root": "/a"}
    names = InputNames(places)
    for path, name in (
        ("/a/own.npz", "data.path"),
        ("/a/train/0.json", "data.root/train/0.json"),
        ("/b/own.npz", "/b/own.npz"),
        ("/ab", "/ab"),
    ):
        assert names.of(InputFile(Path(path))) == name
        assert names.path(name) == path
    assert names.of(InputFile(Path("/a/x"), label="digits")) == "digits"
    assert names.path("digits") == "digits"


def test_a_file_that_changes_while_it_is_read_is_refused(tmp_path):
    config = arrays(tmp_path)
    with Fingerprints(config, ALWAYS, {}) as found:
        dataset = config.load(0)
        Path(config.path).write_bytes(b"another")
        with pytest.raises(DataError, match=r"own\.npz: changed while it was read; start again"):
            found.of(dataset)


def test_a_file_that_is_gone_is_refused(tmp_path):
    with pytest.raises(DataError, match=r"gone: cannot be read: No such file"):
        digest(InputFile(tmp_path / "gone"))


def test_nobody_waits_for_a_digest_that_is_not_wanted(tmp_path):
    """A load that fails says so at once: the digest stops before the first byte."""
    config = arrays(tmp_path)
    stopped = Event()
    stopped.set()
    (file,) = config.input_files()
    assert file.digest(stopped) == f"sha256:{sha256(b'').hexdigest()}"


class Lazy:
    """Inputs that stay in a file."""

    dtype, workers = torch.float32, 1

    def __init__(self, rows):
        self._rows, self.shape = rows, tuple(rows.shape)

    def read(self, rows):
        return self._rows[rows]


def unheard(**changes):
    """The fingerprint of data whose class does not tell its files."""
    x, y = torch.arange(8.0).reshape(4, 2), torch.tensor([0, 1, 0, 1])
    given = {
        "train": Examples(x, y), "test": Examples(x[:1], y[:1]),
        "natural": [np.array([0, 1]), np.array([2, 3])], "classes": 2,
        "loss": "cross_entropy", "transform": cast, **changes,
    }  # fmt: skip

    class Own(DataConfig):
        def load(self, seed):
            return Dataset(**given)

    (name, found), *rest = fingerprints(Own()).items()
    assert not rest
    assert name == "what Own loads"
    return found


def test_data_that_tell_no_files_have_a_digest_of_what_they_load():
    x, y = torch.arange(8.0).reshape(4, 2), torch.tensor([0, 1, 0, 1])
    assert unheard() == unheard()
    others = [
        {"train": Examples(x + 1, y)},
        {"train": Examples(x, y.flip(0))},
        {"train": Examples(x.to(torch.bfloat16), y)},
        {"train": Examples(Lazy(x + 1), y), "test": None},
        {"train": Examples(x.reshape(4, 2, 1), y)},
        {"test": None},
        {"test": Examples(x[1:2], y[:1])},
        {"natural": None},
        {"natural": [np.array([0, 1, 2]), np.array([3])]},
        {"classes": 3},
    ]
    assert unheard(train=Examples(Lazy(x), y)) == unheard()
    assert len({unheard(), *(unheard(**other) for other in others)}) == len(others) + 1
