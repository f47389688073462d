import tarfile
import tempfile
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcfl.data.download import quiet
from hpcfl.data.sources import tff
from hpcfl.data.sources.tff import DATASETS, Tff
from hpcfl.data.split import keep_natural_clients
from hpcfl.errors import DataError, JobError

RANDOM = np.random.default_rng(0)
GREY = RANDOM.integers(0, 256, (9, 28, 28), np.uint8)
COLOUR = RANDOM.integers(0, 256, (9, 32, 32, 3), np.uint8)
OWNERS = {"train": {"f1": [0, 1, 2], "f0": [3]}, "test": {"f0": [4, 5], "f1": [6]}}


def write_emnist(root, name="fed_emnist"):
    """As TFF publishes it: float32 pixels and int32 labels."""
    for part, owners in OWNERS.items():
        with h5py.File(root / f"{name}_{part}.h5", "w") as file:
            for client, rows in owners.items():
                pixels = GREY[rows].astype(np.float32) / np.float32(255)
                file[f"examples/{client}/pixels"] = pixels
                file[f"examples/{client}/label"] = np.array(rows, np.int32)


def write_cifar100(root):
    for part, owners in OWNERS.items():
        with h5py.File(root / f"fed_cifar100_{part}.h5", "w") as file:
            for client, rows in owners.items():
                file[f"examples/{client}/image"] = COLOUR[rows]
                file[f"examples/{client}/coarse_label"] = np.array(rows) // 5
                file[f"examples/{client}/label"] = np.array(rows) + 90


@pytest.mark.parametrize("name", ["emnist", "emnist_digits"])
def test_emnist(tmp_path, name):
    write_emnist(tmp_path, DATASETS[name].name)
    dataset = Tff(root=str(tmp_path), dataset=name).load(0)
    assert dataset.train.inputs.dtype == torch.uint8
    assert np.array_equal(dataset.train.inputs, GREY[[3, 0, 1, 2]])  # in the order of names
    assert dataset.train.labels.tolist() == [3, 0, 1, 2]
    assert [rows.tolist() for rows in dataset.natural] == [[0], [1, 2, 3]]
    assert np.array_equal(dataset.test.inputs, GREY[4:7])
    assert dataset.test.labels.tolist() == [4, 5, 6]
    assert dataset.classes == DATASETS[name].classes
    inputs = dataset.transform(dataset.train.inputs, torch.float32, None)
    assert inputs.shape == (4, 1, 28, 28)
    assert np.array_equal(inputs[0, 0], GREY[3].astype(np.float32) / np.float32(255))
    flat = Tff(root=str(tmp_path), dataset=name, flat=True).load(0)
    assert flat.transform(flat.train.inputs, torch.float32, None).shape == (4, 784)


def test_the_tests_of_drawn_writers(tmp_path):
    """f0 is tested on images 4 and 5, f1 on 6."""
    write_emnist(tmp_path)
    config = Tff(root=str(tmp_path), natural_clients=1)
    whole = config.load(0)
    assert [rows.tolist() for rows in whole.natural_tests] == [[0, 1], [2]]
    found = {}
    for seed in range(4):
        drawn = keep_natural_clients(config, whole, seed)
        found[len(drawn.natural[0])] = drawn.test.labels.tolist()
    assert found == {1: [4, 5], 3: [6]}


def test_the_test_clients_of_cifar100_are_others(tmp_path):
    write_cifar100(tmp_path)
    config = Tff(root=str(tmp_path), dataset="cifar100", natural_clients=1)
    with pytest.raises(JobError, match="does not say whose its test examples are"):
        keep_natural_clients(config, config.load(0), 0)


def test_cifar100(tmp_path):
    write_cifar100(tmp_path)
    dataset = Tff(root=str(tmp_path), dataset="cifar100").load(0)
    assert np.array_equal(dataset.train.inputs, COLOUR[[3, 0, 1, 2]])
    assert dataset.train.labels.tolist() == [93, 90, 91, 92]
    assert dataset.classes == 100
    inputs = dataset.transform(dataset.train.inputs, torch.float32, None)
    assert inputs.shape == (4, 3, 32, 32)
    assert dataset.transform.augment
    assert not Tff(root=str(tmp_path), dataset="cifar100", augment=False).load(0).transform.augment


def test_a_run_of_it(tmp_path, hpcfl, job):
    write_emnist(tmp_path)
    done = hpcfl("run", job, f"data={{kind: tff, root: {tmp_path}}}", "--out", tmp_path / "run")
    assert done.code == 0, done.err


def test_settings_that_do_not_go_together(job, refused):
    line = refused("check", job, "data={kind: tff, dataset: cifar100, flat: true}")
    assert "flat is for emnist, but dataset is cifar100" in line
    line = refused("check", job, "data={kind: tff, dataset: shakespeare}")
    assert "found 'shakespeare', expected 'emnist', 'emnist_digits' or 'cifar100'" in line


def drop(name):
    return lambda file: file.pop(f"examples/{name}")


def replace(name, value):
    def act(file):
        file.pop(f"examples/{name}")
        file[f"examples/{name}"] = value

    return act


WRONG = [
    (drop("f1/label"), "expected 'label' in /examples/f1 of the file itself"),
    (drop("f1/pixels"), "expected 'pixels' in /examples/f1"),
    (replace("f1", [1.0]), "/examples/f1 is no group"),
    (replace("f1/pixels", GREY[:3, :27] / 255), r"pixels is float64 of shape \(3, 27, 28\)"),
    (replace("f1/pixels", b"text"), r"expected images of shape \('n', 28, 28\)"),
    (replace("f1/pixels", 1.5), r"pixels is float64 of shape \(\), expected images"),
    (replace("f1/pixels", GREY[:3] / 10), "client 'f1': pixels holds .* in row 0, expected k / 2"),
    (replace("f1/pixels", np.full((3, 28, 28), np.nan)), "pixels holds nan in row 0"),
    (replace("f1/label", [1, 2]), "client 'f1' has 3 images and 2 labels"),
    (replace("f1/label", [1, 62, 2]), "client 'f1': the label of row 1 is 62, expected 0 to 61"),
    (replace("f1/label", [0.5, 1, 2]), "expected integers of shape"),
    (replace("f1/label", h5py.Empty("i4")), "not a readable HDF5 file|expected integers"),
    (replace("f1", h5py.SoftLink("/examples/f0")), "expected 'f1' in /examples of the file itself"),
]


def empty(file):
    file.pop("examples")
    file.create_group("examples")


def nobody(file):
    replace("f1/label", np.zeros(0, int))(file)
    replace("f1/pixels", np.zeros((0, 28, 28)))(file)


@pytest.mark.parametrize(
    ("act", "message"),
    [*WRONG, (empty, "holds no client"), (nobody, "client 'f1' has 0 images and 0 labels")],
)
def test_wrong_files(tmp_path, act, message):
    write_emnist(tmp_path)
    with h5py.File(tmp_path / "fed_emnist_train.h5", "a") as file:
        act(file)
    with pytest.raises(DataError, match=message) as caught:
        Tff(root=str(tmp_path)).load(0)
    assert "fed_emnist_train.h5" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_missing_and_truncated_files(tmp_path):
    write_emnist(tmp_path)
    path = tmp_path / "fed_emnist_test.h5"
    whole = path.read_bytes()
    for content in (b"", b"text", whole[:600], whole[: len(whole) // 2]):
        path.write_bytes(content)
        with pytest.raises(DataError, match=r"fed_emnist_test\.h5: not a readable"):
            Tff(root=str(tmp_path)).load(0)
    path.unlink()
    with pytest.raises(DataError, match=r"fed_emnist_test\.h5: there is no such file"):
        Tff(root=str(tmp_path)).load(0)


SHAPES = st.lists(st.integers(0, 29), max_size=4).map(tuple) | st.just((3, 28, 28)) | st.just((3,))
TYPES = st.sampled_from(["u1", "i8", "u8", "f2", "f4", "f8", "c8", "?", "S3", "O"])


@settings(max_examples=50)
@given(st.sampled_from(["pixels", "label"]), SHAPES, TYPES, st.integers(-2, 300))
def test_any_dataset_ends_well(name, shape, dtype, value):
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        write_emnist(root)
        kind = h5py.string_dtype() if dtype == "O" else np.dtype(dtype)
        filled = (
            str(value) if dtype in ("O", "S3") else value % 256 if dtype == "u1" else abs(value)
        )
        with h5py.File(root / "fed_emnist_train.h5", "a") as file:
            replace(f"f1/{name}", np.full(shape, filled, dtype=kind))(file)
        try:
            dataset = Tff(root=folder).load(0)
        except DataError as error:
            assert "\n" not in str(error)
        else:
            assert len(dataset.train.labels) == 4


def test_prepare(tmp_path, served, monkeypatch):
    write_emnist(served.folder)
    with tarfile.open(served.folder / "fed_emnist.tar.bz2", "w:bz2") as tar:
        for part in OWNERS:
            tar.add(served.folder / f"fed_emnist_{part}.h5", f"fed_emnist_{part}.h5")
    monkeypatch.setattr(tff, "URL", served.url)
    mini = DATASETS["emnist"]._replace(sha256=None, clients=(2, 2), counts=(4, 3))
    monkeypatch.setitem(DATASETS, "emnist", mini)
    root = tmp_path / "root"
    assert Tff(root=str(root)).prepare(quiet) == root
    assert len(Tff(root=str(root)).load(0).natural) == 2
    Tff(root=str(tmp_path / "other"), download=True).fetch()
    assert len(Tff(root=str(tmp_path / "other")).load(0).natural) == 2
    monkeypatch.setitem(DATASETS, "emnist", mini._replace(clients=(3400, 3400)))
    with pytest.raises(DataError, match=r"train\.h5: found 2 clients, the published data has 3400"):
        Tff(root=str(root)).prepare(quiet)
    monkeypatch.setitem(DATASETS, "emnist", mini._replace(counts=(4, 4)))
    with pytest.raises(DataError, match=r"test\.h5: found 3 examples, the published data has 4"):
        Tff(root=str(root)).prepare(quiet)
