"""Data sets of a few examples in their owners' layouts, one maker for each kind."""

import csv
import pickle

import h5py
import numpy as np

CLIENTS = 3
EXAMPLES = 6  # training examples, at least: two a client


def cifar10(root):
    _pickles(root / "cifar-10-batches-py", [f"data_batch_{k}" for k in range(1, 6)], 2, b"labels")
    _pickles(root / "cifar-10-batches-py", ["test_batch"], 2, b"labels")


def cifar100(root):
    _pickles(root / "cifar-100-python", ["train"], EXAMPLES, b"fine_labels")
    _pickles(root / "cifar-100-python", ["test"], 2, b"fine_labels")


def _pickles(folder, names, count, labels):
    folder.mkdir(exist_ok=True)
    random = np.random.default_rng(0)
    for name in names:
        pixels = random.integers(0, 256, (count, 3072), dtype=np.uint8)
        content = {b"data": pixels, labels: random.integers(0, 10, count).tolist()}
        (folder / name).write_bytes(pickle.dumps(content, protocol=2))


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


def nothing(root):
    """For data that is in no file."""


MAKERS = {
    "cifar10": cifar10,
    "cifar100": cifar100,
    "concrete": concrete,
    "digits": nothing,
    "quadratics": nothing,
    "shakespeare": shakespeare,
}
SMALLER = {"min_examples": 2, "max_examples": 2, "max_test_examples": 1}
"""What a job may say of its data, cut to the size of a miniature."""
