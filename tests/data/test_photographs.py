"""Landmarks, iNaturalist and folders of images: packed as published, read by client."""

import errno
import fcntl
import os
import pathlib
import re
import signal
import subprocess
import sys
import threading
import zipfile
from dataclasses import replace
from itertools import pairwise
from multiprocessing import active_children
from shutil import rmtree

import h5py
import numpy as np
import pytest
import torch
from PIL import Image

from hpcfl.data import image_listing, prepared_file
from hpcfl.data.base import Dataset
from hpcfl.data.download import quiet
from hpcfl.data.encoded_images import pixels
from hpcfl.data.packed import Packed
from hpcfl.data.prepared_file import stamp
from hpcfl.data.sources import inaturalist, landmarks
from hpcfl.data.sources.image_folder import ImageFolder
from hpcfl.data.sources.inaturalist import INaturalist
from hpcfl.data.sources.landmarks import Landmarks
from hpcfl.errors import DataError, DiskError
from tests import image_layouts
from tests.image_layouts import BY_CLIENT, TEST, TRAIN, colour, image_id, landmark

SIZES = {"size": 32, "margin": 4, "workers": 1}
SOURCES = {
    "landmarks": (Landmarks, {"subset": True}),
    "inaturalist": (INaturalist, {"subset": True}),
    "image_folder": (ImageFolder, {}),
}


def source(kind, root, **keys):
    cls, own = SOURCES[kind]
    return cls(root=str(root), **{**own, **SIZES, **keys})


@pytest.fixture
def made(tmp_path):
    """Make a miniature and pack it."""

    def make(kind, **keys):
        getattr(image_layouts, kind)(tmp_path)
        config = source(kind, tmp_path, **keys)
        config.prepare(quiet)
        return config

    return make


def shows(inputs, numbers):
    """Whether these are the images of these numbers."""
    means = inputs.float().mean(dim=(1, 2))
    return torch.allclose(means, torch.tensor([colour(k) for k in numbers]).float(), atol=3)


@pytest.mark.parametrize("kind", SOURCES)
def test_images_and_labels_stand_by_client(made, kind):
    dataset = made(kind).load(0)
    assert isinstance(dataset, Dataset)
    images, labels = dataset.train
    assert isinstance(images, Packed)
    assert images.shape == (len(TRAIN), 36, 36, 3)
    numbers = [k for own in sorted(BY_CLIENT.items(), key=lambda own: int(own[0])) for k in own[1]]
    if kind == "image_folder":  # within a client by class
        numbers = [k for own in BY_CLIENT.values() for k in sorted(own, key=lambda k: TRAIN[k][1])]
    assert shows(images.read(np.arange(len(TRAIN))), numbers)
    assert labels.tolist() == [TRAIN[k][1] for k in numbers]
    assert [rows.tolist() for rows in dataset.natural] == [[0, 1, 2], [3, 4, 5], [6, 7]]
    tested = [100 + k for k in range(len(TEST))]
    order = tested[::-1] if kind == "image_folder" else tested
    assert shows(dataset.test.inputs.read(np.arange(len(TEST))), order)
    assert dataset.test.labels.tolist() == [TEST[k - 100] for k in order]
    assert dataset.classes == {"landmarks": 2028, "inaturalist": 1203, "image_folder": 3}[kind]


def test_test_images_of_each_client(tmp_path):
    """Clients by number; who does not train has tests, but they are nobody's."""
    image_layouts.image_folder(tmp_path)
    rmtree(tmp_path / "test")
    for number, place in enumerate(["10/class2", "9/class0", "77/class1", "10/class0"]):
        image_layouts.image(tmp_path / f"test/{place}/{number}.png", 100 + number)
    (tmp_path / "test/31").mkdir()
    config = source("image_folder", tmp_path)
    config.prepare(quiet)
    dataset = config.load(0)
    assert [rows.tolist() for rows in dataset.natural_tests] == [[0], [1, 2], []]
    assert shows(dataset.test.inputs.read(np.arange(4)), [101, 103, 100, 102])
    assert dataset.test.labels.tolist() == [0, 0, 2, 1]


def test_a_client_without_training_images_owns_no_tests(tmp_path):
    """All images of client 9 are lost, and one of the test images of client 10."""
    image_layouts.image_folder(tmp_path)
    rmtree(tmp_path / "test")
    for number, place in enumerate(["10/class2", "9/class0", "10/class0"]):
        image_layouts.image(tmp_path / f"test/{place}/{number}.png", 100 + number)
    lost = [*(tmp_path / "train/9").glob("*/*.jpg"), tmp_path / "test/10/class0/2.png"]
    for path in lost:
        path.write_text("no image")
    config = source("image_folder", tmp_path, allow_missing=len(lost))
    config.prepare(quiet)
    dataset = config.load(0)
    assert [rows.tolist() for rows in dataset.natural_tests] == [[1], []]
    assert dataset.test.labels.tolist() == [0, 2]


def test_owners_of_test_images_are_checked(tmp_path):
    image_layouts.image_folder(tmp_path)
    rmtree(tmp_path / "test")
    image_layouts.image(tmp_path / "test/10/class2/0.png", 100)
    config = source("image_folder", tmp_path)
    path = config.prepare(quiet)
    with h5py.File(path, "r+") as file:
        file["test/clients"][0] = 3
    with pytest.raises(DataError, match="test/clients does not fit its images: the file is damag"):
        config.load(0)


def test_test_images_of_all_and_of_clients(tmp_path):
    image_layouts.image_folder(tmp_path)
    image_layouts.image(tmp_path / "test/10/class0/0.png", 100)
    with pytest.raises(DataError, match=r"test/class0: has images, but \S+test/10 has folders; ex"):
        source("image_folder", tmp_path).prepare(quiet)
    rmtree(tmp_path / "test")
    image_layouts.image(tmp_path / "test/10/class7/0.png", 100)
    with pytest.raises(
        DataError, match=r"test/10/class7: no client trains on a class of this name"
    ):
        source("image_folder", tmp_path).prepare(quiet)


def test_rows_may_be_read_in_any_order(made):
    images = made("landmarks").load(0).train.inputs
    whole = images.read(np.arange(8))
    assert torch.equal(images.read(np.array([5, 0, 5])), whole[[5, 0, 5]])
    assert whole.dtype == torch.uint8


def test_training_sees_crops_and_evaluation_the_middle(made):
    dataset = made("landmarks").load(0)
    stored = torch.randint(256, (6, 36, 36, 3), dtype=torch.uint8)
    plain = dataset.transform(stored, torch.float32, None)
    assert plain.shape == (6, 3, 32, 32)
    pixel = stored[:, 2:34, 2:34].permute(0, 3, 1, 2) / 255
    mean, std = (
        torch.tensor(v).view(3, 1, 1) for v in ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
    )
    assert torch.allclose(plain, (pixel - mean) / std, atol=1e-5)
    crops = dataset.transform(stored, torch.float32, torch.arange(6) * 7919)
    shifted = {
        (row, column, flip): torch.flip(window, [1]) if flip else window
        for row in range(5)
        for column in range(5)
        for flip in (False, True)
        for window in [stored[0, row : row + 32, column : column + 32]]
    }
    first = (crops[0] * std + mean).permute(1, 2, 0) * 255
    found = [
        at for at, window in shifted.items() if torch.allclose(first, window.float(), atol=0.01)
    ]
    assert len(found) == 1


def test_the_same_bytes_by_one_process_and_by_three(tmp_path, monkeypatch):
    monkeypatch.setattr("hpcfl.data.pack_images.CHUNK", 2)
    packed = []
    for workers in (1, 3):
        root = image_layouts.landmarks(tmp_path / str(workers))
        path = source("landmarks", root, workers=workers).prepare(quiet)
        packed.append(path.read_bytes())
        assert not path.with_name(path.name + ".part").exists()
    assert packed[0] == packed[1]


def test_large_images_are_shrunk_once_and_small_ones_kept(tmp_path):
    image_layouts.landmarks(tmp_path, size=(300, 200))
    image_layouts.image(landmark(tmp_path, 3), 3, (20, 16))
    path = source("landmarks", tmp_path).prepare(quiet)
    with h5py.File(path) as file:
        content, offsets = file["train/bytes"][()], file["train/offsets"][()]
        files = [content[a:b].tobytes() for a, b in pairwise(offsets)]
        assert file["train/names"].asstr()[1] == str(landmark(tmp_path, 3).relative_to(tmp_path))
    assert files[1] == landmark(tmp_path, 3).read_bytes()
    assert [pixels(each).shape for each in files] == [(36, 36, 3), (16, 20, 3), *[(36, 36, 3)] * 6]
    assert shows(source("landmarks", tmp_path).load(0).train.inputs.read(np.array([1])), [3])


def test_grey_images_and_palettes_become_colour(tmp_path):
    image_layouts.image_folder(tmp_path)
    Image.new("L", (50, 50), 90).save(tmp_path / "train/9/class0/3.jpg")
    Image.new("RGB", (50, 50), (255, 0, 0)).quantize(4).save(tmp_path / "train/9/class1/1.png")
    (tmp_path / "train/9/class1/1.jpg").unlink()
    config = source("image_folder", tmp_path)
    config.prepare(quiet)
    first, second = config.load(0).train.inputs.read(np.array([0, 1])).float().mean(dim=(1, 2))
    assert torch.allclose(first, torch.tensor([90.0, 90.0, 90.0]), atol=2)
    assert torch.allclose(second, torch.tensor([255.0, 0.0, 0.0]), atol=4)


def show(tmp_path, *made):
    """The pixel at the corner of these images, packed as PNGs of 20 x 20."""
    for k, image in enumerate(made):
        path = tmp_path / f"train/0/a/{k}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        image.save(path)
    config = source("image_folder", tmp_path, size=20, margin=0)
    config.prepare(quiet)
    return config.load(0).train.inputs.read(np.arange(len(made)))[:, 0, 0].tolist()


def test_what_is_transparent_is_laid_over_white(tmp_path):
    half = Image.new("RGBA", (20, 20), (200, 0, 100, 51))
    grey = Image.new("LA", (20, 20), (100, 0))
    palette = Image.new("P", (20, 20), 1)
    palette.putpalette([0, 0, 0, 7, 8, 9])
    clear = palette.copy()
    clear.info["transparency"] = 1
    opaque = Image.new("1", (20, 20), 0)
    found = show(tmp_path, half, grey, palette, clear, opaque)
    # 51 / 255 is a fifth of the colour and four of white.
    assert found == [[244, 204, 224], [255, 255, 255], [7, 8, 9], [255, 255, 255], [0, 0, 0]]
    (large := tmp_path / "large").mkdir()
    assert show(large, half.resize((50, 50)))[0] == pytest.approx([244, 204, 224], abs=3)


def test_inks_become_colours(tmp_path):
    path = tmp_path / "train/0/a/0.jpg"
    path.parent.mkdir(parents=True)
    Image.new("CMYK", (20, 20), (255, 0, 255, 0)).save(path, quality=100)
    config = source("image_folder", tmp_path, size=20, margin=0)
    config.prepare(quiet)
    assert config.load(0).train.inputs.read(np.array([0]))[0, 0, 0].tolist() == [0, 255, 0]


@pytest.mark.parametrize("side", [20, 50])
def test_images_of_sixteen_bits_are_listed(tmp_path, side):
    with pytest.raises(DataError, match=r"0\.png: its pixels are I;16, expected 8 bits a channel"):
        show(tmp_path, Image.fromarray(np.full((side, side), 1000, dtype=np.uint16)))


# What is missing or wrong.


@pytest.fixture
def spoilt(tmp_path):
    """Landmarks of which image 1 is absent, 7 cut off and 101 no image."""
    image_layouts.landmarks(tmp_path)
    landmark(tmp_path, 1).unlink()
    path = landmark(tmp_path, 7)
    path.write_bytes(path.read_bytes()[:-200])
    landmark(tmp_path, 101).write_text("<html>gone</html>")
    return tmp_path


def test_missing_and_damaged_images_are_listed(spoilt):
    with pytest.raises(DataError) as caught:
        source("landmarks", spoilt, workers=2).prepare(quiet)
    assert "3 of 11 images are missing or damaged" in str(caught.value)
    assert "allow_missing=3" in str(caught.value)
    lines = (spoilt / "landmarks-36.missing.txt").read_text().splitlines()
    train, test = (spoilt / "landmarks-user-160k" / n for n in ("federated_train.csv", "test.csv"))
    assert [line.partition(": ")[0] for line in lines] == [f"{train}:3", f"{train}:9", f"{test}:3"]
    for line, number, why in zip(
        lines, (1, 7, 101), ("No such", "runcated", "no JPEG, PNG"), strict=True
    ):
        assert str(landmark(spoilt, number).relative_to(spoilt)) in line
        assert why in line
    assert not (spoilt / "landmarks-36.h5").exists()


def test_a_damaged_image_whose_name_is_not_utf_8(tmp_path):
    image_layouts.image_folder(tmp_path)
    folder = next(path for path in tmp_path.glob("train/*/*") if path.is_dir())
    pathlib.Path(os.fsdecode(os.fsencode(folder) + b"/na\xefve.jpg")).write_text("no image")
    with pytest.raises(DataError, match=r"1 of \d+ images are missing or damaged"):
        source("image_folder", tmp_path).prepare(quiet)
    (listed,) = tmp_path.glob("*.missing.txt")
    assert b"na\xefve.jpg: " in listed.read_bytes()


def test_a_fifo_in_place_of_an_image_is_listed(tmp_path):
    image_layouts.landmarks(tmp_path)
    landmark(tmp_path, 3).unlink()
    os.mkfifo(landmark(tmp_path, 3))
    with pytest.raises(DataError, match=r"1 of 11 images .*: it is a FIFO, expected a file; put"):
        source("landmarks", tmp_path).prepare(quiet)


def test_goes_on_without_as_many_as_are_allowed(spoilt):
    with pytest.raises(DataError, match="3 of 11"):
        source("landmarks", spoilt, allow_missing=2).prepare(quiet)
    config = source("landmarks", spoilt, allow_missing=3)
    config.prepare(quiet)
    dataset = config.load(0)
    assert shows(dataset.train.inputs.read(np.arange(6)), [3, 4, 0, 2, 6, 5])
    assert [rows.tolist() for rows in dataset.natural] == [[0, 1], [2, 3, 4], [5]]
    assert dataset.test.labels.tolist() == [2, 0]
    assert len((spoilt / "landmarks-36.missing.txt").read_text().splitlines()) == 3


def test_images_that_were_put_right_are_taken_up(spoilt):
    with pytest.raises(DataError):
        source("landmarks", spoilt).prepare(quiet)
    for number in (1, 7, 101):
        image_layouts.image(landmark(spoilt, number), number)
    config = source("landmarks", spoilt)
    config.prepare(quiet)
    assert len(config.load(0).train.labels) == 8
    assert sorted(path.name for path in spoilt.glob("landmarks-36*")) == ["landmarks-36.h5"]


def test_a_client_without_any_image_is_left_out(tmp_path):
    image_layouts.landmarks(tmp_path)
    for number in (1, 3, 4):
        landmark(tmp_path, number).unlink()
    config = source("landmarks", tmp_path, allow_missing=3)
    with h5py.File(config.prepare(quiet)) as file:
        assert list(file["train/client_names"].asstr()) == ["10", "31"]
    assert [len(rows) for rows in config.load(0).natural] == [3, 2]


def test_an_inaturalist_image_that_lies_nowhere_is_listed(tmp_path):
    image_layouts.inaturalist(tmp_path)
    (tmp_path / f"test2017/{image_id(102)}.jpg").unlink()
    with pytest.raises(DataError, match=rf"iNaturalist_test\.csv:4: .*{image_id(102)}\.jpg"):
        source("inaturalist", tmp_path).prepare(quiet)


def edit(path, old, new):
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


@pytest.mark.parametrize(
    ("kind", "name", "old", "new", "said"),
    [
        (
            "landmarks",
            "landmarks-user-160k/federated_train.csv",
            "user_id,image_id,class",
            "user,image_id,class",
            "federated_train.csv: no column 'user_id'; its header is 'user,image_id,class'",
        ),
        (
            "inaturalist",
            "iNaturalist_train.csv",
            "user_120k",
            "user_id",
            "iNaturalist_train.csv: no column 'user_120k'; its header is 'geo_100,user_id,",
        ),
        (
            "landmarks",
            "landmarks-user-160k/test.csv",
            f"{image_id(101)},1",
            f"{image_id(101)},2028",
            "test.csv:3: class is '2028', expected 0 to 2027",
        ),
        (
            "inaturalist",
            "iNaturalist_train.csv",
            f"{image_id(1)},1",
            f"{image_id(1)},-1",
            "iNaturalist_train.csv:3: class is '-1', expected 0 to 1202",
        ),
        (
            "landmarks",
            "landmarks-user-160k/federated_train.csv",
            f"9,{image_id(1)},1",
            f"9,{image_id(1)}",
            "federated_train.csv:3: 2 values, the header has 3",
        ),
        (
            "landmarks",
            "landmarks-user-160k/federated_train.csv",
            image_id(1),
            "../../etc/passwd",
            "federated_train.csv:3: image_id is '../../etc/passwd', expected letters and digits",
        ),
        (
            "inaturalist",
            "iNaturalist_train.csv",
            image_id(1),
            "../../etc/passwd",
            "iNaturalist_train.csv:3: image_id is '../../etc/passwd', expected letters and digits",
        ),
        (
            "inaturalist",
            "iNaturalist_test.csv",
            image_id(100),
            "../x",
            "iNaturalist_test.csv:2: image_id is '../x', expected letters and digits",
        ),
    ],
)
def test_a_wrong_list_is_told_with_file_and_line(tmp_path, kind, name, old, new, said):
    root = getattr(image_layouts, kind)(tmp_path)
    edit(root / name, old, new)
    with pytest.raises(DataError) as caught:
        source(kind, root).prepare(quiet)
    assert said in str(caught.value)
    assert not list(root.glob("*.h5*"))


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("landmarks", "1262 clients, 164172 training images of 2028 classes, 19526 test images"),
        ("inaturalist", "9275 clients, 120300 training images of 1203 classes, 35641 test images"),
    ],
)
def test_published_counts_are_checked(made, tmp_path, kind, expected, monkeypatch):
    monkeypatch.setattr(inaturalist, "LISTS", [replace(f, md5=None) for f in inaturalist.LISTS])
    config = made(kind)
    found = "3 clients, 8 training images of 3 classes, 3 test images"
    with pytest.raises(DataError, match="8 training and 3 test images, expected " + expected):
        source(kind, tmp_path, subset=False).load(0)
    config.packed.unlink()
    with pytest.raises(DataError, match=f"hold {found}; expected {expected}"):
        source(kind, tmp_path, subset=False).prepare(quiet)


def test_a_folder_that_is_none_and_a_file_among_the_clients(tmp_path):
    with pytest.raises(DataError, match="expected a folder train of CLIENT/CLASS"):
        source("image_folder", tmp_path).prepare(quiet)
    image_layouts.image_folder(tmp_path)
    (tmp_path / "train/.DS_Store").write_text("")
    (tmp_path / "train/9/class1/notes.txt").write_text("")
    with pytest.raises(DataError, match=r"1 of 12 .* the first is train/9/class1/notes\.txt"):
        source("image_folder", tmp_path).prepare(quiet)
    (tmp_path / "train/README").write_text("")
    with pytest.raises(DataError, match="train/README: expected a folder"):
        source("image_folder", tmp_path).prepare(quiet)


def test_a_class_that_nobody_trains_on(tmp_path):
    image_layouts.image_folder(tmp_path)
    image_layouts.image(tmp_path / "test/class9/a.jpg", 3)
    with pytest.raises(DataError, match="test/class9: no client trains on a class of this name"):
        source("image_folder", tmp_path).prepare(quiet)
    (tmp_path / "train/9/class9").mkdir()
    assert source("image_folder", tmp_path).prepare(quiet).exists()


def test_a_job_without_the_packed_file_is_told_the_command(tmp_path):
    keys = {"augment": False, "subset": True, "images": "the index", "allow_missing": 5}
    with pytest.raises(DataError) as caught:
        source("landmarks", tmp_path, **keys).load(0)
    command = (
        f"hpcfl data prepare landmarks --root {tmp_path} size=32 margin=4 allow_missing=5 "
        "subset=true 'images=the index'"
    )
    assert str(caught.value).endswith(f"landmarks-36.h5: not found; make it once by: {command}")
    with pytest.raises(DataError, match=r"image_folder --root \S+$"):
        ImageFolder(root=str(tmp_path)).load(0)


def test_the_command_says_it_in_one_line(hpcfl, refused, spoilt):
    command = ("data", "prepare", "landmarks", "--root", spoilt)
    keys = ("subset=true", "size=32", "margin=4", "workers=1")
    line = refused(*command, *keys)
    assert line.startswith(f"DataError: {spoilt}/landmarks-36.h5: 3 of 11 images are missing or")
    assert "federated_train.csv:3: train/" in line
    done = hpcfl(*command, *keys, "allow_missing=3")
    said = (
        f"ready: {spoilt}/landmarks-36.h5: 3 clients, 6 training and 2 test examples, 2028 classes"
    )
    assert (done.code, done.out) == (0, [said])


def test_a_run_without_the_packed_file_is_refused(refused, tmp_path):
    job = tmp_path / "job.yaml"
    job.write_text(
        f"data: {{kind: inaturalist, root: {tmp_path}}}\n"
        "model: {name: linear}\n"
        "cohort: {kind: uniform, size: 2}\n"
        "algorithm: {name: fedavg}\n"
        "local: {lr: 0.1}\n"
        "rounds: 1\n"
    )
    line = refused("run", job, "--out", tmp_path / "run")
    assert line.endswith(f"make it once by: hpcfl data prepare inaturalist --root {tmp_path}")


@pytest.mark.parametrize(
    ("kind", "names"),
    [
        ("landmarks", ["landmarks-user-160k.zip"]),
        ("inaturalist", ["iNaturalist_train.csv", "iNaturalist_test.csv"]),
    ],
)
def test_without_internet_it_says_which_lists_belong_where(tmp_path, monkeypatch, kind, names):
    def offline(*arguments):
        raise OSError("no route to host")

    monkeypatch.setattr("hpcfl.data.download._download", offline)
    with pytest.raises(DataError, match="no route to host") as caught:
        source(kind, tmp_path).prepare(quiet)
    for name in names:
        assert f"{name} as {tmp_path}/{name}" in str(caught.value)


def test_lists_are_compared_with_the_owners_unless_they_are_a_subset(tmp_path):
    image_layouts.inaturalist(tmp_path)
    with pytest.raises(DataError, match=r"_train\.csv: its md5 is .*, the published is 63d"):
        source("inaturalist", tmp_path, subset=False).prepare(quiet)
    source("inaturalist", tmp_path).prepare(quiet)


@pytest.fixture
def archive(tmp_path, monkeypatch):
    """Landmarks whose lists are in an archive that lies there."""
    image_layouts.landmarks(tmp_path)
    path = tmp_path / landmarks.SPLIT.name
    with zipfile.ZipFile(path, "w") as bag:
        for name in ("federated_train.csv", "test.csv"):
            bag.write(tmp_path / "landmarks-user-160k" / name, f"landmarks-user-160k/{name}")
        bag.writestr("stray.txt", b"evil")
    rmtree(tmp_path / "landmarks-user-160k")
    monkeypatch.setattr(landmarks, "SPLIT", replace(landmarks.SPLIT, md5=None))
    return path


def test_the_lists_come_out_of_their_archive(archive, tmp_path):
    source("landmarks", tmp_path).prepare(quiet)
    assert not (tmp_path / "stray.txt").exists()


def test_a_damaged_archive_of_lists(archive, tmp_path, refused, monkeypatch):
    command = ("data", "prepare", "landmarks", "--root", tmp_path, "subset=true")
    archive.write_bytes(b"PK no zip")
    assert refused(*command).startswith(f"DataError: {archive}: cannot be unpacked: ")
    monkeypatch.undo()
    assert refused(*command).startswith(f"DataError: {archive}: its md5 is ")


@pytest.mark.parametrize(
    ("kind", "folders", "said"),
    [
        ("landmarks", ["train"], r"landmark/train/images_000\.tar to images_499.tar .* {}/train, "),
        (
            "inaturalist",
            ["train_val_images", "test2017"],
            r"unpack into {}: https://\S+/2017/train_val_images\.tar\.gz \(md5 7c78\w+\) to "
            r"train_val_images/, https://\S+/2017/test2017\.tar\.gz \(md5 7d9b\w+\) to test2017/$",
        ),
    ],
)
@pytest.mark.parametrize("empty", [True, False])
def test_without_images_it_says_which_archives_hold_them(tmp_path, kind, folders, said, empty):
    getattr(image_layouts, kind)(tmp_path)
    for folder in folders:
        rmtree(tmp_path / folder)
        if empty:
            (tmp_path / folder).mkdir()
    with pytest.raises(DataError, match="none of the images is there; ") as caught:
        source(kind, tmp_path).prepare(quiet)
    assert re.search(said.format(tmp_path), str(caught.value))
    assert "allow_missing" not in str(caught.value)


# A packed file that was damaged afterwards.


def test_a_damaged_image_names_its_row_and_file(made, tmp_path):
    config = made("landmarks")
    with h5py.File(config.packed, "r+") as file:
        begin, end = file["train/offsets"][4:6]
        file["train/bytes"][begin + 100 : end] = 0
    images = config.load(0).train.inputs
    assert images.read(np.array([3, 5])).shape == (2, 36, 36, 3)
    name = landmark(tmp_path, 2).relative_to(tmp_path)
    with pytest.raises(DataError, match=rf"landmarks-36\.h5: row 4 of train \({name}\) is damaged"):
        images.read(np.array([3, 4]))


@pytest.mark.parametrize(
    ("name", "row", "value", "said"),
    [
        ("train/labels", 5, 3000, "row 5 of train/labels is class 3000, expected 0 to 2027"),
        ("test/labels", 0, -1, "row 0 of test/labels is class -1"),
        ("train/offsets", 3, 0, "train/offsets does not ascend"),
        ("train/clients", 3, 99, "train/clients does not ascend from 0 to 8"),
    ],
)
def test_what_cannot_be_is_refused(made, name, row, value, said):
    config = made("landmarks")
    with h5py.File(config.packed, "r+") as file:
        file[name][row] = value
    with pytest.raises(DataError, match=said):
        config.load(0)


def test_a_file_cut_off_or_of_another_kind_is_refused(made):
    config = made("landmarks")
    whole = config.packed.read_bytes()
    config.packed.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DataError, match=r"not a readable HDF5 file|cut off"):
        config.load(0)
    config.packed.write_bytes(whole)
    with h5py.File(config.packed, "r+") as file:
        file.attrs["format"] = 0
    with pytest.raises(DataError, match="format 0, side 36; expected 3 and 36"):
        config.load(0)
    with h5py.File(config.packed, "r+") as file:
        file.attrs["format"] = 3
        labels = file["train/labels"][()]
        del file["train/labels"]
        file.create_dataset("train/labels", data=labels, chunks=(2,))
    with pytest.raises(DataError, match="train/labels is no contiguous int64 array of this file"):
        config.load(0)


# Interrupted.

KILLED = """
import os, signal, sys
from hpcfl.data import pack_images
from hpcfl.data.sources.landmarks import Landmarks

def track(items, what, total=None):
    for done, item in enumerate(items):
        yield item
        if done == 2:
            os.kill(os.getpid(), signal.SIGKILL)

if __name__ == "__main__":
    pack_images.CHUNK = 2
    config = Landmarks(root=sys.argv[1], subset=True, size=32, margin=4, workers=2)
    config.prepare(track)
"""


@pytest.mark.slow
def test_a_killed_call_leaves_nothing_that_looks_finished(tmp_path, monkeypatch):
    root = image_layouts.landmarks(tmp_path / "root")
    script = tmp_path / "killed.py"
    script.write_text(KILLED)
    # Returns when nobody holds its output any more: its processes end with it.
    done = subprocess.run(
        [sys.executable, script, root], capture_output=True, check=False, timeout=300
    )
    assert done.returncode == -signal.SIGKILL
    assert not (root / "landmarks-36.h5").exists()
    before = {path.name for path in root.iterdir()}
    path = source("landmarks", root).prepare(quiet)
    assert {path.name for path in root.iterdir()} == before | {"landmarks-36.h5"}
    fresh = image_layouts.landmarks(tmp_path / "fresh")
    assert path.read_bytes() == source("landmarks", fresh).prepare(quiet).read_bytes()


def test_a_finished_file_is_not_made_again(made):
    config = made("landmarks")
    before = config.packed.stat()
    config.prepare(quiet)
    assert config.packed.stat() == before


@pytest.mark.parametrize("kind", SOURCES)
def test_other_sources_are_not_taken_for_the_same(made, tmp_path, kind):
    config = made(kind)
    image = sorted(tmp_path.rglob("*.jpg"))[0]
    before = config.packed.read_bytes()
    for change in (lambda: os.utime(image, (1, 1)), image.unlink):
        change()
        with pytest.raises(DataError, match=r"-36\.h5: made from other files: remove it and prep"):
            config.prepare(quiet)
        assert config.packed.read_bytes() == before
        assert len(config.load(0).train.labels) == 8


def test_another_client_is_not_overlooked(made, tmp_path):
    config = made("image_folder")
    image_layouts.image(tmp_path / "train/32/class0/9.jpg", 9)
    with pytest.raises(DataError, match="made from other files"):
        config.prepare(quiet)
    config.packed.unlink()
    config.prepare(quiet)
    assert len(config.load(0).natural) == 4


@pytest.mark.parametrize("kind", SOURCES)
def test_a_packed_file_does_without_its_sources(made, tmp_path, kind):
    config = made(kind)
    for path in tmp_path.iterdir():
        if path != config.packed:
            rmtree(path) if path.is_dir() else path.unlink()
    assert config.prepare(quiet) == config.packed
    assert len(config.load(0).train.labels) == 8


def test_an_image_replaced_between_two_calls_is_read_again(tmp_path, monkeypatch):
    monkeypatch.setattr("hpcfl.data.pack_images.CHUNK", 2)
    root = image_layouts.landmarks(tmp_path)
    landmark(root, 7).unlink()
    with pytest.raises(DataError, match="1 of 11"):
        source("landmarks", root).prepare(quiet)
    image_layouts.image(landmark(root, 7), 7)
    image_layouts.image(landmark(root, 3), 40)
    os.utime(landmark(root, 3), (1, 1))
    config = source("landmarks", root)
    config.prepare(quiet)
    assert shows(config.load(0).train.inputs.read(np.array([1, 2])), [40, 4])


def test_a_locked_file_is_read(made):
    """As on file systems without locks: reading asks for none."""
    config = made("landmarks")
    with config.packed.open("r+b") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert len(config.load(0).train.labels) == 8


def never(chunk):
    """In the place of the work of a process."""
    threading.Event().wait()


def test_a_killed_process_is_told(tmp_path, monkeypatch):
    root = image_layouts.landmarks(tmp_path)

    def track(items, what, total=None):
        for process in active_children():
            process.kill()
            process.join()
        yield from items

    with monkeypatch.context() as patch:
        patch.setattr("hpcfl.data.pack_images._shrink", never)
        with pytest.raises(DataError, match="one of 2 processes was killed"):
            source("landmarks", root, workers=2).prepare(track)
    assert not (root / "landmarks-36.h5").exists()
    source("landmarks", root).prepare(quiet)


def failing(monkeypatch, owner, call, number, suffix=".jpg"):
    """Let this call of a path of an image fail so, and name no file where it reads."""
    whole = getattr(owner, call)

    def refuse(path, *arguments, **more):
        if path.suffix.lower() == suffix:
            raise OSError(number, os.strerror(number))
        return whole(path, *arguments, **more)

    monkeypatch.setattr(owner, call, refuse)


def test_a_disk_that_fails_is_no_damaged_image(tmp_path, monkeypatch):
    image_layouts.image_folder(tmp_path)
    failing(monkeypatch, image_listing, "read", errno.EIO)
    with pytest.raises(DiskError, match=r"\.jpg: Input/output error$"):
        source("image_folder", tmp_path).prepare(quiet)
    assert not list(tmp_path.glob("*.missing.txt"))


def test_an_image_that_may_not_be_read_is_listed(tmp_path, monkeypatch):
    image_layouts.image_folder(tmp_path)
    failing(monkeypatch, image_listing, "read", errno.EACCES)
    with pytest.raises(DataError, match=r"images are missing or damaged; .*Permission denied"):
        source("image_folder", tmp_path).prepare(quiet)


def test_a_disk_that_fails_is_no_other_file(tmp_path, monkeypatch):
    """Whether a packed file was made from the images cannot be told."""
    path = tmp_path / "image.jpg"
    failing(monkeypatch, pathlib.Path, "stat", errno.ENOENT)
    assert stamp(path) is None
    failing(monkeypatch, pathlib.Path, "stat", errno.EIO)
    with pytest.raises(DiskError, match="Input/output error"):
        stamp(path)


def test_a_full_disk_leaves_no_part_of_a_packed_file(tmp_path):
    path = tmp_path / "x.h5"
    with (
        pytest.raises(DiskError, match=r"x\.h5: cannot be made: No space left on device"),
        prepared_file.new_prepared_file(path, 0),
    ):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    assert list(tmp_path.iterdir()) == []
