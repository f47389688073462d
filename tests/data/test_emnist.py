import gzip
import zipfile

import numpy as np
import pytest
import torch

from hpcfl.data.download import quiet
from hpcfl.data.partition import Similarity
from hpcfl.data.sources import emnist
from hpcfl.data.sources.emnist import SPLITS, Emnist
from hpcfl.data.split import partition_examples
from hpcfl.errors import DataError
from tests.real_data import emnist_letters

RANDOM = np.random.default_rng(0)
COUNTS = {"train": 60, "test": 50}
UPRIGHT = {part: RANDOM.integers(0, 256, (n, 28, 28), np.uint8) for part, n in COUNTS.items()}


def labels(part, split):
    return np.arange(COUNTS[part]) % split.classes


def idx(array):
    """The bytes of an IDX file."""
    sizes = b"".join(int(n).to_bytes(4, "big") for n in array.shape)
    return bytes([0, 0, 8, array.ndim]) + sizes + array.tobytes()


def write_raw(root, name, packed=False):
    """The official files, whose images are transposed and whose letters count from 1."""
    folder = root / "EMNIST" / "raw"
    folder.mkdir(parents=True)
    split = SPLITS[name]
    for part, x in UPRIGHT.items():
        y = (labels(part, split) + split.first).astype(np.uint8)
        for kind, array in (("images-idx3", x.transpose(0, 2, 1)), ("labels-idx1", y)):
            path = folder / f"emnist-{name}-{part}-{kind}-ubyte"
            if packed:
                path.with_name(path.name + ".gz").write_bytes(gzip.compress(idx(array)))
            else:
                path.write_bytes(idx(array))
    return folder


def write_npz(root, name, first=0):
    split = SPLITS[name]
    arrays = {f"x_{part}": x for part, x in UPRIGHT.items()}
    arrays |= {f"y_{part}": (labels(part, split) + first).astype(np.uint8) for part in COUNTS}
    np.savez(root / f"emnist_{name}.npz", **arrays)


def check(dataset, name):
    split = SPLITS[name]
    for part, examples in (("train", dataset.train), ("test", dataset.test)):
        assert examples.inputs.dtype == torch.uint8
        assert examples.inputs.is_contiguous()
        assert np.array_equal(examples.inputs, UPRIGHT[part])
        assert np.array_equal(examples.labels, labels(part, split))
        assert examples.labels.dtype == torch.int64
    assert (dataset.classes, dataset.loss, dataset.natural) == (
        split.classes,
        "cross_entropy",
        None,
    )


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("name", SPLITS)
def test_the_official_files(tmp_path, name, packed):
    write_raw(tmp_path, name, packed)
    check(Emnist(root=str(tmp_path), split=name).load(0), name)


@pytest.mark.parametrize(("name", "first"), [("balanced", 0), ("letters", 0), ("letters", 1)])
def test_an_npz(tmp_path, name, first):
    write_npz(tmp_path, name, first)
    check(Emnist(root=str(tmp_path), split=name).load(0), name)


@pytest.mark.parametrize("name", SPLITS)
def test_the_last_class_of_a_split(tmp_path, name):
    """Labels one beyond it are refused; the numbers of classes are those of the paper's table."""
    known = {"balanced": 47, "byclass": 62, "bymerge": 47, "letters": 26, "digits": 10, "mnist": 10}
    assert SPLITS[name].classes == known[name]
    folder = write_raw(tmp_path, name)
    last = known[name] - 1 + SPLITS[name].first
    path = folder / f"emnist-{name}-train-labels-idx1-ubyte"
    path.write_bytes(idx(np.full(COUNTS["train"], last, np.uint8)))
    assert set(Emnist(root=str(tmp_path), split=name).load(0).train.labels.tolist()) == {
        known[name] - 1
    }
    path.write_bytes(idx(np.full(COUNTS["train"], last + 1, np.uint8)))
    with pytest.raises(DataError, match=f"the label of row 0 is {last + 1}, expected"):
        Emnist(root=str(tmp_path), split=name).load(0)


def test_values_lie_between_0_and_1(tmp_path):
    write_npz(tmp_path, "letters")
    dataset = Emnist(root=str(tmp_path), split="letters").load(0)
    images = dataset.transform(dataset.train.inputs[:5], torch.float64, None)
    assert images.shape == (5, 1, 28, 28)
    assert np.array_equal(images[:, 0], UPRIGHT["train"][:5] / 255)
    flat = Emnist(root=str(tmp_path), split="letters", flat=True).load(0)
    vectors = flat.transform(flat.train.inputs[:5], torch.float32, None)
    assert torch.equal(vectors, images.float().flatten(1))


def test_there_is_nothing(tmp_path):
    with pytest.raises(
        DataError, match=r"images-idx3-ubyte\[\.gz\] .* nor emnist_letters\.npz"
    ) as e:
        Emnist(root=str(tmp_path), split="letters").load(0)
    assert f"hpcfl data prepare emnist split=letters --root {tmp_path}" in str(e.value)


IMAGES = idx(UPRIGHT["train"])


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("images-idx3", b"", "not an IDX file of bytes in 3 dimensions"),
        ("images-idx3", b"\0\0\x0d\x03" + IMAGES[4:], "not an IDX file of bytes"),
        ("images-idx3", IMAGES[:-1], r"\(60, 28, 28\) and holds 47039"),
        ("images-idx3", IMAGES + b"!", "and holds 47041"),
        ("images-idx3", idx(np.zeros((60, 27, 28), np.uint8)), r"\(60, 27, 28\)"),
        ("images-idx3", b"\0\0\x08\x03" + b"\xff" * 12, "and holds 0; expected"),
        ("labels-idx1", idx(np.zeros(59, np.uint8)), "expected 60 integers"),
        ("labels-idx1", idx(np.zeros(60, np.uint8)), "label of row 0 is 0, expected 1 to 26"),
        ("labels-idx1", idx(np.arange(1, 61, dtype=np.uint8)), "label of row 26 is 27"),
    ],
)
@pytest.mark.parametrize("packed", [False, True])
def test_wrong_files(tmp_path, file, content, message, packed):
    path = write_raw(tmp_path, "letters", packed) / f"emnist-letters-train-{file}-ubyte"
    if packed:
        path, content = path.with_name(path.name + ".gz"), gzip.compress(content)
    path.write_bytes(content)
    with pytest.raises(DataError, match=message) as caught:
        Emnist(root=str(tmp_path), split="letters").load(0)
    assert f"emnist-letters-train-{file}-ubyte" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_cut_gz(tmp_path):
    path = write_raw(tmp_path, "letters", packed=True) / "emnist-letters-test-images-idx3-ubyte.gz"
    whole = path.read_bytes()
    for content in (b"", b"text", whole[:1000], whole[:50] + b"!!!" + whole[53:]):
        path.write_bytes(content)
        with pytest.raises(DataError, match=r"test-images-idx3-ubyte\.gz: not a"):
            Emnist(root=str(tmp_path), split="letters").load(0)


def test_an_npz_of_something_else(tmp_path):
    path = tmp_path / "emnist_letters.npz"
    y = np.zeros(3, int)
    np.savez(path, x_train=np.zeros((3, 28, 28)), y_train=y, x_test=y, y_test=y)
    with pytest.raises(DataError, match="x_train, y_train: images are float64"):
        Emnist(root=str(tmp_path), split="letters").load(0)
    x = np.zeros((3, 28, 28), np.uint8)
    np.savez(path, x_train=x, y_train=y - 1, x_test=x, y_test=y)
    with pytest.raises(DataError, match="row 0 is -1, expected 0 to 25"):
        Emnist(root=str(tmp_path), split="letters").load(0)
    np.savez(path, x_train=x, y_train=y + 26, x_test=x, y_test=y)
    with pytest.raises(
        DataError, match="x_train, y_train: the label of row 0 is 26, expected 0 to 25"
    ):
        Emnist(root=str(tmp_path), split="letters").load(0)


def test_an_npz_of_letters_that_lacks_some(tmp_path):
    """Of which the first or the last, in either split, tells from where its labels count."""
    path, x = tmp_path / "emnist_letters.npz", np.zeros((3, 28, 28), np.uint8)
    config = Emnist(root=str(tmp_path), split="letters")

    def read(train, test):
        np.savez(path, x_train=x, y_train=np.array(train), x_test=x, y_test=np.array(test))
        return [part.labels.tolist() for part in (config.load(0).train, config.load(0).test)]

    assert read([1, 25, 3], [26, 1, 2]) == [[0, 24, 2], [25, 0, 1]]
    assert read([1, 26, 3], [3, 1, 2]) == [[0, 25, 2], [2, 0, 1]]
    assert read([1, 25, 3], [0, 1, 2]) == [[1, 25, 3], [0, 1, 2]]
    with pytest.raises(DataError, match=r"letters\.npz: y_train and y_test hold neither 0 nor 26"):
        read([1, 25, 3], [1, 24, 2])


def test_prepare_takes_its_split_out_of_the_owners_archive(tmp_path, served, monkeypatch):
    raw = write_raw(tmp_path / "all", "letters", packed=True)
    write_raw(tmp_path / "other", "balanced", packed=True)
    with zipfile.ZipFile(served.folder / "gzip.zip", "w") as bag:
        for path in (*raw.iterdir(), *(tmp_path / "other/EMNIST/raw").iterdir()):
            bag.write(path, f"gzip/{path.name}")
    monkeypatch.setattr(emnist, "URL", f"{served.url}/gzip.zip")
    monkeypatch.setattr(emnist, "MD5", None)
    monkeypatch.setitem(SPLITS, "letters", SPLITS["letters"]._replace(counts=(60, 50)))
    root = tmp_path / "root"
    config = Emnist(root=str(root), split="letters")
    assert config.prepare(quiet) == root / "EMNIST" / "raw"
    assert {path.name for path in (root / "EMNIST/raw").iterdir()} == {
        "gzip.zip",
        *(path.name for path in raw.iterdir()),
    }
    check(config.load(0), "letters")
    Emnist(root=str(root), split="balanced", download=True).fetch()
    check(Emnist(root=str(root)).load(0), "balanced")
    with pytest.raises(DataError, match=r"found 60 training examples of balanced, .* has 112800"):
        Emnist(root=str(root)).prepare(quiet)


def test_prepare_counts_an_npz(tmp_path):
    write_npz(tmp_path, "letters")
    with pytest.raises(DataError, match=r"letters\.npz: found 60 training examples of letters"):
        Emnist(root=str(tmp_path), split="letters").prepare(quiet)


@pytest.fixture(scope="module")
def letters(request):
    """Their folder, and what is read from it, once for all partitions."""
    root = str(emnist_letters(request.config))
    config = Emnist(root=root, split="letters", clients=100)
    assert config.prepare(quiet).name == "emnist_letters.npz"
    return root, config.load(0)


@pytest.mark.slow
@pytest.mark.parametrize("clients", [100, 400])
@pytest.mark.parametrize("percent", [0.0, 10.0, 100.0])
def test_the_slides_partition_of_real_letters(letters, clients, percent):
    root, dataset = letters
    config = Emnist(
        root=root, split="letters", clients=clients, partition=Similarity(percent=percent)
    )
    assert torch.equal(torch.bincount(dataset.train.labels), torch.full((26,), 4800))
    assert torch.equal(torch.bincount(dataset.test.labels), torch.full((26,), 800))
    rows = partition_examples(config, dataset, 0).rows
    assert {len(own) for own in rows} == {124_800 // clients}
    assert np.array_equal(np.sort(np.concatenate(rows)), np.arange(124_800))
    counts = np.stack([np.bincount(dataset.train.labels[own], minlength=26) for own in rows])
    # What a client holds beside its two largest classes does not come from the sorted rest.
    beside = (counts.sum(1) - np.sort(counts, 1)[:, -2:].sum(1)).sum() / 124_800
    if percent == 100:
        assert (counts > 0).all()
    else:
        assert beside == pytest.approx(percent / 100 * 24 / 26, abs=0.01 if percent else 0)
