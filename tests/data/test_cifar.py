import os
import pickle
import re
from hashlib import md5

import numpy as np
import pytest
import torch

from hpcfl.data.sources.cifar10 import Cifar10
from hpcfl.data.sources.cifar100 import Cifar100
from hpcfl.errors import DataError, JobError
from hpcfl.job.load import load
from tests.real_data import cifar10
from tests.vision import torchvision

PIXELS = np.random.default_rng(0).integers(0, 256, (14, 3, 32, 32), dtype=np.uint8)
LABELS = np.arange(14) % 10


def listing(folder, layout):
    """The layout with the md5 of the files that are in the folder."""

    def sums(names):
        return {n: md5((folder / n).read_bytes(), usedforsecurity=False).hexdigest() for n in names}

    return layout._replace(train=sums(layout.train), test=sums(layout.test))


def write_batches(root):
    """The official layout: five training files of two images, one test file of four."""
    folder = root / "cifar-10-batches-py"
    folder.mkdir()
    names = [f"data_batch_{k}" for k in range(1, 6)] + ["test_batch"]
    for name, first, end in zip(names, range(0, 12, 2), [2, 4, 6, 8, 10, 14], strict=True):
        content = {
            b"batch_label": b"a batch",
            b"labels": [int(label) for label in LABELS[first:end]],
            b"data": PIXELS[first:end].reshape(-1, 3072),
            b"filenames": [b"a.png"] * (end - first),
        }
        (folder / name).write_bytes(pickle.dumps(content, protocol=2))
    return folder


def check(dataset):
    assert dataset.train.inputs.dtype == torch.uint8
    assert dataset.train.inputs.is_contiguous()
    stored = np.concatenate([dataset.train.inputs, dataset.test.inputs])
    assert np.array_equal(stored, PIXELS.transpose(0, 2, 3, 1))
    assert np.array_equal(np.concatenate([dataset.train.labels, dataset.test.labels]), LABELS)
    assert len(dataset.test.labels) == 4
    assert (dataset.classes, dataset.loss, dataset.natural) == (10, "cross_entropy", None)


@pytest.fixture
def official(tmp_path, monkeypatch):
    """The official folder, whose files are taken for the publisher's."""
    folder = write_batches(tmp_path)
    monkeypatch.setattr(Cifar10, "layout", listing(folder, Cifar10.layout))
    return folder


def test_the_official_folder(tmp_path, official):
    check(Cifar10(root=str(tmp_path)).load(0))


def test_a_pickle_as_python_2_wrote_it(tmp_path, official, monkeypatch):
    # What the official files hold: short byte strings, and numpy under its old names.
    pixels = PIXELS[:2].tobytes()
    head = (
        b"\x80\x02}(U\x06labels](K\x00K\x01eU\x04datacnumpy.core.multiarray\n_reconstruct\n"
        b"cnumpy\nndarray\nK\x00\x85U\x01b\x87R(K\x01K\x02M\x00\x0c\x86cnumpy\ndtype\nU\x02u1"
        b"K\x00K\x01\x87R(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89T"
    )
    (official / "data_batch_1").write_bytes(
        head + len(pixels).to_bytes(4, "little") + pixels + b"tbu."
    )
    monkeypatch.setattr(Cifar10, "layout", listing(official, Cifar10.layout))
    check(Cifar10(root=str(tmp_path)).load(0))


@pytest.mark.parametrize("layout", ["channels first", "channels last"])
def test_an_npz(tmp_path, layout):
    x = PIXELS if layout == "channels first" else PIXELS.transpose(0, 2, 3, 1)
    np.savez(
        tmp_path / "cifar10.npz",
        x_train=x[:10],
        y_train=LABELS[:10].astype(np.uint8),
        x_test=x[10:],
        y_test=LABELS[10:],
    )
    check(Cifar10(root=str(tmp_path)).load(0))


def test_cifar100_takes_the_fine_labels(tmp_path, monkeypatch):
    folder = tmp_path / "cifar-100-python"
    folder.mkdir()
    for name, rows in (("train", slice(0, 10)), ("test", slice(10, 14))):
        content = {
            b"coarse_labels": [0] * len(LABELS[rows]),
            b"fine_labels": (LABELS[rows] + 90).tolist(),
            b"data": PIXELS[rows].reshape(-1, 3072),
        }
        (folder / name).write_bytes(pickle.dumps(content, protocol=2))
    monkeypatch.setattr(Cifar100, "layout", listing(folder, Cifar100.layout))
    dataset = Cifar100(root=str(tmp_path)).load(0)
    assert dataset.classes == 100
    assert np.array_equal(dataset.train.labels, LABELS[:10] + 90)


@pytest.mark.parametrize("augment", [True, False])
def test_the_channels_are_normalised_as_the_job_says(tmp_path, official, augment):
    pixels = torch.from_numpy(PIXELS[:10]).double() / 255
    for given, mean, std in (
        ({}, (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
        ({"mean": (0.4, 0.5, 0.6)}, (0.4, 0.5, 0.6), (0.2470, 0.2435, 0.2616)),
        ({"std": (0.1, 0.2, 0.3)}, (0.4914, 0.4822, 0.4465), (0.1, 0.2, 0.3)),
    ):
        dataset = Cifar10(root=str(tmp_path), augment=augment, **given).load(0)
        inputs = dataset.transform(dataset.train.inputs, torch.float64, None)
        shift, scale = (torch.tensor(one, dtype=torch.float64).view(3, 1, 1) for one in (mean, std))
        torch.testing.assert_close(inputs, (pixels - shift) / scale)


def test_cifar100_has_numbers_of_its_own_unless_the_job_gives_them():
    assert (Cifar100().mean, Cifar100().std) == (
        (0.5071, 0.4865, 0.4409),
        (0.2673, 0.2564, 0.2762),
    )
    data = load("cifar10/fedhbm_noniid", ["task=cifar100-lenet"]).job.data
    assert isinstance(data, Cifar100)
    assert (data.mean, data.std) == ((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010))


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("std=[0.2, 0.2]", "std: found 2 numbers, expected 3: of red, green and blue"),
        ("mean=[1, 1, 1, 1]", "mean: found 4 numbers, expected 3: of red, green and blue"),
        ("std=[0.2, 0, 0.2]", "std.1: found 0, expected a number greater than 0"),
        ("std=[-0.2, 1, 1]", "std.0: found -0.2, expected a number greater than 0"),
        ("std=[.nan, 1, 1]", "std.0: found nan, expected a finite number"),
        ("mean=[1, 1, .inf]", "mean.2: found inf, expected a finite number"),
        ("mean=0.5", "mean: found 0.5, expected a list"),
    ],
)
def test_other_numbers_of_channels(setting, said):
    with pytest.raises(JobError, match=f"^command line: data.{re.escape(said)}$"):
        load("cifar10/fedhbm_noniid", [f"data.{setting}"])


class Hostile:
    def __reduce__(self):
        return os.mkdir, ("pwned",)


def test_only_the_published_files_are_unpickled(tmp_path, official, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = official / "data_batch_3"
    path.write_bytes(pickle.dumps({b"data": Hostile()}))
    with pytest.raises(DataError, match=f"{path}: its md5 is .*, the published is") as caught:
        Cifar10(root=str(tmp_path)).load(0)
    assert "\n" not in str(caught.value)
    monkeypatch.setattr(Cifar10, "layout", listing(official, Cifar10.layout))
    with pytest.raises(pickle.UnpicklingError, match=r"posix\.mkdir"):  # md5 can be forged
        Cifar10(root=str(tmp_path)).load(0)
    assert not (tmp_path / "pwned").exists()


def test_the_md5_of_the_official_files_are_torchvisions():
    datasets = torchvision().datasets
    for ours, theirs in ((Cifar10, datasets.CIFAR10), (Cifar100, datasets.CIFAR100)):
        assert [*ours.layout.train.items()] == [tuple(pair) for pair in theirs.train_list]
        assert [*ours.layout.test.items()] == [tuple(pair) for pair in theirs.test_list]
        assert (ours.layout.url, ours.layout.md5) == (theirs.url, theirs.tgz_md5)


def test_a_missing_file_and_a_missing_folder(tmp_path):
    with pytest.raises(
        DataError, match=r"neither cifar-10-batches-py/ nor cifar10\.npz; .*data prepare cifar10"
    ):
        Cifar10(root=str(tmp_path)).load(0)
    (tmp_path / "cifar-10-batches-py").mkdir()
    with pytest.raises(DataError, match="data_batch_1: cannot be read: No such file"):
        Cifar10(root=str(tmp_path)).load(0)


@pytest.mark.slow
def test_real_cifar10(request):
    dataset = Cifar10(root=str(cifar10(request.config))).load(0)
    assert dataset.train.inputs.shape == (50_000, 32, 32, 3)
    assert torch.equal(torch.bincount(dataset.train.labels), torch.full((10,), 5000))
    assert torch.equal(torch.bincount(dataset.test.labels), torch.full((10,), 1000))
    inputs = dataset.transform(dataset.train.inputs[::10], torch.float32, None)
    assert inputs.mean((0, 2, 3)).abs().max() < 0.02
    assert (inputs.std((0, 2, 3)) - 1).abs().max() < 0.02
