"""MNIST and Fashion-MNIST: their official files, or an .npz."""

import gzip
from hashlib import md5

import numpy as np
import pytest
import torch

from hpcfl.data.download import quiet
from hpcfl.data.partition import Classes
from hpcfl.data.sources.cifar10 import Cifar10
from hpcfl.data.sources.fashion_mnist import FashionMnist
from hpcfl.data.sources.mnist import Mnist
from hpcfl.data.split import partition_examples
from hpcfl.errors import DataError
from tests.data.test_emnist import COUNTS, UPRIGHT, idx
from tests.real_data import mnist

BOTH = pytest.mark.parametrize("source", [Mnist, FashionMnist])
LABELS = {part: np.arange(count, dtype=np.uint8) % 10 for part, count in COUNTS.items()}
FILES = {
    "train-images-idx3-ubyte": UPRIGHT["train"],
    "train-labels-idx1-ubyte": LABELS["train"],
    "t10k-images-idx3-ubyte": UPRIGHT["test"],
    "t10k-labels-idx1-ubyte": LABELS["test"],
}


def write_raw(root, source, packed=False):
    """The official files."""
    folder = root / source.folder
    folder.mkdir(parents=True)
    for name, array in FILES.items():
        if packed:
            (folder / f"{name}.gz").write_bytes(gzip.compress(idx(array), mtime=0))
        else:
            (folder / name).write_bytes(idx(array))
    return folder


def write_npz(root, source, **changes):
    arrays = {f"x_{part}": x for part, x in UPRIGHT.items()}
    arrays |= {f"y_{part}": y for part, y in LABELS.items()}
    np.savez(root / f"{source.name}.npz", **(arrays | changes))


def check(dataset):
    for part, examples in (("train", dataset.train), ("test", dataset.test)):
        assert np.array_equal(examples.inputs, UPRIGHT[part])
        assert np.array_equal(examples.labels, LABELS[part])
        assert (examples.inputs.dtype, examples.labels.dtype) == (torch.uint8, torch.int64)
    assert (dataset.classes, dataset.loss, dataset.natural) == (10, "cross_entropy", None)


@BOTH
@pytest.mark.parametrize("packed", [False, True])
def test_the_official_files(tmp_path, source, packed):
    write_raw(tmp_path, source, packed)
    check(source(root=str(tmp_path)).load(0))


@BOTH
def test_an_npz(tmp_path, source):
    write_npz(tmp_path, source)
    check(source(root=str(tmp_path)).load(0))


@pytest.mark.parametrize(
    ("source", "mean", "std"), [(Mnist, 0.1307, 0.3081), (FashionMnist, 0.2860, 0.3530)]
)
def test_inputs_are_normalised(tmp_path, source, mean, std):
    write_npz(tmp_path, source)
    pixels = torch.from_numpy(UPRIGHT["train"]).double() / 255
    for flat, shape in ((False, (60, 1, 28, 28)), (True, (60, 784))):
        for normalize, wanted in ((True, (pixels - mean) / std), (False, pixels)):
            dataset = source(root=str(tmp_path), flat=flat, normalize=normalize).load(0)
            found = dataset.transform(dataset.train.inputs, torch.float64, None)
            assert torch.equal(found, wanted.view(shape))


@BOTH
def test_there_is_nothing(tmp_path, source):
    message = rf"{source.folder}/train-images-idx3-ubyte\[\.gz\] .* nor {source.name}\.npz; "
    with pytest.raises(DataError, match=message) as caught:
        source(root=str(tmp_path)).load(0)
    assert f"hpcfl data prepare {source.name} --root {tmp_path}" in str(caught.value)


@pytest.mark.parametrize(
    ("file", "array", "message"),
    [
        ("train-labels-idx1-ubyte", np.full(60, 10, np.uint8), "of row 0 is 10, expected 0 to 9"),
        ("t10k-labels-idx1-ubyte", np.zeros(49, np.uint8), "expected 50 integers"),
        ("t10k-images-idx3-ubyte", np.zeros((50, 27, 28), np.uint8), r"\(50, 27, 28\)"),
    ],
)
def test_wrong_files(tmp_path, file, array, message):
    (write_raw(tmp_path, Mnist) / file).write_bytes(idx(array))
    with pytest.raises(DataError, match=message):
        Mnist(root=str(tmp_path)).load(0)


def test_an_npz_of_something_else(tmp_path):
    write_npz(tmp_path, Mnist, x_train=np.zeros((60, 784)))
    with pytest.raises(DataError, match="x_train, y_train: images are float64"):
        Mnist(root=str(tmp_path)).load(0)
    write_npz(tmp_path, Mnist, y_test=LABELS["test"] + 1)
    with pytest.raises(DataError, match="x_test, y_test: the label of row 9 is 10, expected 0"):
        Mnist(root=str(tmp_path)).load(0)


@BOTH
def test_prepare_fetches_checks_and_counts(tmp_path, served, monkeypatch, source):
    folder = write_raw(tmp_path / "owners", source, packed=True)
    digests = []
    for name in FILES:
        content = (folder / f"{name}.gz").read_bytes()
        (served.folder / f"{name}.gz").write_bytes(content)
        digests.append(md5(content, usedforsecurity=False).hexdigest())
    monkeypatch.setattr(source, "url", served.url)
    root = tmp_path / "root"
    with pytest.raises(DataError, match=r"its md5 is .*, the published is") as caught:
        source(root=str(root)).prepare(quiet)
    assert "train-images-idx3-ubyte.gz" in str(caught.value)
    monkeypatch.setattr(source, "md5", tuple(digests))
    source(root=str(root), download=True).fetch()
    check(source(root=str(root)).load(0))
    assert {path.name for path in (root / source.folder).iterdir()} == {f"{n}.gz" for n in FILES}
    with pytest.raises(DataError, match="found 60 training examples, the published data has 60000"):
        source(root=str(root)).prepare(quiet)
    damaged = root / source.folder / "t10k-labels-idx1-ubyte.gz"
    damaged.write_bytes(gzip.compress(b"another"))
    with pytest.raises(DataError, match=r"t10k-labels-idx1-ubyte\.gz: its md5 is"):
        source(root=str(root)).prepare(quiet)


def test_prepare_says_what_to_put_where(tmp_path, monkeypatch, refused):
    monkeypatch.setattr(Mnist, "url", "http://127.0.0.1:9")
    line = refused("data", "prepare", "mnist", "--root", tmp_path)
    assert "put there by hand: http://127.0.0.1:9/train-images-idx3-ubyte.gz as " in line
    assert f"{tmp_path}/MNIST/raw/t10k-labels-idx1-ubyte.gz" in line


def test_a_job_does_not_download_unasked(tmp_path, monkeypatch):
    monkeypatch.setattr(Mnist, "url", "http://127.0.0.1:9")
    Mnist(root=str(tmp_path)).fetch()
    with pytest.raises(DataError, match="cannot be downloaded"):
        Mnist(root=str(tmp_path), download=True).fetch()
    write_raw(tmp_path, Mnist)
    Mnist(root=str(tmp_path), download=True).fetch()


@pytest.mark.parametrize("source", [Mnist, FashionMnist, Cifar10])
def test_nothing_is_downloaded_beside_an_npz(tmp_path, monkeypatch, source):
    """The official files would then be read in its place, and a run could not be resumed."""
    if source is Cifar10:
        monkeypatch.setattr(source, "layout", source.layout._replace(url="http://127.0.0.1:9/a"))
    else:
        monkeypatch.setattr(source, "url", "http://127.0.0.1:9")
    with pytest.raises(DataError, match="cannot be downloaded"):
        source(root=str(tmp_path), download=True).fetch()
    (tmp_path / f"{source(root='x').layout.name}.npz").touch()
    source(root=str(tmp_path), download=True).fetch()


@pytest.fixture(scope="module")
def digits(request):
    """The folder of MNIST, and what is read from it."""
    root = str(mnist(request.config))
    config = Mnist(root=root)
    assert config.prepare(quiet).name == "mnist.npz"
    return root, config.load(0)


@pytest.mark.slow
def test_the_real_digits_are_normalised(digits):
    _, dataset = digits
    total = torch.zeros(2, dtype=torch.float64)
    for images in dataset.train.inputs.split(10_000):
        inputs = dataset.transform(images, torch.float64, None)
        total += torch.stack([inputs.sum(), (inputs**2).sum()])
    mean, square = (total / dataset.train.inputs.numel()).tolist()
    assert mean == pytest.approx(0, abs=2e-4)
    assert square == pytest.approx(1, abs=2e-4)


@pytest.mark.slow
@pytest.mark.parametrize(("form", "most"), [("shards", 4), ("exact", 2)])
def test_two_classes_of_the_real_digits(digits, form, most):
    """McMahan et al.: 200 shards of 300, so two digits or, where a shard has two, up to four."""
    root, dataset = digits
    config = Mnist(root=root, clients=100, partition=Classes(per_client=2, form=form))
    rows = partition_examples(config, dataset, 0).rows
    assert np.array_equal(np.sort(np.concatenate(rows)), np.arange(60_000))
    held = [len(torch.unique(dataset.train.labels[own])) for own in rows]
    assert max(held) <= most
    assert np.median(held) == 2
    if form == "shards":
        assert {len(own) for own in rows} == {600}
    else:
        assert min(held) == 2
