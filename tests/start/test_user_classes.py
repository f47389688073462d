"""Classes of the user's own: what is wrong with them costs one line with their file and line."""

import json
import re
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from hpcfl.algorithms.fedavg import FedAvg
from hpcfl.algorithms.fedhbm import FedHBM
from hpcfl.clients.client_pool import ClientPool
from hpcfl.errors import is_fault_of_hpcfl
from hpcfl.job.load import load
from hpcfl.job.registry import FORMER_HOOKS
from hpcfl.local.gradient import Gradient
from hpcfl.models.linear import Linear
from hpcfl.models.losses import squared
from hpcfl.start.checks import trial
from hpcfl.start.checks.algorithm import check_algorithm_without_data
from hpcfl.start.checks.preflight import check_classes
from hpcfl.start.components.build import build_components
from hpcfl.user_code.generators import generators

ROOT = Path(__file__).parents[2]

CLASSES = '''\
import functools
import random
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from hpcfl.algorithms.base import Nothing, Upload
from hpcfl.algorithms.fedavg import FedAvg
from hpcfl.data.sources.arrays import Arrays
from hpcfl.models.base import ModelConfig
from hpcfl.models.linear import Linear

LAST = None
own = dataclass(frozen=True, kw_only=True)


def delta(message, y):
    return message.x - y


@own
class Python(FedAvg):
    def finish(self, y, local, message, state, client):
        return Upload(delta(message, y) * (1 + random.random())), state  # here: Python


@own
class Numpy(FedAvg):
    def direction(self, point, local, grad, client):
        return grad(point) * (1 + float(np.random.rand())), local  # here: Numpy


@own
class Torch(FedAvg):
    def begin(self, message, state, client):
        return message._replace(x=message.x + torch.randn_like(message.x))


@own
class Server(FedAvg):
    def update(self, server, mean, cohort):
        return server._replace(x=server.x - mean.delta * np.random.rand())


@own
class Keeps(FedAvg):
    def finish(self, y, local, message, state, client):
        global LAST
        before, LAST = LAST, y.clone()
        d = delta(message, y)
        return Upload(d if before is None else d + 0.1 * (message.x - before)), state


OWN = np.random.default_rng(0)


@own
class OwnGenerator(FedAvg):
    def finish(self, y, local, message, state, client):
        return Upload(delta(message, y) * (1 + float(OWN.random()))), state


@own
class Stores(FedAvg):
    def update(self, server, mean, cohort):
        self.last = mean.delta
        return server


class Other(NamedTuple):
    x: Tensor
    n: Tensor


@own
class Structure(FedAvg):
    def update(self, server, mean, cohort):
        return Other(server.x - mean.delta, server.x.new_zeros(()))


@own
class Dtype(FedAvg):
    def update(self, server, mean, cohort):
        return server._replace(x=server.x.double() - mean.delta)


@own
class Zeros(FedAvg):
    def direction(self, point, local, grad, client):
        return grad(point) + torch.zeros(len(point), dtype=torch.float64), local


@own
class Forgets(FedAvg):
    def direction(self, point, local, grad, client):
        return grad(point), Nothing()


@own
class Scope(FedAvg):
    @property
    def full_gradient(self):
        return "serverr"


class Two(NamedTuple):
    x: Tensor
    previous: Tensor


@own
class Points(FedAvg):
    """In the wrong order, which is seen after a round alone."""

    @property
    def full_gradient(self):
        return "server"

    def init_server(self, x0):
        return Two(x0, x0)

    def full_gradient_points(self, server):
        return server.previous, server.x

    def update(self, server, mean, cohort):
        return Two(server.x - mean.delta, server.x)


class Former(FedAvg):
    traffic_note = "twice"

    def gradient_point(self, y, start, local, client):
        return y


@own
class FormerHooks(Former):
    refuses_optimizer = "it steps by itself"
    refuses_statistics = {"mean": "none"}

    @property
    def full_gradient(self):
        return "cohort"

    def prepare(self, server, cohort):
        return server

    def broadcast(self, server):
        return server

    def start_point(self, y, local, client):
        return y

    def warm_start_client(self, state, gradient):
        return state

    def warm_start_server(self, server, mean):
        return server


@own
class OldName(FedAvg):
    prepare: int = 5

    def broadcast(self, *arguments):
        return super().broadcast(*arguments)


@own
class Misspelt(FedAvg):
    def directon(self, point, local, grad, client):
        return grad(point), local


class MisspeltName(FedAvg):
    unweigthed = frozenset({"delta"})


COUNT = 0


class More(NamedTuple):
    delta: Tensor
    more: Tensor


@own
class Varies(FedAvg):
    def finish(self, y, local, message, state, client):
        global COUNT
        COUNT += 1
        return More(delta(message, y), y[: 1 + COUNT % 2]), state


@own
class Wrong(ModelConfig):
    def build(self, input_shape, outputs):
        return nn.Sequential(nn.Linear(input_shape[0] + 1, outputs))


class Net(nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.layer = nn.Linear(inputs, outputs)
        self.register_buffer("calls", torch.zeros(()))
        self.count = 0


class Raises(Net):
    def forward(self, x):
        return self.layer(x) + self.absent  # here: Raising


class Draws(Net):
    def forward(self, x):
        return self.layer(x) * random.random()


class CountsCalls(Net):
    def forward(self, x):
        self.calls += 1
        return self.layer(x)


class Squares(Net):
    def forward(self, x):
        return self.layer(x * x)


class Remembers(Net):
    """Its evaluations depend on the last batch that was trained, by a buffer that is not saved."""

    def __init__(self, inputs, outputs):
        super().__init__(inputs, outputs)
        self.register_buffer("last", torch.zeros(inputs), persistent=False)

    def forward(self, x):
        if self.training:
            self.last.copy_(x.detach().mean(0))
            return self.layer(x)
        return self.layer(x - self.last)


class KeepsCount(Net):
    def forward(self, x):
        self.count += 1
        return self.layer(x) * self.count


def model(cls):
    @own
    class Config(ModelConfig):
        def build(self, input_shape, outputs):
            return cls(input_shape[0], outputs)

    return Config


class TooLate(nn.Linear):
    evaluated = 0

    def forward(self, inputs):
        self.evaluated += not self.training
        if self.evaluated > 9:  # five in the trial, three of its function, one after round 0
            raise ValueError("too late")  # here: Evaluating
        return super().forward(inputs)


Raising, Drawing, Buffering, Counting = map(model, (Raises, Draws, CountsCalls, KeepsCount))
Evaluating, Remembering = map(model, (TooLate, Remembers))


@own
class Narrow(ModelConfig):
    def build(self, input_shape, outputs):  # here: Narrow
        return nn.Linear(input_shape[0], outputs - 1)


class Pairs(Net):
    def forward(self, x):
        return self.layer(x), x


Pairing, Squaring = model(Pairs), model(Squares)


@own
class Fails(ModelConfig):
    def build(self, input_shape, outputs):
        raise KeyError("width")  # here: Fails


@own
class NoModule(ModelConfig):
    def build(self, input_shape, outputs):
        return None


@own
class Init(Linear):
    def __post_init__(self):
        super().__post_init__()
        self.absent  # here: Init


def raw(inputs, dtype, draws):
    return inputs


def noisy(inputs, dtype, draws):
    return inputs.to(dtype) + torch.randn(inputs.shape).to(dtype)


def data(transform):
    @own
    class Data(Arrays):
        def load(self, seed):
            found = super().load(seed)
            return type(found)(**{**vars(found), "transform": transform})

    return Data


def centred(inputs, dtype, draws):
    return inputs.to(dtype) - inputs.to(dtype).mean(0)


def centred_rows(inputs, dtype, draws):
    return inputs.to(dtype) - inputs.to(dtype).mean(1, keepdim=True)


class Flips:
    """Takes a draw for each row, as it should."""

    augment = True

    def __call__(self, inputs, dtype, draws):
        inputs = inputs.to(dtype)
        return inputs if draws is None else torch.where(draws[:, None] % 2 == 1, -inputs, inputs)


class FlipsTogether(Flips):
    """Takes the first draw for all rows."""

    def __call__(self, inputs, dtype, draws):
        return super().__call__(inputs, dtype, None if draws is None else draws[:1])


class Crops(Flips):
    """Leaves fewer numbers of an example to train on than to evaluate."""

    def __call__(self, inputs, dtype, draws):
        return inputs.to(dtype)[:, : 3 if draws is None else 2]


class MeanOfAny(nn.Module):
    def __init__(self, outputs):
        super().__init__()
        self.layer = nn.Linear(1, outputs)

    def forward(self, x):
        return self.layer(x.mean(1, keepdim=True))


@own
class Mean(ModelConfig):
    def build(self, shape, outputs):
        return MeanOfAny(outputs)


class CentringLayer(nn.Module):
    augment = False

    def forward(self, inputs, dtype, draws):
        return centred(inputs, dtype, draws)


def padded(inputs, dtype, draws):
    """As wide as the largest number of the batch says."""
    return inputs.to(dtype).repeat(1, 1 + int(inputs.abs().max()))


@own
class CentredPersonally(Arrays):
    def load(self, seed):
        return replace(super().load(seed), personal=lambda client: centred)


Raw, Noisy, Centred, Layered, Padded = map(data, (raw, noisy, centred, CentringLayer(), padded))
CentredRows, Flipped, FlippedTogether = map(data, (centred_rows, Flips(), FlipsTogether()))
Cropped = data(Crops())


@own
class Unread(Arrays):
    def load(self, seed):
        return {}["absent"]  # here: Unread


@own
class NoClasses(Arrays):
    def load(self, seed):
        return replace(super().load(seed), classes=0)


@own
class NoData(Arrays):
    def load(self, seed):
        return 1


def changed(**new):
    """A data set with other fields, which are functions of the right one."""

    @own
    class Data(Arrays):
        def load(self, seed):
            found = super().load(seed)
            return replace(found, **{key: make(found) for key, make in new.items()})

    return Data


def put(number, what="inputs", transform=None):
    """Data with this number in row 7."""

    def train(d):
        tensor = getattr(d.train, what).float()
        tensor[7] = number
        return d.train._replace(**{what: tensor})

    return changed(
        train=train,
        test=lambda d: d.train,
        transform=lambda d: transform or d.transform,
        loss=lambda d: "squared" if what == "labels" else d.loss,
    )


def imputed(inputs, dtype, draws):
    return inputs.to(dtype).nan_to_num()


def nan_and_inf(d):
    tensor = d.train.inputs.float()
    tensor[7], tensor[9] = float("nan"), float("inf")
    return d.train._replace(inputs=tensor)


def half_imputed(inputs, dtype, draws):
    return torch.where(inputs.isnan(), 0.0, inputs).to(dtype)


class Lazy:
    """Inputs that are read when they are needed."""

    workers = 1

    def __init__(self, inputs):
        self.inputs, self.shape, self.dtype = inputs, tuple(inputs.shape), inputs.dtype

    def read(self, rows):
        return self.inputs[torch.from_numpy(rows)]


def lazy(inputs):
    return Lazy(torch.full_like(inputs.float(), float("inf")))


OneNan, OneInf, OneHuge = put(float("nan")), put(float("-inf")), put(-1e38)
NanLabel = put(float("nan"), "labels")
Imputed = put(float("nan"), transform=imputed)
HalfImputed = changed(train=nan_and_inf, transform=lambda d: half_imputed)
InfTest = changed(test=lambda d: d.train._replace(inputs=d.train.inputs / 0.0))
LazyInf = changed(train=lambda d: d.train._replace(inputs=lazy(d.train.inputs)))
LazyTest = changed(test=lambda d: d.train._replace(inputs=lazy(d.train.inputs)))
Pair = changed(train=lambda d: tuple(d.train))
Numpy1 = changed(train=lambda d: d.train._replace(inputs=d.train.inputs.numpy()))
FewClasses = changed(classes=lambda d: 3)
SeveralLabels = changed(train=lambda d: d.train._replace(labels=d.train.labels[:, None]))
FloatLabels = changed(train=lambda d: d.train._replace(labels=d.train.labels.float()))
OwnerIds = changed(natural=lambda d: np.arange(40) % 4)
Shared = changed(natural=lambda d: [np.arange(20), np.arange(10, 30)])
TwoArguments = data(lambda inputs, dtype: inputs)


@own
class NoType(FedAvg):
    beta = 0.1


@own
class Shuffled(Arrays):
    """Draws from all the global generators, which hpcfl seeds for it."""

    def load(self, seed):
        found = super().load(seed)
        moved = random.random() + np.random.rand() + torch.rand(()).item()
        inputs = found.train.inputs + moved
        return type(found)(**{**vars(found), "train": found.train._replace(inputs=inputs)})


@own
class Empty(FedAvg):
    def broadcast(self, server, cohort):
        return None


@own
class Short(FedAvg):
    def finish(self, y, local, state):  # here: Short
        return Upload(y), state


def with_scale(hook):
    @functools.wraps(hook)
    def scaled(self, *args):
        return hook(self, *args, 1.0)

    return scaled


@own
class Scaled(FedAvg):
    @with_scale
    def direction(self, point, local, grad, client, scale):
        return scale * grad(point), local


@own
class Bound(FedAvg):
    @staticmethod
    def direction(point, local, grad, *more, scale=1.0):
        return grad(point), local


@own
class Late(FedAvg):
    """Fails in round 2."""

    def finish(self, y, local, message, state, client):
        if not y.is_meta and int(client.round) == 1:
            raise ValueError("too late")  # here: Late
        return Upload(delta(message, y)), state


ROUNDS = [0]


@own
class LateServer(FedAvg):
    def update(self, server, mean, cohort):
        if cohort.round == 1:
            raise ValueError("too late")  # here: LateServer
        return super().update(server, mean, cohort)


@own
class LateUpload(FedAvg):
    """Another shape in round 2."""

    def finish(self, y, local, message, state, client):  # here: LateUpload
        late = not y.is_meta and int(client.round) == 1
        return Upload(delta(message, y)[late:]), state


@own
class LateState(FedAvg):
    def finish(self, y, local, message, state, client):  # here: LateState
        late = not y.is_meta and int(client.round) == 1
        return Upload(delta(message, y)), Upload(y) if late else state


@own
class LateForm(FedAvg):
    def update(self, server, mean, cohort):  # here: LateForm
        after = super().update(server, mean, cohort)
        return type(after)(after.x[cohort.round == 1 :])

'''


@pytest.fixture
def module(tmp_path, monkeypatch):
    """The file of the user's classes, importable as ``mine``."""
    path = tmp_path / "mine.py"
    path.write_text(CLASSES)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delenv("HPCFL_TRACEBACK", raising=False)
    yield path
    sys.modules.pop("mine", None)


def line_of(module, name):
    (line,) = [
        k for k, text in enumerate(CLASSES.splitlines(), 1) if text.endswith(f"# here: {name}")
    ]
    return f"({module}:{line})"


def override(module, section, name):
    tree = load(module.parent / "job.yaml").tree["data"]
    if section == "data":
        return f"data={{kind: mine.{name}, path: {tree['path']}, clients: 4}}"
    key = "algorithm" if section == "algorithm" else "model"
    return f"{key}={{name: mine.{name}}}"


def test_a_setting_may_have_the_name_of_an_old_hook(module, job, hpcfl):
    done = hpcfl("check", job, override(module, "algorithm", "OldName"))
    assert done.code == 0


def test_a_misspelt_hook_is_refused(module, job, refused):
    """It would be left out in silence."""
    line = refused("check", job, override(module, "algorithm", "Misspelt"))
    assert "'mine.Misspelt' defines directon, which nothing calls; did you mean direction?" in line


def test_a_misspelt_attribute_is_refused(module, job, refused):
    line = refused("check", job, override(module, "algorithm", "MisspeltName"))
    assert "defines unweigthed, which nothing reads; did you mean unweighted?" in line


def test_a_field_without_a_type_is_no_key(module, job, refused):
    line = refused("check", job, "algorithm={name: mine.NoType, beta: 0.3}")
    assert 'has no "beta"' in line
    assert "; write beta with a type in the class, beta: float = ..., to make it a key" in line


def test_all_former_hooks_of_a_class_are_named_at_once(module, job, refused):
    """Under their old names they would be left out in silence."""
    line = refused("check", job, override(module, "algorithm", "FormerHooks"))
    start = "algorithm.name: 'mine.FormerHooks' is written for other hooks: "
    named = [part.partition(" is now ")[0] for part in line.partition(start)[2].split("; ")]
    assert sorted(named) == sorted([*FORMER_HOOKS, "broadcast(server)", 'full_gradient "cohort"'])
    assert "prepare is now broadcast(server, cohort); " in line
    assert "; gradient_point is now the second of the two that points(y, local, client)" in line


HOOKS = [
    ("Stores", "'last'; an algorithm's object keeps nothing itself: put it into the server's"),
    ("Scope", "Scope.full_gradient is 'serverr', expected one of none, client, server"),
    ("Points", "Points.full_gradient_points returns another first point than the x"),
    ("Python", "Python.finish draws from Python's random"),
    ("Numpy", "Numpy.direction draws from numpy.random"),
    ("Torch", "Torch.begin draws from torch's generator"),
    ("Server", "Server.update draws from numpy.random"),
    ("Keeps", "Keeps.finish returned other values when the same clients were run again"),
    ("OwnGenerator", "OwnGenerator.finish returned other values"),
    (
        "Structure",
        "Structure.update returns a server with other fields, shapes or dtypes than",
    ),
    ("Dtype", "Server(x: float64["),
    ("Zeros", "Zeros.direction returns float64["),
    ("Forgets", "Forgets.direction returns local quantities with other fields"),
    ("Varies", "Varies.finish returns an upload with other fields"),
]


@pytest.mark.parametrize("command", [("check",), ("check", "--data"), ("run",)], ids=" ".join)
@pytest.mark.parametrize(("name", "said"), HOOKS, ids=[name for name, _ in HOOKS])
def test_a_hook_that_breaks_a_rule(name, said, command, module, job, refused):
    line = refused(*command, job, override(module, "algorithm", name))
    assert line.startswith(f"JobError: algorithm.name: mine.{name}: its ")
    assert said in line
    assert re.search(rf" in \w+ \({re.escape(str(module))}:\d+\): ", line)
    assert not (module.parent / "runs").exists()


BEFORE = [
    ("model", "Wrong", "(inputs float32[4, 3], labels int64[4]) in build ("),
    ("model", "Raising", "AttributeError: 'Raises' object has no attribute 'absent'"),
    ("model", "Drawing", "its forward pass in forward ("),
    ("model", "Buffering", "its forward pass changes the buffer 'calls'"),
    ("model", "Counting", "its gradient in forward ("),
    ("model", "Remembering", "its evaluation in forward ("),
    ("model", "Fails", "cannot be built for inputs (3,) in build ("),
    ("model", "NoModule", "returns NoneType, expected a torch.nn.Module"),
    ("model", "Init", "job.yaml:2: model: cannot be read in __post_init__ ("),
    ("model", "Narrow", ": too few for the 4 classes of data.kind arrays; give its last layer"),
    ("model", "Pairing", ") returns a tuple, expected a tensor; return the outputs alone"),
    ("data", "Raw", "cannot be trained on a batch of data.kind mine.Raw (inputs float64[4, 3]"),
    ("data", "Noisy", "draws from torch's generator"),
    ("data", "Centred", "makes other inputs of a row alone than of the same row among others"),
    ("data", "Layered", "makes other inputs of a row alone than"),
    ("data", "CentredPersonally", "makes other inputs of a row alone than"),
    ("data", "Padded", "makes other inputs of a row alone than"),
    ("data", "FlippedTogether", "makes other inputs of a row alone than"),
    ("data", "Unread", "cannot load the data in load ("),
    ("data", "NoClasses", "its classes are 0, expected 1 at least, or None for targets"),
    ("data", "Pair", "train is a tuple, expected hpcfl.types.Examples(inputs, labels)"),
    ("data", "Numpy1", "the inputs of train are a ndarray, expected a tensor; torch.from_numpy"),
    ("data", "FewClasses", "the labels of train run from 0 to 3, expected 0 to 2, as its classes"),
    ("data", "SeveralLabels", "the labels of train have the shape (40, 1), expected (40,), one"),
    ("data", "FloatLabels", "the labels of train are torch.float32, expected integers, as its"),
    ("data", "OwnerIds", "client 0 of natural is 0, expected a list of its rows: integers [n]"),
    ("data", "Shared", "natural has row 10 2 times, expected each training example of one client"),
    (
        "data",
        "TwoArguments",
        "; a transform is called with stored rows, a dtype, and draws or None",
    ),
    (
        "data",
        "OneNan",
        "mine.OneNan: inputs of row 7 of train: nan or inf, expected finite numb",
    ),
    ("data", "OneInf", "data.kind: mine.OneInf: inputs of row 7 of train: nan or inf"),
    ("data", "HalfImputed", "data.kind: mine.HalfImputed: inputs of row 9 of train: nan or inf"),
    ("data", "NanLabel", "data.kind: mine.NanLabel: labels of row 7 of train: nan or inf"),
    ("data", "InfTest", "data.kind: mine.InfTest: inputs of row 0 of test: nan or inf"),
    (
        "data",
        "LazyInf",
        "mine.LazyInf: inputs of the first batch of client 0: nan or inf",
    ),
    ("data", "LazyTest", "mine.LazyTest: inputs of the first test examples: nan or inf"),
    ("data", "NoData", "returns int, expected a hpcfl.data.base.Dataset"),
]


@pytest.mark.parametrize("command", [("check", "--data"), ("run",)], ids=" ".join)
@pytest.mark.parametrize(("section", "name", "said"), BEFORE, ids=[name for _, name, _ in BEFORE])
def test_a_class_that_would_fail_in_round_1(section, name, said, command, module, job, refused):
    line = refused(*command, job, override(module, section, name))
    assert said.replace("job.yaml:2", "command line") in line
    if f"# here: {name}" in CLASSES:
        assert line_of(module, name) in line


def test_an_example_that_is_too_large_is_refused(module, job, refused, hpcfl):
    """No learning rate helps where the outputs are infinite before any step."""
    words = ("check", "--data", job, override(module, "data", "OneHuge"))
    line = refused(*words, override(module, "model", "Squaring"))
    assert "nan or inf in its outputs in forward (" in line
    assert "for a batch with row 7 of train, which has the largest number in its inputs" in line
    assert hpcfl(*words).code == 0


def test_a_transform_may_replace_what_is_not_finite(module, job, hpcfl):
    assert hpcfl("check", "--data", job, override(module, "data", "Imputed")).code == 0


def test_training_examples_may_have_another_form_than_others(module, job, hpcfl):
    words = [override(module, "data", "Cropped"), override(module, "model", "Mean")]
    done = hpcfl("check", "--data", job, *words)
    assert done.code == 0, done.err


@pytest.mark.parametrize("name", ["CentredRows", "Flipped"])
def test_a_transform_that_takes_each_row_alone(name, module, job, hpcfl):
    assert hpcfl("check", "--data", job, override(module, "data", name)).code == 0


@pytest.mark.parametrize(
    ("name", "kind", "where"),
    [
        ("Late", "ClientError", "client 0, round 2, finish in finish"),
        ("LateServer", "HookError", "round 2 in update"),
    ],
)
def test_a_failure_in_a_later_round_is_one_line(name, kind, where, module, job, hpcfl, monkeypatch):
    job.write_text(job.read_text().replace("uniform, size: 2", "cyclic, size: 4"))
    algorithm = override(module, "algorithm", name)
    done = hpcfl("run", job, algorithm, "--out", module.parent / "run")
    assert done.code == 1
    hint = "HPCFL_TRACEBACK=1 shows the whole traceback"
    said = f"{kind}: {where} {line_of(module, name)}: ValueError: too late; {hint}"
    assert done.err[-1] == said
    assert "Traceback" not in "\n".join(done.err)
    monkeypatch.setenv("HPCFL_TRACEBACK", "1")
    done = hpcfl("run", job, algorithm, "--out", module.parent / "again")
    assert f"{kind}: {where} {line_of(module, name)}: ValueError: too late" in done.err
    assert any(line.startswith("Traceback") for line in done.err)
    assert done.err[-1] == "ValueError: too late"


@pytest.mark.parametrize(
    ("name", "start", "found"),
    [
        ("LateUpload", "ClientError: client 0, round 2, finish in finish", "Upload(delta: "),
        ("LateState", "ClientError: client 0, round 2, finish in finish", "Upload(delta: "),
        ("LateForm", "HookError: round 2 in update", "Server(x: "),
    ],
)
def test_another_form_in_a_later_round_is_one_line(name, start, found, module, job, hpcfl):
    job.write_text(job.read_text().replace("uniform, size: 2", "cyclic, size: 4"))
    algorithm = override(module, "algorithm", name)
    done = hpcfl("run", job, algorithm, "--out", module.parent / "run")
    assert done.code == 1
    assert done.err[-1].startswith(f"{start} {line_of(module, name)}: {name}.")
    assert f"found {found}" in done.err[-1]
    assert "Traceback" not in "\n".join(done.err)


def test_a_failure_in_a_later_evaluation_is_one_line(module, job, hpcfl):
    done = hpcfl(
        "run", job, override(module, "model", "Evaluating"), "--out", module.parent / "run"
    )
    assert done.code == 1
    where = f"HookError: round 2 in forward {line_of(module, 'Evaluating')}: ValueError: too late"
    assert done.err[-1].startswith(where)
    assert "Traceback" not in "\n".join(done.err)


def test_what_load_draws_follows_from_the_seed(module, job, hpcfl):
    for run in ("one", "two"):
        np.random.rand()  # noqa: NPY002  # what ran before must not matter
        arguments = (override(module, "data", "Shuffled"), "--out", module.parent / run)
        assert hpcfl("run", job, *arguments).code == 0
    logs = [(module.parent / run / "log.jsonl").read_text().splitlines() for run in ("one", "two")]
    losses = [[json.loads(line).get("train_loss") for line in log] for log in logs]
    assert losses[0] == losses[1]


def parts_of(job, *overrides):
    return build_components(load(job, list(overrides)), torch.device("cpu"))


def test_data_that_do_not_fit_a_model_of_hpcfl(job, refused):
    """No class is the user's, but the numbers are."""
    line = refused("check", "--data", job, "model={name: char_lstm}")
    assert "model.name: char_lstm: cannot be trained on a batch of data.kind arrays (inputs" in line
    assert "RuntimeError: Expected tensor for argument #1 'indices'" in line


def test_a_shape_that_a_loss_refuses():
    """torch raises it in C, called by a line of hpcfl's."""
    with pytest.raises(RuntimeError) as caught:
        squared(torch.zeros(2, 3), torch.zeros(5))
    assert trial._refused_by_torch(caught.value)
    assert is_fault_of_hpcfl(ValueError(), Linear())
    with pytest.raises(AttributeError) as caught:
        squared(None, None)
    assert not trial._refused_by_torch(caught.value)


FAULTS = {
    "an algorithm": (FedHBM, "finish"),
    "a model": (nn.Flatten, "forward"),
    "the data": (ClientPool, "task"),
    "the gradient": (Gradient, "stochastic"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_of_hpcfl_keeps_its_traceback(fault, job, monkeypatch, own_process):
    """It is not told as a fault of the job, in which every class is hpcfl's."""
    parts = parts_of(job)
    owner, name = FAULTS[fault]
    monkeypatch.setattr(owner, name, None)
    with pytest.raises(TypeError, match="'NoneType' object is not callable"):
        check_classes(parts, resumed=False)


def test_a_fault_of_hpcfl_in_a_dry_round_keeps_its_traceback(job, monkeypatch, own_process):
    monkeypatch.setattr(FedAvg, "finish", None)
    for play in (
        check_algorithm_without_data,
        lambda loaded: build_components(loaded, torch.device("cpu")),
    ):
        with pytest.raises(TypeError, match="'NoneType' object is not callable"):
            play(load(job, ["algorithm={name: fedavg}"]))


def test_a_class_of_the_users_is_told_of_where_hpcfl_stumbles(module, job, refused):
    line = refused("check", job, override(module, "algorithm", "Empty"))
    assert line.startswith("JobError: algorithm.name: mine.Empty: its dry round failed in broadc")
    assert "Empty.broadcast returns a NoneType; expected a NamedTuple with x" in line


@pytest.mark.parametrize("data", [[], ["--data"]])
def test_a_hook_with_other_arguments_is_told_the_expected_ones(module, job, refused, data):
    line = refused("check", job, override(module, "algorithm", "Short"), *data)
    assert f"in finish {line_of(module, 'Short')}: Short.finish takes" in line
    assert "takes (y, local, state), expected (y, local, message, state, client)" in line


@pytest.mark.parametrize("name", ["Bound", "Scaled"])
def test_a_hook_may_name_its_arguments_otherwise(name, module, job, hpcfl):
    assert hpcfl("check", job, override(module, "algorithm", name), "--data").code == 0


def test_memory_that_cannot_be_had_is_of_the_job():
    assert not is_fault_of_hpcfl(MemoryError())
    assert not is_fault_of_hpcfl(RuntimeError("CUDA out of memory. Tried to allocate 20.00 MiB."))
    assert is_fault_of_hpcfl(RuntimeError("no such key"), FedAvg())


def test_the_trial_leaves_no_trace(job, own_process):
    parts = parts_of(job)
    before, x0 = generators(), parts.model.x0.clone()
    check_classes(parts, resumed=False)
    assert generators() == before
    assert torch.equal(parts.model.x0, x0)
    assert parts.population.clients.pop_elapsed_s() == 0
