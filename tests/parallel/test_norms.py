"""Deep models give the same bits on any number of ranks, their frozen statistics stay with them."""

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from hpcfl.models import MODELS
from tests.parallel.harness import play_all
from tests.parallel.outcome import outcome

JOB = {
    "cohort": {"kind": "uniform", "size": 2},
    "algorithm": {"name": "fedavg"},
    "local": {"batch_size": 3, "lr": 0.01},
    "rounds": 2,
    "evaluate": {"every": 1},
    "device": "cpu",
}
FEDHBM = {"name": "fedhbm", "first": "random"}
JOBS = {
    "resnet20-group": {"model": {"name": "resnet20"}},
    "mobilenet-frozen": {
        "model": {"name": "mobilenet_v2", "norm": "frozen"},
        "algorithm": FEDHBM,
    },
}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Twelve random images of 32x32, and weights of MobileNetV2 with random statistics."""
    folder = tmp_path_factory.mktemp("files")
    draw = np.random.default_rng(0)
    images = draw.standard_normal((12, 3, 32, 32), dtype=np.float32)
    labels = np.arange(12) % 4
    np.savez(folder / "data.npz", x=images, y=labels, x_test=images[:5], y_test=labels[:5])
    entries = MODELS["mobilenet_v2"](norm="frozen", init="x").build((3, 32, 32), 9).state_dict()
    for key, value in entries.items():
        if key.endswith("running_var"):
            value.copy_(torch.from_numpy(draw.uniform(0.5, 2, value.shape)))
    save_file(entries, folder / "weights.safetensors")
    return folder


def jobs(files):
    data = {"kind": "arrays", "path": str(files / "data.npz"), "clients": 4}
    made = {name: {**JOB, "data": data, **own} for name, own in JOBS.items()}
    frozen = made["mobilenet-frozen"]
    frozen["model"] = {**frozen["model"], "init": str(files / "weights.safetensors")}
    return made


def test_on_two_ranks_and_resumed_without_the_file_of_initial_weights(files, tmp_path):
    roots = {name: tmp_path / name for name in ("alone", "resumed")}
    for root in roots.values():
        root.mkdir()
    play_all(roots["alone"], jobs(files), 1)
    play_all(roots["resumed"], jobs(files), 2, stop=1, mpi=False)
    (files / "weights.safetensors").unlink()
    play_all(roots["resumed"], jobs(files), 1)
    for name in JOBS:
        whole = outcome(roots["alone"] / name)
        assert whole.round == 2
        assert outcome(roots["resumed"] / name) == whole, name
        kept = [root / name / "buffers.safetensors" for root in roots.values()]
        assert [path.exists() for path in kept] == 2 * ["frozen" in name]
    assert len({path.read_bytes() for path in kept}) == 1
