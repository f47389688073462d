"""Tiny ImageNet: the official folder, or one rearranged by class, as one mapped file."""

import errno
import fcntl
import os
import tarfile
import zipfile
from hashlib import md5
from shutil import rmtree

import h5py
import pytest
import torch

from hpcfl.data import image_listing
from hpcfl.data.download import PublishedFile, quiet
from hpcfl.data.sources import tiny_imagenet
from hpcfl.data.sources.tiny_imagenet import TinyImageNet
from hpcfl.errors import DataError, DiskError
from tests import image_layouts
from tests.image_layouts import WNIDS, colour
from tests.long_form import long_form
from tests.real_data import real


def source(root, **keys):
    return TinyImageNet(root=str(root), **{"subset": True, **keys})


def shows(inputs, numbers):
    means = inputs.float().mean(dim=(1, 2))
    return torch.allclose(means, torch.tensor([colour(k) for k in numbers]).float(), atol=3)


@pytest.fixture
def root(tmp_path):
    return image_layouts.tiny_imagenet(tmp_path)


def check(dataset, side=64):
    train, test = dataset.train, dataset.test
    assert train.inputs.shape == (12, side, side, 3)
    assert train.inputs.dtype == torch.uint8
    assert shows(train.inputs, [10 * c + k for c in range(3) for k in range(4)])
    assert train.labels.tolist() == [c for c in range(3) for _ in range(4)]
    assert sorted(test.labels.tolist()) == [0, 1, 2]
    assert shows(test.inputs, [100 + 10 * c for c in test.labels.tolist()])
    assert dataset.classes == 3
    assert dataset.natural is None
    assert dataset.personal is None


def test_reads_the_official_folder(root):
    config = source(root)
    assert config.prepare(quiet) == root / "tiny_imagenet.h5"
    check(config.load(0))
    assert config.load(0).test.labels.tolist() == [2, 1, 0]  # as val_annotations.txt has them
    assert [path.name for path in root.glob("tiny_imagenet*")] == ["tiny_imagenet.h5"]
    with h5py.File(root / "tiny_imagenet.h5") as file:
        assert list(file["wnids"].asstr()) == sorted(WNIDS)


def test_reads_a_folder_that_was_sorted_by_class(tmp_path):
    folder = image_layouts.tiny_imagenet(tmp_path, side=32) / "tiny-imagenet-200"
    for c, wnid in enumerate(sorted(WNIDS)):
        (folder / "val" / wnid).mkdir()
        (folder / f"val/images/val_{c}.JPEG").rename(folder / f"val/{wnid}/val_{c}.JPEG")
        for path in list((folder / "train" / wnid / "images").iterdir()):
            path.rename(folder / "train" / wnid / path.name)
        (folder / "train" / wnid / "images").rmdir()
    (folder / "val/val_annotations.txt").unlink()
    config = source(folder)
    config.prepare(quiet)
    check(config.load(0), side=32)


def test_unpacks_the_archive_that_owners_publish(root, tmp_path, monkeypatch):
    empty = tmp_path / "empty"
    empty.mkdir()
    archive = empty / "tiny-imagenet-200.zip"
    with zipfile.ZipFile(archive, "w") as file:
        for path in sorted((root / "tiny-imagenet-200").rglob("*")):
            file.write(path, path.relative_to(root))
        file.writestr("tiny-imagenet-200/val/images/../../../../escaped.JPEG", b"evil")
        file.writestr("stray.txt", b"evil")
    content = archive.read_bytes()
    whole = PublishedFile(archive.name, "", md5(content, usedforsecurity=False).hexdigest())
    monkeypatch.setattr(tiny_imagenet, "ARCHIVE", whole)
    config = source(empty)
    for damaged in (b"", b"text", content[:-100], content[:100] + b"!!!" + content[103:]):
        archive.write_bytes(damaged)
        with pytest.raises(DataError, match=r"zip: its md5 is .* remove it and fetch it again"):
            config.prepare(quiet)
    archive.write_bytes(content)
    config.prepare(quiet)
    check(config.load(0))
    kept = {path.suffix for path in (empty / "tiny-imagenet-200").rglob("*") if path.is_file()}
    assert kept == {".JPEG", ".txt"}
    assert {path.name for path in empty.iterdir()} == {
        "tiny-imagenet-200", "tiny-imagenet-200.zip", "tiny_imagenet.h5"
    }  # fmt: skip
    assert [p.name for p in empty.rglob("*.txt")] == ["val_annotations.txt"]
    assert not (tmp_path / "escaped.JPEG").exists()


def test_a_damaged_archive_is_told_in_one_line(tmp_path, refused, monkeypatch):
    archive = PublishedFile("tiny-imagenet-200.zip", "")
    monkeypatch.setattr(tiny_imagenet, "ARCHIVE", archive)
    (tmp_path / archive.name).write_bytes(b"PK no zip")
    said = refused("data", "prepare", "tiny_imagenet", "--root", tmp_path)
    assert said.startswith(f"DataError: {tmp_path}/tiny-imagenet-200.zip: cannot be unpacked: ")


def test_lists_what_is_missing_or_damaged_or_of_another_size(root):
    folder = root / "tiny-imagenet-200"
    first, second = sorted(WNIDS)[:2]
    path = folder / f"train/{first}/images/{first}_2.JPEG"
    path.write_bytes(path.read_bytes()[:-100])
    image_layouts.image(folder / f"train/{second}/images/{second}_0.JPEG", 10, (32, 32))
    (folder / "val/images/val_1.JPEG").unlink()
    with pytest.raises(DataError, match=r"3 of 15 images .* put them right$"):
        source(root).prepare(quiet)
    lines = (root / "tiny_imagenet.missing.txt").read_text().splitlines()
    assert lines[0].startswith(f"train/{first}/images/{first}_2.JPEG: ")
    assert lines[1].endswith(f"{second}_0.JPEG: its size is (32, 32), that of others (64, 64)")
    assert lines[2].startswith("val_annotations.txt:2: val/images/val_1.JPEG: No such file")
    assert not (root / "tiny_imagenet.h5").exists()


def test_an_unknown_class_names_its_line(root):
    path = root / "tiny-imagenet-200/val/val_annotations.txt"
    path.write_text(path.read_text().replace(WNIDS[0], "n99999999"))
    with pytest.raises(DataError, match=r"val_annotations\.txt:2: class 'n99999999' has no folder"):
        source(root).prepare(quiet)


def test_published_counts_are_checked(root):
    said = "3 classes, 12 training and 3 validation images, expected 200, 100000 and 10000"
    with pytest.raises(DataError, match=said):
        source(root, subset=False).prepare(quiet)
    source(root).prepare(quiet)
    with pytest.raises(DataError, match=said):
        source(root, subset=False).load(0)


def test_a_job_without_the_packed_file_is_told_the_command(tmp_path):
    with pytest.raises(DataError, match=rf"data prepare tiny_imagenet --root {tmp_path}$"):
        TinyImageNet(root=str(tmp_path)).load(0)


def test_a_damaged_file_is_refused(root):
    path = source(root).prepare(quiet)
    with h5py.File(path, "r+") as file:
        file["train/labels"][7] = 3
    with pytest.raises(DataError, match="row 7 of train/labels is class 3, expected 0 to 2"):
        source(root).load(0)
    whole = path.read_bytes()
    path.write_bytes(whole[:-20000])
    with pytest.raises(DataError, match=r"tiny_imagenet\.h5: "):
        source(root).load(0)


def test_other_sources_are_not_taken_for_the_same(root):
    config = source(root)
    config.prepare(quiet)
    config.prepare(quiet)
    first = root / f"tiny-imagenet-200/train/{WNIDS[0]}/images/{WNIDS[0]}_1.JPEG"
    image_layouts.image(first, 50, (64, 64))
    os.utime(first, (1, 1))
    with pytest.raises(DataError, match=r"imagenet\.h5: made from other files: remove it and prep"):
        config.prepare(quiet)
    check(config.load(0))
    rmtree(root / "tiny-imagenet-200")
    assert config.prepare(quiet) == config.packed


def test_it_is_mapped_and_read_without_a_lock(root):
    config = source(root)
    with config.prepare(quiet).open("r+b") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert config.load(0).mapped


@long_form
def test_real_images(tmp_path):
    """200 classes of 50 + 10 images of 32x32."""
    with tarfile.open(real("tiny_imagenet32_subset.tar.xz")) as archive:
        safely = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}  # since 3.11.4
        archive.extractall(tmp_path, **safely)  # noqa: S202
    config = source(tmp_path)
    config.prepare(quiet)
    dataset = config.load(0)
    assert dataset.train.inputs.shape == (10_000, 32, 32, 3)
    assert dataset.test.inputs.shape == (2_000, 32, 32, 3)
    assert dataset.train.labels.bincount().tolist() == [50] * 200
    assert dataset.test.labels.bincount().tolist() == [10] * 200
    mean = dataset.train.inputs.float().mean(dim=(0, 1, 2)) / 255
    assert torch.allclose(mean, torch.tensor([0.48, 0.45, 0.40]), atol=0.02)


def test_a_disk_that_fails_is_no_damaged_image(root, monkeypatch):
    def refuse(path):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(image_listing, "read", refuse)
    with pytest.raises(DiskError, match=r"\.JPEG: Input/output error$"):
        source(root).prepare(quiet)
    assert not list(root.glob("*.missing.txt"))
