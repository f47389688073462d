"""A split written to a file is the split itself."""

import csv
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from hpcfl import load_model
from hpcfl.data.split import partition_examples
from hpcfl.io.words import counted
from hpcfl.job.load import load
from hpcfl.start.components.build import build_components
from tests.real_data import cifar10, real

OWNED = '''\
"""Eight natural clients; the label of an example is its client."""

from dataclasses import dataclass

import numpy as np
import torch

from hpcfl.data.base import DataConfig, Dataset
from hpcfl.types import Examples


def plain(inputs, dtype, draws):
    return inputs.to(dtype)


@dataclass(frozen=True, kw_only=True)
class Owned(DataConfig):
    def load(self, seed):
        def examples(n):
            return Examples(torch.ones(n, 2), torch.arange(n) % 8)

        rows = [[np.arange(k, n, 8) for k in range(8)] for n in (40, 24)]
        return Dataset(
            train=examples(40), test=examples(24), natural=rows[0], natural_tests=rows[1],
            classes=8, loss="cross_entropy", transform=plain,
        )
'''
PUBLISHED = Path(__file__).parents[2] / "jobs/cifar10/fedavg_published_split.yaml"

OWNER = np.arange(40) % 5
PARTITIONS = {
    "iid": "{kind: iid}",
    "some": "{kind: iid, examples: 3}",
    "shards": "{kind: dirichlet, alpha: 0.0}",
    "dirichlet": "{kind: dirichlet, alpha: 0.5, seed: 3}",
    "similarity": "{kind: similarity, percent: 30.0}",
    "classes": "{kind: classes, per_client: 2}",
    "exact": "{kind: classes, per_client: 2, form: exact}",
    "per class": "{kind: dirichlet_per_class, alpha: 1.0, least: 2}",
    "quantity": "{kind: quantity, form: lognormal, sigma: 1.0, least: 2}",
    "natural": "{kind: natural}",
    "pooled": "{kind: pooled}",
}


def clients(job, *overrides):
    config = load(job, overrides).job
    return partition_examples(config.data, config.data.load(config.seed), config.seed).rows


def same(first, second):
    return len(first) == len(second) and all(map(np.array_equal, first, second))


@pytest.fixture
def owned(job, arrays):
    """The job over data whose examples have owners, none of whom is chosen yet."""
    arrays(client=OWNER)
    job.write_text(job.read_text().replace(", clients: 4, partition: {kind: iid}", ""))
    return job


def dealt(kind):
    own = kind in ("natural", "pooled")
    return [f"data.partition={PARTITIONS[kind]}", *([] if own else ["data.clients=6"])]


@pytest.mark.parametrize("kind", PARTITIONS)
def test_round_trip(kind, job, owned, arrays, tmp_path, hpcfl):
    if kind != "natural":
        arrays()
    out = tmp_path / "split.npz"
    done = hpcfl("data", "export-split", job, *dealt(kind), "-o", out)
    assert (done.code, done.err) == (0, [])
    wanted = clients(job, *dealt(kind))
    assert same(clients(job, f"data.partition={{kind: file, path: {out}}}"), wanted)
    total = sum(map(len, wanted))
    assert done.out == [
        f"{out}: {total} of 40 training examples to {counted(len(wanted), 'client')}"
    ]
    # And what it wrote is written again, bit by bit.
    again = tmp_path / "again.npz"
    hpcfl("data", "export-split", job, f"data.partition={{kind: file, path: {out}}}", "-o", again)
    assert again.read_bytes() == out.read_bytes()
    with np.load(out) as arrays:
        assert arrays["client"].dtype == np.int32
        assert np.count_nonzero(arrays["client"] == -1) == 40 - total


def test_what_is_held_out_belongs_to_nobody(job, tmp_path, hpcfl):
    out = tmp_path / "split.npz"
    done = hpcfl("data", "export-split", job, "data.holdout=0.2", "-o", out)
    assert done.out[0].endswith(
        "32 of 40 training examples to 4 clients; without 8 held out, so set data.holdout=null"
    )
    parts = build_components(load(job, ["data.holdout=0.2"]), torch.device("cpu"))
    assert same(clients(job, f"data.partition={{kind: file, path: {out}}}"), parts.population.rows)


def test_another_program_repeats_the_evaluation_of_each_client(job, arrays, tmp_path, hpcfl):
    """With the model and the split alone: the accuracies of clients.csv."""
    out, run = tmp_path / "split.npz", tmp_path / "run"
    settings = (job, "data.holdout=0.3", "data.validation.share=0.2", "evaluate.clients=table")
    assert hpcfl("run", *settings, "--out", run).code == 0
    assert hpcfl("data", "export-split", *settings, "-o", out).code == 0
    net = load_model(run)
    with np.load(arrays()) as data, np.load(out) as split, torch.no_grad():
        right = net(torch.from_numpy(data["x"].astype(np.float32))).argmax(1).numpy() == data["y"]
        owner = split["holdout"]
        times = (split["client"] >= 0) + (owner >= 0) + split["validation"]
    assert (times == 1).all()
    rows = list(csv.DictReader((run / "clients.csv").read_text().splitlines()))
    for client, row in enumerate(rows[-4:]):
        own = right[owner == client]
        assert (len(own), own.mean()) == (int(row["examples"]), float(row["accuracy"]))


@pytest.mark.parametrize("kept", ["", "data.validation={share: 0.3, of: clients}"])
def test_the_natural_owners_of_test_examples(kept, tmp_path, hpcfl):
    """Of half the clients, drawn; each trains and is tested on examples of its own label."""
    (tmp_path / "owned_data.py").write_text(OWNED)
    job, out = tmp_path / "owned.yaml", tmp_path / "split.npz"
    job.write_text(
        "data: {kind: owned_data.Owned, clients: 4}\nmodel: {name: linear}\n"
        "cohort: {kind: uniform, size: 2}\nalgorithm: {name: fedavg}\n"
        "local: {steps: 1, lr: 0.1}\nrounds: 1\n"
    )
    settings = [kept] if kept else []
    sys.path.insert(0, str(tmp_path))
    try:
        done = hpcfl("data", "export-split", job, *settings, "-o", out)
    finally:
        sys.path.remove(str(tmp_path))
        sys.modules.pop("owned_data", None)
    assert done.code == 0, done.err
    with np.load(out) as split:
        train, test = split["client"], split["test"]
    clients = 3 if kept else 4
    assert set(test.tolist()) == {-1, *range(clients)}
    for client in range(clients):
        (label,) = set((np.flatnonzero(train == client) % 8).tolist())
        assert set((np.flatnonzero(test == client) % 8).tolist()) == {label}


def test_a_run_on_the_file_is_the_run_itself(job, tmp_path, hpcfl):
    out = tmp_path / "split.npz"
    dirichlet = "data.partition={kind: dirichlet, alpha: 0.5}"
    assert hpcfl("data", "export-split", job, dirichlet, "-o", out).code == 0
    for name, partition in (("a", dirichlet), ("b", f"data.partition={{kind: file, path: {out}}}")):
        assert hpcfl("run", job, partition, "--out", tmp_path / name).code == 0
    servers = [tmp_path / n / "checkpoints/00000004/server.safetensors" for n in ("a", "b")]
    assert servers[0].read_bytes() == servers[1].read_bytes()


def test_a_folder_that_is_not_there(job, tmp_path, refused):
    line = refused("data", "export-split", job, "-o", tmp_path / "none" / "split.npz")
    assert "split.npz: cannot be written: there is no directory" in line


@pytest.mark.slow
@pytest.mark.parametrize("alpha", ["0.00", "0.50"])
def test_the_published_split_of_cifar10(request, tmp_path, hpcfl, alpha):
    overrides = [
        f"data.root={cifar10(request.config)}",
        f"data.partition.path={real('cifar_dirichlet_100clients.npz')}",
        f"data.partition.key=cifar10_alpha_{alpha}",
    ]
    config = load(PUBLISHED, overrides).job.data
    dataset = config.load(0)
    rows = partition_examples(config, dataset, 0).rows
    assert {len(own) for own in rows} == {499, 500}
    assert sum(map(len, rows)) == 49_999
    held = [len(torch.unique(dataset.train.labels[own])) for own in rows]
    assert (max(held) == 1) == (alpha == "0.00")
    out = tmp_path / "split.npz"
    assert hpcfl("data", "export-split", PUBLISHED, *overrides, "-o", out).code == 0
    assert same(
        clients(PUBLISHED, overrides[0], f"data.partition={{kind: file, path: {out}}}"), rows
    )
