"""The typed job: what is checked, what is written, what it is called."""

import sys
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
import yaml

from hpcfl.algorithms import ALGORITHMS
from hpcfl.algorithms.fedavg import FedAvg
from hpcfl.algorithms.fedhbm import FedHBM
from hpcfl.clients.sampling import Cyclic, Uniform
from hpcfl.data.partition import Dirichlet, Iid
from hpcfl.data.sources.digits import Digits
from hpcfl.errors import JobError
from hpcfl.job.load import load
from hpcfl.job.tasks import TASKS
from hpcfl.models.linear import Linear
from hpcfl.start.components.build import build_components
from tests.algorithms.facts import facts


@dataclass(frozen=True, kw_only=True)
class Mine(FedAvg):
    """An algorithm outside the package."""

    alpha: float


def fails(path, *overrides):
    with pytest.raises(JobError) as caught:
        load(path, overrides)
    (line,) = str(caught.value).splitlines()
    return line


def test_sections_become_typed_objects(job):
    loaded = load(job, ["cohort={kind: cyclic, size: 3}", "local.lr=1", "seed=7"])
    assert loaded.job.cohort == Cyclic(size=3)
    assert loaded.job.algorithm == FedHBM()
    assert loaded.job.data.partition == Iid()
    assert (loaded.job.local.lr, loaded.job.seed) == (1.0, 7)


def test_a_task_lies_under_the_job(tmp_path):
    path = tmp_path / "t.yaml"
    path.write_text(
        "task: digits\ndata: {clients: 3, flat: false}\ncohort: {kind: uniform, size: 1}\n"
        "algorithm: {name: fedavg}\nlocal: {lr: 0.1}\nrounds: 1\n"
    )
    loaded = load(path)
    assert loaded.job.data == Digits(clients=3, flat=False)
    assert loaded.job.model == Linear()
    assert loaded.job.cohort == Uniform(size=1)
    other = load(path, ["model={name: lenet}"]).tree
    assert (other["data"]["kind"], other["model"]["name"]) == ("digits", "lenet")


@pytest.mark.parametrize("algorithm", sorted(ALGORITHMS))
def test_what_is_written_loads_again(job, tmp_path, algorithm):
    required = {"dpfedavg": ", clip: 1, noise: 1", "streaming_diloco": ", fragments: 2"}
    keys = required.get(algorithm, "")
    overrides = [
        f"algorithm={{name: {algorithm}{keys}}}",
        "data.partition={kind: dirichlet, alpha: 0.3}",
    ]
    loaded = load(job, overrides)
    algorithm = loaded.job.algorithm.resolve(facts(0.25, weights="uniform"))
    loaded = replace(loaded, job=replace(loaded.job, algorithm=algorithm))
    path = tmp_path / "again.yaml"
    path.write_text(yaml.safe_dump(loaded.tree, sort_keys=False))
    again = load(path)
    assert again.job == loaded.job
    assert again.tree == loaded.tree
    assert again.job.data.partition == Dirichlet(alpha=0.3)


@pytest.mark.parametrize("given, kept", [("", 0.5), ("algorithm.participation=0.125", 0.125)])
def test_a_run_writes_its_settled_participation(job, tmp_path, hpcfl, given, kept):
    out = tmp_path / "run"
    assert hpcfl("run", job, *filter(None, [given]), "--out", out).code == 0
    written = load(out / "job.yaml")
    assert written.job.algorithm == FedHBM(participation=kept)
    # C stays what it was, whatever the cohort is when the job is loaded again.
    assert written.job.algorithm.resolve(facts(1.0, 6)) == written.job.algorithm


def test_overrides_give_a_run_its_name(job):
    assert load(job).name == "job"
    assert load(job, ["seed=1", "rounds=2"]).name == "job-rounds2-seed1"


def test_an_algorithm_by_dotted_path(job):
    name = f"{Mine.__module__}.{Mine.__qualname__}"
    loaded = load(job, [f"algorithm={{name: {name}, alpha: 2.0}}"])
    assert loaded.job.algorithm == Mine(alpha=2.0)
    assert loaded.tree["algorithm"] == {"name": name, "server_lr": 1.0, "alpha": 2.0}
    assert "algorithm.alpha: missing; it has no default" in fails(job, f"algorithm.name={name}")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x = = 1", "SyntaxError: invalid syntax ("),
        ("raise RuntimeError('two\\nlines')", "{at}:1): RuntimeError: two lines"),
        ("import sys\nsys.exit(0)", "{at}:2): SystemExit: 0"),
        ("\nimport nowhere", "{at}:2): ModuleNotFoundError: No module named 'nowhere'"),
        ("", "AttributeError: module 'broken_module' has no attribute 'Mine'"),
    ],
)
def test_a_module_of_ones_own_that_does_not_import(job, tmp_path, monkeypatch, text, message):
    (tmp_path / "broken_module.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "broken_module", raising=False)
    line = fails(job, "algorithm.name=broken_module.Mine")
    if "{at}" in message:
        message = message.format(at=f" in <module> ({tmp_path / 'broken_module.py'}")
    else:
        message = f": {message}"
    assert f"algorithm.name: 'broken_module.Mine' cannot be imported{message}" in line


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("algorithm.name=fedhmb", "algorithm.name: found 'fedhmb', expected one of "),
        ("algorithm.name=fedhmb", "; did you mean fedhbm?"),
        (
            "algorithm.name=no.such.Class",
            "cannot be imported: ModuleNotFoundError: No module named",
        ),
        ("algorithm.name=hpcfl.types.Count", "expected a class derived from hpcfl's Algorithm"),
        (
            "algorithm.name=hpcfl.data.sources.digits.Digits",
            "expected a class derived from hpcfl's Algorithm",
        ),
        (
            "model={name: torch.nn.Identity}",
            "; a torch module goes into model: {name: module, of: torch.nn.Identity}",
        ),
        ("algorithm.name=hpcfl.algorithms.base.Algorithm", "does not define init_server, update"),
        ("algorithm.name=..x", "found '..x', expected one of "),
        ("algorithm.name=3", "algorithm.name: found 3, expected a name"),
        ("algorithm={}", "algorithm.name: missing; expected one of "),
        ("task=digit", "task: found 'digit', expected one of "),
        ("data=digits", "data: found 'digits', expected a section (a mapping of keys to values)"),
        ("algorithm=scaffold", "to values); a name goes into algorithm.name"),
        ("data.partition=iid", "data.partition: found 'iid', expected a section"),
        ("lr=0.1", "; did you mean local.lr?"),
        ("mu=0.1", "store, task, threads, weights)"),  # of algorithms that the job has not
        ("server_lr=2", "; did you mean algorithm.server_lr?"),
        ("size=2", "; did you mean cohort.size?"),
        (
            "every=2",
            "; did you mean checkpoint.every or diagnostics.every or evaluate.every?",
        ),
        ("method=scaffold", "; did you mean algorithm.name?"),
        ("dataset=mnist", "; did you mean data.kind?"),
        ("round=2", "; did you mean rounds?"),
        ("cohort={size: 2}", "cohort.kind: missing, expected one of uniform, bernoulli"),
        ("cohort={kind: uniform}", "cohort.size: missing; it has no default"),
        ("cohort={kind: uniform, sise: 2}", 'cohort.sise: uniform has no "sise" (it has kind, si'),
        ("cohort={kind: replay}", "cohort: give the cohorts as rounds or as path"),
        ("cohort={kind: replay, rounds: [[0, x]]}", "cohort.rounds.0.1: found 'x', expected a wh"),
        ("local={lr: 0.1, steps: 1, epochs: 1}", "local: give epochs or steps, not both"),
        (
            "local={lr: 0.1, schedule: cosine, lr_decay: 0.9}",
            "local: schedule cosine has no lr_decay, found 0.9; remove lr_decay, or set ",
        ),
        (
            "local={lr: 0.1, lr_decay: 1.0e-13}",  # of 4 rounds
            "local.lr_decay: found 1e-13, which leaves a rate of 1.0e-40 in round 4, no number of",
        ),
        ("local.schedule=linear", "local.schedule: found 'linear', expected 'exponential' or 'cos"),
        ("evaluate.evry=3", 'evaluate has no "evry" (it has batch_size, best, clients, every,'),
        ("local.drop_last=1", "local.drop_last: found 1, expected true or false"),
        ("rounds=on", "rounds: found True, expected a whole number; YAML reads on, off"),
        ("rounds=~", "rounds: found None, expected a whole number"),
        ("rounds=0", "rounds: found 0, expected a number greater than or equal to 1"),
        ("rounds=1.5", "rounds: found 1.5, expected a whole number"),
        ("local.lr=.nan", "local.lr: found nan, expected a finite number"),
        ("local.lr='1e-3'", "found '1e-3', expected a number; without quotes it is a number"),
        ("local.lr=1e400", "local.lr: found inf, expected a finite number"),
        ("rounds=1e3", "rounds: found 1000.0, expected a whole number"),
        ("store.kind=disk", "store.kind: found 'disk', expected 'hdf5'"),
        ("store.kind=memory", "store.kind: memory is no kind any more; say hdf5, which keeps"),
        ("evaluate.last=-1", "evaluate.last: found -1, expected a number greater than or equal"),
        ("seed=-1", "seed: found -1, expected a number greater than or equal to 0"),
    ],
)
def test_faults(job, override, message):
    line = fails(job, override)
    assert line.startswith("command line: ")
    assert message in line


def test_every_key_of_a_job_is_said(job):
    line = fails(job, "extra=1")
    for key in ("algorithm", "cohort", "data", "local", "model", "task", "weights"):
        assert key in line.partition("(it has ")[2]


def test_long_values_are_cut(job):
    line = fails(job, f"rounds={list(range(1000))}")
    assert len(line) < 200


def test_presets_are_names_of_what_exists(job):
    assert {section for sections in TASKS.values() for section in sections} == {"data", "model"}


OWN = """\
from hpcfl.algorithms.fedavg import FedAvg


class Mine(FedAvg):
    mu: float = 0.1


class Wrong(FedAvg):
    def finish(self, y, local, message, state, client):
        return super().finish(y, local, None, state, client)
"""


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("own_module.Mine", "has no mu as a setting; is it decorated with @dataclass"),
        ("own_module.Wrong", "its dry round failed in finish ({folder}/own_module.py:10): Attri"),
        ("absent_module.Mine", "set PYTHONPATH=. if it is in the current directory"),
    ],
)
def test_faults_of_an_algorithm_of_ones_own_name_it(tmp_path, monkeypatch, name, message):
    (tmp_path / "own_module.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "own_module", raising=False)
    with pytest.raises(JobError) as caught:
        build_components(
            load("jobs/quickstart.yaml", [f"algorithm={{name: {name}}}"]), torch.device("cpu")
        )
    assert message.format(folder=tmp_path) in str(caught.value)


def test_a_module_beside_the_job_is_found_by_its_folder(tmp_path, monkeypatch):
    (tmp_path / "a b").mkdir()
    (tmp_path / "a b/beside_module.py").write_text(OWN)
    job = Path("jobs/quickstart.yaml").read_text().replace("fedhbm", "beside_module.Mine")
    assert "beside_module" in job
    (tmp_path / "a b/own.yaml").write_text(job)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(JobError) as caught:
        load("a b/own.yaml")
    assert str(caught.value).endswith("; set PYTHONPATH='a b', the directory of the job")
