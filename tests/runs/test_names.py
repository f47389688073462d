"""All that runs, copies, records and sweeps make in their directories is in the table of names."""

import re
import stat

import numpy as np
import pytest
import torch
from torch import nn

import hpcfl as api
from hpcfl.comm import secret
from hpcfl.io import heartbeat
from hpcfl.runs.names import NAMES
from hpcfl.store.segment import NAME as SEGMENT
from hpcfl.tools.callbacks.mlflow import Mlflow
from hpcfl.tools.callbacks.wandb import Wandb
from hpcfl.user_code.names import KEPT, is_kept_name

pytestmark = pytest.mark.usefixtures("own_process")

WORDS = {
    "ROUND": r"\d{8}",
    "RANK": r"\d{4,}",
    "SESSION": heartbeat._SESSION.pattern,
    "SEGMENT": SEGMENT.pattern,
    "DIGEST": r"\w+-[0-9a-f-]+\.\w+",
    "EVENTS": r"events\.out\.tfevents\..*",
    "POINT": r"seed\d",
    "SECRET": "[0-9a-f]{32}",
}


def pattern(name):
    """A name in the table as a regular expression."""
    return re.sub("|".join(WORDS), lambda word: WORDS[word[0]], re.escape(name))


def seen(folder, kind, found):
    """Add (kind of directory, name in the table) of all below a folder; one that is not fails."""
    for path in folder.iterdir():
        name = path.name.removesuffix(".part")
        (known,) = [known for known in NAMES[kind] if re.fullmatch(pattern(known), name)]
        assert stat.S_IFMT(path.lstat().st_mode) == NAMES[kind][known], path
        found.add((kind, known))
        below = "run" if known == "POINT" else f"{kind}/{known}"
        if path.is_dir() and below in NAMES:
            seen(path, below, found)


class Look(api.Callback):
    """Looks at the directory of a run that is alive."""

    def __init__(self, run, found):
        self.run, self.found = run, found

    def round(self, record, model):
        seen(self.run, "run", self.found)


@pytest.mark.usefixtures("forked_python")
def test_all_that_is_made_is_in_the_table(tmp_path, hpcfl, monkeypatch):
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    random, found = np.random.default_rng(0), set()
    x, y = torch.tensor(random.standard_normal((40, 3))).float(), torch.arange(40) % 4
    np.savez("data.npz", x=x, y=y, x_test=x, y_test=y)
    job = {
        "data": {"kind": "arrays", "path": "data.npz", "clients": 4},
        "cohort": {"kind": "uniform", "size": 2},
        "algorithm": {"name": "localghb"},
        "local": {"steps": 1, "batch_size": 4, "lr": 0.1},
        "rounds": 3,
        "evaluate": {"every": 1, "clients": "table", "best": True},
        "checkpoint": {"every": 1},
        "callbacks": ["tensorboard"],
    }
    run, branch = tmp_path / "run", tmp_path / "branch"
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    api.run(job, model=model, out=run, callbacks=[Look(run, found)])
    api.resume(run, ["local.lr=0.2", "rounds=4"], out=branch, callbacks=[Look(branch, found)])
    with secret.offered(secret.draw(), run):
        seen(run, "run", found)
    assert all(map(is_kept_name, (path.name for path in (run / KEPT).iterdir())))
    assert hpcfl("export", branch, "--record", "record").code == 0
    seen(tmp_path / "record", "record", found)

    (tmp_path / "job.yaml").write_text(
        "data: {kind: arrays, path: data.npz, clients: 4}\n"
        "model: {name: linear}\ncohort: {kind: uniform, size: 2}\nalgorithm: {name: fedavg}\n"
        "local: {steps: 1, batch_size: 4, lr: 0.1}\nrounds: 1\n"
    )
    (tmp_path / "s.yaml").write_text("job: job.yaml\ngrid: {seed: [0]}\n")
    assert hpcfl("sweep", "s.yaml", "--out", "runs").code == 0
    seen(tmp_path / "runs", "sweep", found)

    listed = {(kind, name) for kind, names in NAMES.items() for name in names}
    trackers = (f"{tracker.name}.json" for tracker in (Wandb, Mlflow))
    of_others = {("run", name) for name in (*trackers, "wandb", "mlruns")}
    assert of_others <= listed
    rare = {("run/ranks/SESSION", "report"), ("run/checkpoints/ROUND", "kept.safetensors")}
    beside = {place for place in listed if place[0] == "beside a run"}
    assert listed - found <= of_others | rare | beside | {("record", "code")}
