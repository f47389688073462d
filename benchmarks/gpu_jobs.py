"""Jobs of random examples for rounds on a GPU, in the shapes of the published ones."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from hpcfl.data.sources.shakespeare import ALPHABET, WINDOW
from peers import BenchWork
from round import write_images

STATES = "lenet_fedhbm"  # clients keep states, as they do not in the rounds of lenet
WORKS = {
    "lenet": BenchWork(100, 500, 10, 64, 0.01),
    "resnet20": BenchWork(100, 500, 10, 64, 0.01),
    "char_lstm": BenchWork(100, 500, 10, 100, 1.0),
    "cnn": BenchWork(1000, 50, 50, 10, 0.1),  # pfl's own benchmark
    "linear": BenchWork(1000, 20, 50, 10, 0.1),
    STATES: BenchWork(100, 500, 10, 64, 0.01),
}
REHEARSAL = BenchWork(3, 2, 2, 2, 0.01)
IMAGES = ("cnn", "lenet", "resnet20")  # which pfl runs, too


class Subject(NamedTuple):
    """A model in a precision."""

    model: str
    precision: str

    def __str__(self) -> str:
        return f"{self.model}, {self.precision}"


def random_job(root: Path, subject: Subject, work: BenchWork, device: str) -> dict[str, Any]:
    """A job of random examples, which this writes."""
    count = work.users * work.samples
    common = {
        "cohort": {"kind": "uniform", "size": work.cohort},
        "algorithm": {"name": "fedhbm" if subject.model == STATES else "fedavg"},
        "local": {"epochs": 1, "batch_size": work.batch, "lr": work.rate},
        "weights": "uniform",
        "device": device,
        "precision": subject.precision,
        "rounds": 1000,
    }
    if subject.model in (*IMAGES, STATES):
        write_images(root, count)
        data = {"root": str(root), "clients": work.users, "augment": False}
        return {"task": f"cifar10-{subject.model.removesuffix('_fedhbm')}", "data": data, **common}
    if subject.model == "char_lstm":
        _write_texts(root, work)
        data = {"kind": "leaf", "examples": "text", "root": str(root)}
    else:
        draw = np.random.default_rng(0)
        x, number = draw.standard_normal((count, 64), np.float32), np.arange(count)
        np.savez(root / "table.npz", x=x, y=number % 10, client=number % work.users)
        data = {"kind": "arrays", "path": str(root / "table.npz")}
    return {"data": data, "model": {"name": subject.model}, **common}


def _write_texts(root: Path, work: BenchWork) -> None:
    """Write random texts in LEAF's layout: windows of 80 characters, and the next ones."""
    draw, letters = np.random.default_rng(0), np.array(list(ALPHABET))
    for part, users, samples in (("train", work.users, work.samples), ("test", 1, 1)):
        texts: Mapping[str, Any] = {
            f"u{user:04d}": {
                "x": ["".join(row) for row in letters[draw.integers(80, size=(samples, WINDOW))]],
                "y": letters[draw.integers(80, size=samples)].tolist(),
            }
            for user in range(users)
        }
        content = {"users": list(texts), "num_samples": [samples] * users, "user_data": texts}
        (root / part).mkdir()
        (root / part / "texts.json").write_text(json.dumps(content))
