"""Small files of every kind that hpcfl reads: what is damaged, and what reads it.

A case writes its files into an empty folder and returns the path of one of them and its reader.
"""

import io
import json
import tarfile

import h5py
import numpy as np
import torch
from PIL import Image
from safetensors.torch import save_file
from torch import nn

from hpcfl.clients.sampling import Replay
from hpcfl.data import encoded_images
from hpcfl.data.archives import Archive, provide_members
from hpcfl.data.download import quiet
from hpcfl.data.partition import File
from hpcfl.data.photographs import grouped
from hpcfl.data.sources.arrays import Arrays
from hpcfl.data.sources.concrete import Concrete
from hpcfl.data.sources.emnist import Emnist
from hpcfl.data.sources.image_folder import ImageFolder
from hpcfl.data.sources.leaf import Leaf
from hpcfl.data.sources.shakespeare import Shakespeare
from hpcfl.data.sources.table import Table
from hpcfl.data.sources.tff import Tff
from hpcfl.data.split import partition_examples
from hpcfl.data.tables import class_of, read_table
from hpcfl.data.vocabulary import Vocabulary
from hpcfl.errors import DataError
from hpcfl.models.init import load_initial
from hpcfl.store.segment import Segment
from hpcfl.store.segment_file import create
from tests import image_layouts
from tests.data import (
    test_emnist,
    test_leaf,
    test_shakespeare,
    test_tff,
)
from tests.data import test_stackoverflow as so
from tests.store.conftest import SCHEMA


def arrays(root):
    x, y = np.arange(24.0).reshape(8, 3), np.arange(8) % 4
    np.savez(root / "a.npz", x=x, y=y, client=y, x_test=x[:2], y_test=y[:2])
    return root / "a.npz", Arrays(path=str(root / "a.npz")).load


def packed_arrays(root):
    path, load = arrays(root)
    with np.load(path) as file:
        held = dict(file)
    np.savez_compressed(path, **held)
    return path, load


def split(root):
    path = root / "split.npy"
    np.save(path, np.arange(8) % 4)
    _, load = arrays(root)
    config = Arrays(path=str(root / "a.npz"), partition=File(path=str(path)))
    return path, lambda seed: partition_examples(config, load(seed), seed).rows


def idx(root):
    folder = test_emnist.write_raw(root, "letters")
    return folder / "emnist-letters-test-labels-idx1-ubyte", Emnist(
        root=str(root), split="letters"
    ).load


def packed_idx(root):
    folder = test_emnist.write_raw(root, "letters", packed=True)
    return folder / "emnist-letters-test-labels-idx1-ubyte.gz", Emnist(
        root=str(root), split="letters"
    ).load


def leaf(root):
    x, y = [[0.5, 1.0], [2.5, 0.0]], [0, 3]
    for part in ("train", "test"):
        test_leaf.write(root, part, "a.json", {"u": (x, y), "v": (x[:1], y[:1])})
    return root / "train" / "a.json", Leaf(root=str(root), examples="vectors").load


def packed_leaf(root):
    leaf(root)
    config = Leaf(root=str(root), examples="vectors")
    return config.prepare(quiet), config.load


def concrete(root):
    rows = [[k * j % 11 + 1 for j in range(1, 10)] for k in (1, 2, 4)]
    lines = ["a,b,c,d,e,f,g,h,i", *(",".join(map(str, row)) for row in rows)]
    (root / "Concrete_Data.csv").write_text("\n".join(lines))
    return root / "Concrete_Data.csv", Concrete(root=str(root)).load


def table(root):
    path = root / "t.csv"
    path.write_text("user,image,class\n9,a,1\n10,b,0\n10,c,2\n")

    def read(seed):
        rows = [(row.values[0], row) for row in read_table(path, ("user", "class"))]
        for _, row in rows:
            class_of(row, row.values[1], 3)
        return grouped(rows)

    return path, read


def own_table(root):
    path = root / "own.csv"
    path.write_text("a,b,y,who\n" + "".join(f"{k},{k / 3},c{k % 2},w{k % 3}\n" for k in range(6)))
    return path, Table(path=str(path), label="y", client="who").load


def words(root):
    path = root / "counts.txt"
    path.write_text(so.COUNTS)
    return path, lambda seed: Vocabulary.read(path, 3)


def _picture(root, form):
    path = root / f"a.{form}"
    noise = np.random.default_rng(0).integers(0, 256, (24, 20, 3), np.uint8)
    Image.fromarray(noise).save(path)

    def read(seed):
        try:
            encoded_images.pixels(path.read_bytes(), 16)
            encoded_images.shrunk(path.read_bytes(), 8)
        except encoded_images.DAMAGED as error:
            raise DataError(encoded_images.reason(error)) from error

    return path, read


def jpeg(root):
    return _picture(root, "jpg")


def png(root):
    return _picture(root, "png")


def tiff(root):
    return _picture(root, "tif")


def webp(root):
    return _picture(root, "webp")


def _archive(root, name):
    path, out = root / name, root / "out"
    with tarfile.open(path, f"w:{path.suffix[1:]}") as tar:
        for member in ("box/a", "box/b"):
            info = tarfile.TarInfo(member)
            info.size = 300
            tar.addfile(info, io.BytesIO(bytes(range(100)) * 3))
    archive = Archive(name=name, url="file:///absent", members={"box/a": "out"})

    def read(seed):
        out.unlink(missing_ok=True)
        provide_members(root, archive, quiet)

    return path, read


def tar_gz(root):
    return _archive(root, "a.tar.gz")


def tar_bz2(root):
    return _archive(root, "a.tar.bz2")


def replay(root):
    path = root / "r.json"
    path.write_text(json.dumps([[0, 3], [1, 2], []]))

    def read(seed):
        cohort = Replay(path=str(path))
        cohort.check(4, 3)
        return [cohort.draw(t, 4, seed) for t in range(3)]

    return path, read


def _weights(root, name, save):
    model, path = nn.Linear(3, 2), root / name
    save(model, path)
    return path, lambda seed: load_initial(model, path)


def safetensors(root):
    return _weights(root, "w.safetensors", lambda model, path: save_file(model.state_dict(), path))


def pth(root):
    return _weights(root, "w.pth", lambda model, path: torch.save(model.state_dict(), path))


def old_pth(root):
    def save(model, path):
        torch.save(model.state_dict(), path, _use_new_zipfile_serialization=False)

    return _weights(root, "w.pth", save)


def npy(root):
    return _weights(root, "w.npy", lambda model, path: np.save(path, np.arange(8.0)))


PICTURES = [jpeg, png, tiff, webp]  # read here, from their bytes
PLAIN = [
    *(arrays, packed_arrays, split, idx, packed_idx, leaf, packed_leaf, concrete, table),
    own_table,
    *(words, *PICTURES, tar_gz, tar_bz2, replay, safetensors),
    *(pth, old_pth, npy),
]


def shakespeare(root):
    test_shakespeare.write(root, "train", test_shakespeare.TRAIN)
    test_shakespeare.write(root, "test", test_shakespeare.TEST)
    return root / "shakespeare_train.h5", Shakespeare(root=str(root)).load


def _tff(root, dataset):
    test_tff.write_emnist(root)
    test_tff.write_cifar100(root)
    name = {"emnist": "fed_emnist", "cifar100": "fed_cifar100"}[dataset]
    return root / f"{name}_train.h5", Tff(root=str(root), dataset=dataset).load


def tff_emnist(root):
    return _tff(root, "emnist")


def tff_cifar100(root):
    """Packed and in pieces, as TFF publishes it."""
    path, load = _tff(root, "cifar100")
    with h5py.File(path, "r+") as file:
        for client in file["examples"].values():
            image = client["image"][()]
            del client["image"]
            client.create_dataset("image", data=image, chunks=(1, 32, 32, 3), compression="gzip")
    return path, load


def _stackoverflow(root):
    for part, users in (("train", so.TRAIN), ("test", so.TEST)):
        so.write(root, part, users)
    (root / "stackoverflow.word_count").write_text(so.COUNTS)
    return root / "stackoverflow_train.h5", so.config(root)


def stackoverflow(root):
    """The publisher's file, which is read once."""
    path, config = _stackoverflow(root)

    def read(seed):
        config.prepared.unlink(missing_ok=True)
        config.prepared.with_name(config.prepared.name + ".part").unlink(missing_ok=True)
        return config.prepare(quiet)

    return path, read


def tokens(root):
    """The prepared file."""
    _, config = _stackoverflow(root)
    return config.prepare(quiet), _every_row(config)


def photos(root):
    """A packed file."""
    image_layouts.image_folder(root)
    config = ImageFolder(root=str(root), size=24, margin=4, workers=1)
    return config.prepare(quiet), _every_row(config)


def _every_row(config):
    def read(seed):
        data = config.load(seed)
        rows = np.concatenate([np.asarray(own) for own in data.natural])
        stored = data.train.inputs
        inputs = stored[rows] if isinstance(stored, torch.Tensor) else stored.read(rows)
        data.transform(inputs, torch.float32, None)

    return read


def segment(root):
    path = root / "a-r0000-s0000.h5"
    create(path, SCHEMA, 4)

    def read(seed):
        found = Segment.open(path, SCHEMA, "r")
        try:
            found.read(found.rows - 1)
        finally:
            found.close()

    return path, read


HDF5 = [shakespeare, tff_emnist, tff_cifar100, stackoverflow, tokens, photos, segment]
