"""Jobs are planned before their data is there, by sizes that the user states."""

import re

import pytest
import torch
import yaml
from rich.filesize import decimal

from hpcfl.errors import JobError
from hpcfl.job.load import load
from hpcfl.start.components.build import build_components
from hpcfl.tools.plan.data import planned_job, read_sizes
from hpcfl.tools.plan.host_memory import COMPUTED, MEASURED, HostMemory, computed_memory
from hpcfl.tools.plan.resources import plan
from hpcfl.tools.plan.slurm_request import slurm_request
from round_time import predict
from scale import SyntheticJob
from tests.jobs.every import JOBS, ROOT, SWEEPS, name, sweep
from tests.long_form import LONG

SIZES = {
    "cifar10": "train=50000,test=10000,classes=10,shape=3x32x32",
    "cifar100": "train=50000,test=10000,classes=100,shape=3x32x32",
    "concrete": "train=1030,test=1030,shape=8",
    "emnist": "train=112800,test=18800,classes=47,shape=1x28x28",
    "image_folder": "clients=20,train=6000,test=1000,classes=5,shape=3x32x32",
    "inaturalist": "clients=9275,train=120300,test=35641,classes=1203,shape=3x224x224",
    "landmarks": "clients=1262,train=164172,test=19526,classes=2028,shape=3x224x224",
    "mnist": "train=60000,test=10000,classes=10,shape=1x28x28",
    "shakespeare": "clients=643,train=2258888,test=284617,classes=80,words=80",
    "stackexchange": "clients=3190,train=101594,test=9917,classes=2004,words=20",
    "stackoverflow": "clients=342477,train=135818730,test=10000,classes=10004,words=20",
    "tiny_imagenet": "train=100000,test=10000,classes=200,shape=3x64x64",
    "tff": "clients=3400,train=671585,test=77483,classes=62,shape=1x28x28",
}
"""As docs/data has them, by data.kind."""


def components(loaded, sizes=None):
    planned, notes = planned_job(loaded, sizes)
    return build_components(planned, torch.device("cpu"), resumed=True), notes


def without_data(loaded):
    """The job's components, where nothing is in the folder of its data."""
    text = SIZES.get(loaded.names["data"])
    return components(loaded, text and read_sizes(text))


@pytest.fixture(autouse=True)
def nowhere(tmp_path, monkeypatch):
    """A folder without data and without torch's cache of weights."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "none"))


@pytest.mark.parametrize("path", JOBS, ids=name)
def test_every_job_is_planned_without_data(path):
    parts, notes = without_data(load(path))
    kind = parts.loaded.names["data"]
    real = kind in ("digits", "quadratics")
    assert any(line.startswith(f"data {kind}, as --sizes") for line in notes) != real
    assert plan(parts, 1).steps[0] > 0


@pytest.mark.parametrize("path", SWEEPS if LONG else SWEEPS[::3], ids=name)
def test_every_sweep_is_planned_without_data(path):
    """The first run of each data set, model and partition."""
    keys = ("data", "model")
    kinds = {repr([p.loaded.tree[key] for key in keys]): p.loaded for p in sweep(path).points}
    for loaded in kinds.values():
        parts, _ = without_data(loaded)
        assert len(parts.population.rows) == (
            loaded.job.data.population or len(parts.population.rows)
        )


class Tagger(torch.nn.Module):
    def __init__(self, input_shape, outputs):
        super().__init__()
        self.table = torch.nn.Embedding(outputs, outputs)

    def forward(self, words):
        return self.table(words)


def test_a_model_of_tokens_is_planned(tmp_path, refused, hpcfl):
    """Its data has as many labels an example as the sizes say."""
    job = tmp_path / "job.yaml"
    data = {"kind": "arrays", "path": "none.npz", "integers": True, "clients": 3}
    how = {"epochs": 1, "batch_size": 2, "lr": 0.1}
    model = {"name": "module", "of": f"{__name__}.Tagger"}
    whole = {"data": data, "model": model, "algorithm": {"name": "fedavg"}, "local": how}
    job.write_text(yaml.safe_dump(whole | {"cohort": {"kind": "cyclic", "size": 1}, "rounds": 6}))
    sizes = "train=9,test=3,classes=30,words=5"
    parts, _ = components(load(job), read_sizes(f"{sizes},labels=5"))
    dataset = parts.population.dataset
    assert (dataset.loss, dataset.classes, dataset.padding) == ("tokens", 30, None)
    assert dataset.train.labels.shape == (9, 5)
    done = hpcfl("plan", job, "--measure", "--sizes", f"{sizes},labels=5")
    assert done.code == 0, done.err
    line = refused("plan", job, "--measure", "--sizes", sizes)
    assert "have the shape (2, 5, 30) for labels (2,)" in line


def test_sizes_are_asked_for_in_one_line(refused, hpcfl):
    job = str(ROOT / "jobs/image_folder/fedavg.yaml")
    said = refused("plan", job)
    assert "image_folder-36.h5: not found); put it there, or say its sizes, " in said
    assert said.endswith(": --sizes clients=20,train=6000,test=1000,classes=5,shape=3x32x32")
    told = hpcfl("plan", job, "--sizes", SIZES["image_folder"], "--ranks", "2")
    assert told.code == 0, told.err
    assert "data image_folder, as --sizes says: 20 clients, 6000 training and 1000" in told.text


@pytest.mark.parametrize(
    ("sizes", "said"),
    [
        ("client=2", 'sizes.client: sizes has no "client"'),
        ("", "--sizes: found '', expected key=number, such as clients=20,"),
        ("{clients: 20, train: 6000}", "--sizes: found '{clients: 20', expected key=number"),
        ("train=9", "expected shape of an input, such as 3x32x32, or words of a text"),
        ("train=9,shape=3,words=2", "expected shape of an input, such as 3x32x32, or words of"),
        ("train=9,words=2", "classes: missing; expected the number of different words"),
        ("clients=20,train=9,shape=3", "clients is 20, but there are 9 training examples"),
        ("train=9,shape=3xx3", "found 'shape=3xx3', expected key=number"),
        ("shape=3", "sizes.train: missing"),
    ],
)
def test_wrong_sizes(refused, sizes, said):
    assert said in refused("plan", "quickstart", "--sizes", sizes)


def test_data_that_is_there_is_counted(job, hpcfl):
    told = hpcfl("plan", job)
    assert "as --sizes says" not in told.text
    assert re.search(r"\| +0 \| +4 \| +40 \|", told.text)
    assert "| 20 of 20 take part" not in told.text
    given = hpcfl("plan", job, "--sizes", "train=400,classes=4,shape=3")
    assert re.search(r"\| +0 \| +4 \| +400 \|", given.text)


def test_a_split_that_is_not_there_needs_its_clients():
    path = ROOT / "jobs/cifar10/fedavg_published_split.yaml"
    parts, notes = without_data(load(path))
    assert {len(rows) for rows in parts.population.rows} == {500}
    assert "planned with 100 equal clients" in notes[0]
    with pytest.raises(JobError, match="the job does not say how many clients it has"):
        planned_job(load(path, ["data.clients=null"]), None)


def asked(ranks, hours, *, gpus=True, most=None, rank=10e9, shared=0, room=MEASURED):
    parts, _ = components(load(ROOT / "jobs/quickstart.yaml", ["data.clients=64", "cohort.size=8"]))
    memory = HostMemory(int(rank), int(shared), room, "")
    return slurm_request(parts, ranks, memory, hours=hours, gpus=gpus, most=most).command(
        ["a.yaml", "b=1 2"]
    )


@pytest.mark.parametrize(
    ("ranks", "hours", "options", "command"),
    [
        # 1.25 x 4 x 10 GB; 3.5 x 1.5 h and ten minutes.
        (8, 3.5, {}, "-N 2 --ntasks-per-node=4 --gpus-per-node=4 -c 2 --mem=50G -t 06:00:00"),
        (6, 0.1, {}, "-N 2 --ntasks-per-node=3 --gpus-per-node=3 -c 2 --mem=38G -t 00:20:00"),
        (8, 100, {"most": 8}, "-N 1 --ntasks-per-node=8 --gpus-per-node=8 -c 2 --mem=100G -t 24"),
        (64, 1, {"gpus": False}, "-N 2 --ntasks-per-node=32 -c 1 --mem=400G -t 01:40:00"),
        # Twice what was only computed.
        (8, 3.5, {"room": COMPUTED}, "-N 2 --ntasks-per-node=4 --gpus-per-node=4 -c 2 --mem=80G"),
        # The ranks of a node have 8 GB of data once: 1.25 x (8 + 4 x 2) GB.
        (8, 3.5, {"shared": 8e9}, "-N 2 --ntasks-per-node=4 --gpus-per-node=4 -c 2 --mem=20G"),
    ],
)
def test_the_command_for_slurm(ranks, hours, options, command):
    said = asked(ranks, hours, **options)
    assert said.startswith(f"sbatch {command}")
    assert said.endswith(":00 slurm/run.sh a.yaml 'b=1 2'")


def test_a_plan_ends_with_the_command(hpcfl):
    told = hpcfl("plan", "quickstart", "--ranks", "2", "local.lr=0.1")
    assert re.fullmatch(
        r"sbatch -N 1 --ntasks-per-node=2 -c 1 --mem=\d+G -t 24:00:00 slurm/run.sh quickstart "
        r"local\.lr=0\.1",
        told.out[-1],
    )
    assert "asks for 24 hours, as nothing was measured, and for no GPU: device=cuda" in told.text
    assert "--gpus-per-node=2" in hpcfl("plan", "quickstart", "--ranks", 2, "device=cuda").out[-1]


@pytest.mark.parametrize("job", ["landmarks", "inaturalist", "stackoverflow"])
def test_the_large_jobs_on_paper_are_those_of_the_job_files(job):
    """benchmarks/scale.yaml, from which the page on many GPUs is made."""
    drawn = yaml.safe_load((ROOT / "benchmarks/scale.yaml").read_text())[job]
    parts, _ = without_data(load(ROOT / f"jobs/papers/base/{job}.yaml"))
    large, uploaded = (
        SyntheticJob(**drawn),
        sum(field.numel() for field in parts.training.schema.upload),
    )
    assert drawn["clients"] == len(parts.population.rows)
    stated = read_sizes(SIZES[job])
    share = drawn["clients"] / stated.clients
    assert drawn["examples"] == pytest.approx(stated.train * share, rel=0.01)
    assert drawn["parameters"] == pytest.approx(uploaded, rel=1e-3)
    assert drawn["batch"] == parts.job.local.batch_size
    template = (ROOT / f"slurm/{job}.sh").read_text()
    fedhbm = large.work(drawn["cohorts"][0], parts.job.balance)
    for ranks, gpus in ((4, "4 GPUs,"), (1, "one:")):
        stated = re.search(rf"([\d.]+) on {gpus}", template)[1]
        assert predict(fedhbm, ranks, large.costs()).hours == pytest.approx(float(stated), abs=0.05)
    found = plan(parts, 1)
    assert (found.rounds, found.evaluations, found.tests) == (
        drawn["rounds"],
        drawn["evaluations"],
        drawn["tests"],
    )


@pytest.mark.parametrize("job", ["landmarks", "inaturalist", "stackoverflow"])
def test_the_heads_of_the_scripts_say_what_the_plan_says(job):
    """Of fedhbm on 4 ranks, before the data is there."""
    lines = (ROOT / f"slurm/{job}.sh").read_text().split("#SBATCH")[0].splitlines()
    head = " ".join(" ".join(line.strip("# ") for line in lines).split())
    path = ROOT / f"jobs/papers/base/{job}.yaml"
    parts, _ = without_data(load(path, ["algorithm={name: fedhbm}"]))
    found = plan(parts, 4)
    disk = found.disk_budget
    seen = f"{found.seen}" if found.seen < 10_000 else f"{found.seen:,}".replace(",", " ")
    some = f", {seen} of them take part" if found.seen < found.population else ""
    a_rank = decimal(max(share.store for share in found.shares))
    assert (
        f"stores {decimal(disk.stores)} for fedhbm ({decimal(found.own)} a client{some}), "
        f"{a_rank} a rank; the same" in head
    )
    assert f"checkpoints {decimal(disk.checkpoint)} each, {disk.checkpoints} at most" in head
    needed = computed_memory(found, gpus=True).rank - found.least_memory.data
    stated = re.search(r"memory +([\d.]+) GB a rank or more besides (images|sentences)", head)
    assert needed / 1e9 == pytest.approx(float(stated[1]), abs=0.05)
