"""Data sets of a few examples in their published layouts, one maker for each kind."""

import csv

import h5py
import numpy as np

from hpcfl.cli.main import main
from tests import image_layouts

CLIENTS = 3
EXAMPLES = 6  # training examples, at least: two a client
VOCABULARY = 5


def cifar10(root, per_file=2):
    _images(root / "cifar10.npz", 5 * per_file)


def cifar100(root):
    _images(root / "cifar100.npz", EXAMPLES)


def _images(path, count):
    """An .npz: the official pickles are refused unless they are the publisher's."""
    random = np.random.default_rng(0)
    arrays = {}
    for part, n in (("train", count), ("test", 2)):
        arrays[f"x_{part}"] = random.integers(0, 256, (n, 32, 32, 3), dtype=np.uint8)
        arrays[f"y_{part}"] = random.integers(0, 10, n)
    np.savez(path, **arrays)


def shakespeare(root):
    line = b"Speak the speech, I pray you, as I pronounced it to you, trippingly on the tongue: but"
    for part in ("train", "test"):
        with h5py.File(root / f"shakespeare_{part}.h5", "w") as file:
            for role in range(CLIENTS):
                file[f"examples/ROLE_{role}/snippets"] = [line[role:], b"if you mouth it"]


def concrete(root):
    rows = np.random.default_rng(0).standard_normal((EXAMPLES, 9))
    with (root / "Concrete_Data.csv").open("w", newline="") as file:
        csv.writer(file).writerows([[f"column {k}" for k in range(9)], *rows.tolist()])


def emnist(root):
    folder = root / "EMNIST" / "raw"
    folder.mkdir(parents=True)
    for part, count in (("train", EXAMPLES), ("test", 2)):
        _idx_pair(folder / f"emnist-balanced-{part}", count, classes=47)


def mnist(root):
    folder = root / "MNIST" / "raw"
    folder.mkdir(parents=True)
    for part, count in (("train", EXAMPLES), ("t10k", 2)):
        _idx_pair(folder / part, count, classes=10)


def _idx_pair(stem, count, classes):
    """The two IDX files of images and of labels whose names begin so."""
    random = np.random.default_rng(0)
    for what, shape in (("images-idx3", (count, 28, 28)), ("labels-idx1", (count,))):
        head = bytes([0, 0, 8, len(shape)]) + np.array(shape, dtype=">u4").tobytes()
        body = random.integers(0, classes, shape, dtype=np.uint8).tobytes()
        stem.with_name(f"{stem.name}-{what}-ubyte").write_bytes(head + body)


def tiny_imagenet(root):
    image_layouts.tiny_imagenet(root)
    _prepare("tiny_imagenet", root, "subset=true")


def landmarks(root):
    image_layouts.landmarks(root)
    _prepare("landmarks", root, "subset=true", "size=32", "margin=4")


def inaturalist(root):
    image_layouts.inaturalist(root)
    _prepare("inaturalist", root, "subset=true", "size=32", "margin=4")


def image_folder(root):
    image_layouts.image_folder(root)
    _prepare("image_folder", root, "size=32", "margin=4")


def stackoverflow(root):
    words = [f"word{k}" for k in range(VOCABULARY)]
    counts = (f"{word} {100 - k}\n" for k, word in enumerate(words))
    (root / "stackoverflow.word_count").write_text("".join(counts))
    for part in ("train", "test"):
        with h5py.File(root / f"stackoverflow_{part}.h5", "w") as file:
            for user in range(CLIENTS):
                file[f"examples/{user}/tokens"] = [" ".join(words[user:]).encode(), b"word1 ?"]
    _prepare("stackoverflow", root, "subset=true", f"vocabulary={VOCABULARY}", "test_examples=null")


def _prepare(kind, root, *keys):
    assert main(["data", "prepare", kind, *keys, "--root", str(root)]) == 0


def tff(root):
    layouts = {
        "emnist": ("pixels", np.ones((2, 28, 28), dtype=np.float32), 62),
        "cifar100": ("image", np.full((2, 32, 32, 3), 200, dtype=np.uint8), 100),
    }
    for name, (inputs, images, classes) in layouts.items():
        for part in ("train", "test"):
            with h5py.File(root / f"fed_{name}_{part}.h5", "w") as file:
                for client in range(CLIENTS):
                    file[f"examples/client{client}/{inputs}"] = images
                    file[f"examples/client{client}/label"] = np.arange(2) + classes - 2


def nothing(root):
    """For data that is in no file."""


MAKERS = {
    "emnist": emnist,
    "mnist": mnist,
    "image_folder": image_folder,
    "inaturalist": inaturalist,
    "landmarks": landmarks,
    "stackoverflow": stackoverflow,
    "tiny_imagenet": tiny_imagenet,
    "cifar10": cifar10,
    "cifar100": cifar100,
    "concrete": concrete,
    "digits": nothing,
    "quadratics": nothing,
    "shakespeare": shakespeare,
    "tff": tff,
}
SMALLER = {
    "min_examples": 2,
    "max_examples": 2,
    "max_test_examples": 1,
    "test_examples": 2,
    "vocabulary": VOCABULARY,
    "size": 32,
    "margin": 4,
}
"""What a job may say of its data, cut to the size of a miniature."""
SUBSETS = ("inaturalist", "landmarks", "stackoverflow", "tiny_imagenet")
"""Data with published numbers, which is told that it has others."""
