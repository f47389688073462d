"""The tasks with the methods that jobs and sweeps give them, two rounds on a miniature data set.

The long form plays every combination.
"""

from copy import deepcopy

import pytest
import torch
import yaml
from safetensors.torch import save_file

import hpcfl
from hpcfl.job.load import load
from hpcfl.models import MODELS
from tests.jobs.every import FILES, JOBS, sweep
from tests.jobs.miniatures import CLIENTS, MAKERS, SMALLER, SUBSETS
from tests.long_form import LONG

pytestmark = pytest.mark.slow


def said(tree, section):
    """Every value of a key of a job or sweep, wherever it stands."""
    if isinstance(tree, dict):
        for key, value in tree.items():
            if key == section:
                yield value
            else:
                yield from said(value, section)


def combinations():
    """(task, method): the first file that has both; sweeps combine all that they name."""
    first = {}
    for path in FILES:
        tree = yaml.safe_load(path.read_text())
        trees = [tree]
        if "grid" in tree:
            trees.append(yaml.safe_load((path.parent / tree["job"]).read_text()))
        tasks, methods = (
            next((found for found in (list(said(tree, key)) for tree in trees) if found), [None])
            for key in ("task", "algorithm")
        )
        for task in tasks:
            for method in methods:
                first.setdefault((task, method["name"]), path)
    return first


FIRST = combinations()


def sampled():
    """Every method and every task at least once, and a twelfth of a task's methods.

    A method is played on the first task that has it, so the tasks of the largest model come last.
    """
    methods, kept, seen = set(), [], {}
    for task, method in sorted(FIRST, key=lambda one: "resnet18" in str(one[0])):
        number = seen[task] = seen.get(task, -1) + 1
        if number % 12 == 0 or method not in methods:
            kept.append((task, method))
            methods.add(method)
    return kept


PLAYED = list(FIRST) if LONG else sampled()


def find(path, task, method):
    """The tree of the first job of the file that has both."""
    loaded = [load(path)] if path in JOBS else [point.loaded for point in sweep(path).points]
    return next(
        one.tree
        for one in loaded
        if (one.job.task, one.tree["algorithm"]["name"]) == (task, method)
    )


def weights(model, root):
    """A file of random weights of this architecture, for other classes than the job has."""
    keys = {key: value for key, value in model.items() if key != "name"} | {"init": "none.pth"}
    path = root / f"{model['name']}.safetensors"
    save_file(MODELS[model["name"]](**keys).build((3, 32, 32), 3).state_dict(), path)
    return path


def shrunk(tree, root):
    """The job with so little of everything that it takes a moment."""
    tree = deepcopy(tree)
    data, cohort, local = tree["data"], tree["cohort"], tree["local"]
    data |= {key: small for key, small in SMALLER.items() if data.get(key)}
    if data["kind"] in SUBSETS:
        data["subset"] = True
    if tree["model"]["init"]:
        tree["model"]["init"] = str(weights(tree["model"], root))
    if "root" in data:
        data["root"] = str(root)
    if data["clients"]:
        data["clients"] = CLIENTS
    if data["partition"] and data["partition"].get("examples"):
        data["partition"]["examples"] = 2
    if "p" in cohort:
        cohort["p"] = 0.75
    elif cohort["size"] > 1:
        cohort["size"] = 2
    if local["epochs"]:
        local["epochs"] = 1
    if local["batch_size"] != "full":
        local["batch_size"] = 2
    return tree | {"rounds": 2, "evaluate": {}, "device": "cpu"}


@pytest.fixture(scope="module")
def roots(tmp_path_factory):
    made = {}

    def root(kind):
        if kind not in made:
            made[kind] = tmp_path_factory.mktemp(kind)
            MAKERS[kind](made[kind])
        return made[kind]

    return root


@pytest.fixture(autouse=True)
def own_process():
    """torch as it was."""
    threads = torch.get_num_threads()
    yield
    torch.set_deterministic_debug_mode("default")
    torch.set_num_threads(threads)


def test_there_are_some():
    assert len(FIRST) > 90
    assert {task for task, _ in PLAYED} == {task for task, _ in FIRST}
    assert {method for _, method in PLAYED} == {method for _, method in FIRST}
    assert FIRST["cifar10-lenet", "fedhbm"].parent.name == "cifar10"


@pytest.mark.parametrize(
    ("task", "method"), PLAYED, ids=[f"{task}-{method}" for task, method in PLAYED]
)
def test_two_rounds(task, method, roots, tmp_path):
    tree = find(FIRST[task, method], task, method)
    job = shrunk(tree, roots(tree["data"]["kind"]))
    result = hpcfl.run(job, out=tmp_path / "run")
    assert [record["round"] for record in result.log] == [1, 2]
    assert all(record["clients"] > 0 for record in result.log)
    assert "test_loss" in result.log[-1]
    assert torch.isfinite(result.x).all()
