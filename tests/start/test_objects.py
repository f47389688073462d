"""hpcfl.run with Python objects: a model, data, classes of a script."""

import gc
import shutil
import subprocess
import sys
import textwrap
import weakref

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import Dataset, TensorDataset

import hpcfl
from hpcfl.comm.solo import Solo
from hpcfl.errors import DataError, JobError, StoreError
from hpcfl.job.load import load
from hpcfl.runs.layout import RunDir
from hpcfl.start import objects
from hpcfl.start.components.build import build_components
from hpcfl.start.objects import KeptFiles
from tests.forked import python

JOB = {
    "data": {"kind": "digits", "partition": {"kind": "dirichlet", "alpha": 0.5}, "clients": 4},
    "model": {"name": "linear"},
    "cohort": {"kind": "uniform", "size": 2},
    "algorithm": {"name": "fedavg"},
    "local": {"batch_size": 16, "lr": 0.1},
    "rounds": 2,
}


class Net(nn.Module):
    def __init__(self, hidden=3):
        super().__init__()
        self.first, self.last = nn.Linear(5, hidden), nn.Linear(hidden, 4)

    def forward(self, x):
        return self.last(torch.tanh(self.first(x)))


def make_net(outputs, input_shape):
    return nn.Linear(*input_shape, outputs)


def examples():
    random = np.random.default_rng(0)
    owners = random.permutation(np.arange(120) % 6)
    y = (owners + random.integers(0, 2, 120)) % 4
    x = (random.standard_normal((120, 5)) + 2 * np.eye(4, 5)[y]).astype(np.float32)
    return x, y, owners


def data(**changes):
    x, y, owners = examples()
    fields = {"train": (x[:90], y[:90]), "test": (x[90:], y[90:]), "owners": owners[:90]}
    return hpcfl.Data(**{**fields, **changes})


@pytest.fixture(autouse=True)
def quiet(own_process):
    torch.set_num_threads(1)


def test_the_bits_are_those_of_a_dotted_path_and_an_npz(tmp_path):
    x, y, owners = examples()
    np.savez(
        tmp_path / "own.npz", x=x[:90], y=y[:90], client=owners[:90], x_test=x[90:], y_test=y[90:]
    )
    named = {
        **JOB,
        "data": {"kind": "arrays", "path": str(tmp_path / "own.npz")},
        "model": {"name": "module", "of": f"{__name__}.Net"},
    }
    expected = hpcfl.run(named, out=tmp_path / "named")
    found = hpcfl.run(JOB, model=Net, data=data(), out=tmp_path / "objects")
    assert torch.equal(found.x, expected.x)
    assert [r["train_loss"] for r in found.log] == [r["train_loss"] for r in expected.log]
    assert found.accuracy == expected.log[-1]["test_accuracy"]
    assert found.directory == tmp_path / "objects"
    # Owners of other names in the same order are the same clients; torch data sets the same data.
    train = TensorDataset(torch.tensor(x[:90]), torch.tensor(y[:90]))
    other = (train, (x[90:], y[90:]), [f"user {owner}" for owner in owners[:90]])
    assert torch.equal(hpcfl.run(JOB, model=Net, data=other, out=tmp_path / "b").x, expected.x)


def test_owners_of_tests():
    """Of any names in the order of the clients; a stranger's tests are nobody's."""
    _, _, owners = examples()
    found = data(test_owners=[*owners[90:119], 77]).arrays()["client_test"]
    assert found.tolist() == [*owners[90:119], -1]
    names = [f"user {owner}" for owner in owners]
    named = data(owners=names[:90], test_owners=[*names[90:119], "someone"]).arrays()
    assert named["client_test"].tolist() == found.tolist()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"owners": None}, "test_owners needs owners and test beside it"),
        ({"test": None}, "test_owners needs owners and test beside it"),
        ({"test_owners": [0]}, r"test_owners is int64 of shape \(1,\), expected .*\(30,\)"),
        (
            {"test_owners": ["a"] * 30},
            "test_owners is <U1, owners int64; expected integers in",
        ),
    ],
)
def test_wrong_owners_of_tests(changes, message):
    with pytest.raises(DataError, match=message):
        data(**{"test_owners": [0] * 30, **changes}).arrays()


class Words(nn.Module):
    """The mean of the embeddings of a sentence's words, without its padding."""

    def __init__(self, outputs):
        super().__init__()
        self.embedding = nn.Embedding(9, 4)
        self.fc = nn.Linear(4, outputs)

    def forward(self, x):
        assert x.dtype == torch.int64
        mask = (x != 0).unsqueeze(-1)
        return self.fc((self.embedding(x) * mask).sum(1) / mask.sum(1))


SENTENCES = [[1 + (k + i) % 8 for i in range(1 + k % 5)] for k in range(90)]


class Sentences(Dataset):
    def __len__(self):
        return len(SENTENCES)

    def __getitem__(self, index):
        return torch.tensor(SENTENCES[index]), index % 4


@pytest.mark.slow
def test_lists_of_integers_are_filled_up_and_stay_integers(tmp_path):
    labels, test = [k % 4 for k in range(90)], ([[8] * 7, [3]], [0, 1])
    ragged = hpcfl.Data((SENTENCES, labels), test, integers=True)
    arrays = ragged.arrays()
    assert arrays["x"].shape == (90, 7)  # the longest is a test
    assert arrays["x"][3].tolist() == [*SENTENCES[3], 0, 0, 0]
    assert arrays["x_test"].tolist() == [[8] * 7, [3, 0, 0, 0, 0, 0, 0]]
    found = hpcfl.run(JOB, model=Words, data=ragged, out=tmp_path / "a")
    assert hpcfl.load_model(tmp_path / "a").embedding.weight.shape == (9, 4)
    others = [
        hpcfl.Data(Sentences(), test, integers=True),
        hpcfl.Data((arrays["x"], labels), (arrays["x_test"], test[1]), integers=True),
    ]
    for number, other in enumerate(others):
        again = hpcfl.run(JOB, model=Words, data=other, out=tmp_path / str(number))
        assert torch.equal(again.x, found.x)
    np.savez(tmp_path / "own.npz", **arrays)
    kept = {"kind": "arrays", "path": str(tmp_path / "own.npz"), "integers": True}
    job = {**JOB, "data": {**JOB["data"], **kept}}
    assert torch.equal(hpcfl.run(job, model=Words, out=tmp_path / "file").x, found.x)


@pytest.mark.parametrize(
    ("x", "integers", "error"),
    [
        ([[1, 2], [3]], False, "train, x: a list is no array .*unequal length need integers=True"),
        ([[1, 2], [0]], True, "train, x: list 1 holds 0, which fills up lists of unequal length"),
        (
            {"ids": [[5, 6], [7]], "token_type_ids": [[0, 0], [0]]},
            False,
            "'token_type_ids'.: list 0 holds 0.* a tokenizer does by padding='max_length'",
        ),
        ([[1, 2], []], True, r"train, x: list 1 is \[\], expected at least one integer"),
        ([[1, 2], [0.5]], True, r"train, x: list 1 is \[0.5\], expected at least one integer"),
        ([[1, 2], [[3]]], True, "train, x: a list is no array of numbers"),
        ([[1.5, 2], [3, 4]], True, "x is float64, but data.integers is true; store integers"),
    ],
)
def test_lists_that_are_no_sentences(x, integers, error):
    with pytest.raises(DataError, match=error) as found:
        hpcfl.Data((x, [0, 1]), integers=integers).arrays()
    assert "\n" not in str(found.value)


def test_lists_in_an_array_of_objects_or_a_series():
    """As a tokenizer or pandas gives them: the line says what makes lists of them."""
    pandas = pytest.importorskip("pandas", reason="pandas is absent")
    for rows in ([[1, 2], [3, 4]], [[1, 2], [3]]):
        objects = np.empty(2, object)
        objects[:] = rows
        for x in (objects, pandas.Series(rows)):
            for given in (x, {"ids": x}):
                with pytest.raises(DataError, match=r"pass the \.tolist\(\) of a Series or"):
                    hpcfl.Data((given, [0, 1])).arrays()
            lists = hpcfl.Data((x.tolist(), [0, 1]), integers=True).arrays()["x"]
            assert lists.tolist() == [[1, 2], [3, *rows[1][1:], *[0] * (2 - len(rows[1]))]]
    with pytest.raises(DataError, match=r"at most 64 bits$"):
        hpcfl.Data((np.array(["a", "b"], object), [0, 1])).arrays()


def test_labels_of_objects_are_what_the_caller_says(tmp_path):
    x, y, _ = examples()
    given = hpcfl.Data((x[:90], y[:90]), (x[90:], y[90:]), label_type="numbers")
    job = {**JOB, "data": {"clients": 4}}
    done = hpcfl.run(job, data=given, out=tmp_path / "run")
    assert "test_loss" in done.log[-1]
    assert "test_accuracy" not in done.log[-1]
    assert hpcfl.check(tmp_path / "run" / "job.yaml", load=True).parameters == 6
    with pytest.raises(JobError, match=r"data\.label_type: .*'classes', 'numbers' or 'bits'"):
        hpcfl.check(job, data=hpcfl.Data((x, y), label_type="regression"), load=True)


@pytest.mark.parametrize("dtype", [object, np.dtypes.StringDType()])
def test_owners_as_pandas_has_them(dtype):
    """Strings in an array of Python objects, or in numpy's type of strings of any length."""
    names = [f"user {owner}" for owner in examples()[2][:90]]
    expected = data(owners=names).arrays()["client"]
    found = data(owners=np.array(names, dtype)).arrays()["client"]
    assert found.tolist() == expected.tolist()
    with pytest.raises(DataError, match="data: owners is object of shape"):
        data(owners=np.array([*names[:-1], None], object)).arrays()


def test_arrays_in_any_layout(tmp_path):
    """Turned, of the other byte order, with gaps, not writable: the same examples."""
    x, y, _ = examples()
    still = x.copy()
    still.flags.writeable = False
    turned = np.ascontiguousarray(x[:, ::-1])[:, ::-1]
    found = [
        hpcfl.run(JOB, model=Net, data=hpcfl.Data((given, y)), out=tmp_path / str(n)).x
        for n, given in enumerate((x, turned, x.astype(">f4"), np.repeat(x, 2, 1)[:, ::2], still))
    ]
    assert all(torch.equal(one, found[0]) for one in found)


def test_numbers_beyond_the_precision_are_refused(tmp_path):
    x, y, _ = examples()
    large = hpcfl.Data((x.astype(np.float64) * 1e300, y))
    with pytest.raises(JobError, match=r"data: holds numbers up to .*e\+300, .* in float32; scale"):
        hpcfl.check(JOB, model=Net, data=large, load=True)
    hpcfl.check(JOB, {"precision": "float64"}, model=Net, data=large, load=True)


def test_the_job_divides_data_without_owners(tmp_path):
    result = hpcfl.run(JOB, model=Net, data=data(owners=None), out=tmp_path / "run")
    checked = hpcfl.check(result.directory / "job.yaml", load=True)
    assert (checked.clients, checked.examples) == (4, 90)
    assert checked.job["data"]["partition"]["kind"] == "dirichlet"
    assert "4 clients" in str(checked)


def test_owners_divide_the_data_and_the_job_says_the_rest(tmp_path):
    """Only data.partition and data.clients are left out: the owners take their place."""
    kept = {"validation": {"share": 0.25}, "holdout": 0.25}
    job = {**JOB, "data": {**JOB["data"], **kept}}
    result = hpcfl.run(job, {"evaluate.best": True}, model=Net, data=data(), out=tmp_path / "run")
    assert "validation_accuracy" in result.log[-1]
    found = hpcfl.check(tmp_path / "run" / "job.yaml").job["data"]
    assert (found["validation"]["share"], found["holdout"]) == (0.25, 0.25)
    assert (found["partition"], found["clients"]) == (None, None)
    drawn = hpcfl.check(
        {**job, "data": {"natural_clients": 3}}, model=Net, data=data(test=None), load=True
    )
    assert drawn.clients == 3
    with pytest.raises(JobError, match="natural_clients is 9, but the data set has 6 clients"):
        hpcfl.check({**job, "data": {"natural_clients": 9}}, model=Net, data=data(), load=True)


def test_a_module_starts_from_its_present_weights(tmp_path, capsys):
    torch.manual_seed(5)
    net = nn.Sequential(nn.Flatten(), nn.Linear(5, 4), nn.Dropout(0.5))
    before = [p.detach().clone() for p in net.parameters()]
    result = hpcfl.run(JOB, model=net, data=data(), out=tmp_path / "run")
    assert "starts from the module's present weights" in capsys.readouterr().err
    assert all(map(torch.equal, net.parameters(), before))  # the object itself is not trained
    first = hpcfl.load_model(tmp_path / "run", round=0)
    assert all(map(torch.equal, first.parameters(), before))
    last = result.model()
    assert torch.equal(torch.cat([p.reshape(-1) for p in last.parameters()]), result.x)
    assert not last.training
    assert type(last[2]) is nn.Dropout
    again = hpcfl.run({**JOB, "rounds": 1}, model=net, data=data(), out=tmp_path / "one")
    shutil.move(again.directory, tmp_path / "moved")
    assert torch.equal(hpcfl.resume(tmp_path / "moved", {"rounds": 2}).x, result.x)
    copy = hpcfl.resume(tmp_path / "moved", {"rounds": 3}, out=tmp_path / "copy")
    shutil.rmtree(tmp_path / "moved")
    assert hpcfl.resume(copy.directory).rounds == 3


class Attentive(nn.Module):
    """Its own method needs an argument, so it is not that of a layer."""

    def __init__(self):
        super().__init__()
        self.encoder = nn.TransformerEncoder(
            nn.TransformerEncoderLayer(5, 1, 8, batch_first=True), 2, enable_nested_tensor=False
        )
        self.last = nn.Linear(5, 4)

    def _reset_parameters(self, value):
        raise NotImplementedError

    def forward(self, x):
        return self.last(self.encoder(x[:, None])[:, 0])


def test_random_initialisations_of_a_kept_transformer(tmp_path):
    """Nothing of the kept weights is left, not even in the attention's own parameters."""
    net, kept = Attentive(), 7.0
    for parameter in net.parameters():
        nn.init.constant_(parameter, kept)
    job = {**JOB, "algorithm": {"name": "fedhbm", "first": "random"}, "rounds": 1}
    result = hpcfl.run(job, model=net, data=data(), out=tmp_path / "run")
    parts = build_components(load(result.directory / "job.yaml"), torch.device("cpu"))
    assert (parts.model.x0 == kept).all()
    sizes = [parameter.numel() for parameter in net.parameters()]
    one, other = (parts.random_init(client)().split(sizes) for client in (0, 1))
    for (name, _), first, second in zip(net.named_parameters(), one, other, strict=True):
        assert not (first == kept).any(), name
        # Constants as when the layer is made, after the dense layer in it has drawn its own bias.
        constant = "norm" in name or name.endswith(("in_proj_bias", "out_proj.bias"))
        assert torch.equal(first, second) == constant, name


def test_a_layer_that_two_others_share_is_drawn_once(tmp_path, monkeypatch):
    drawn = []
    draw = nn.Linear.reset_parameters
    monkeypatch.setattr(
        nn.Linear, "reset_parameters", lambda self: (drawn.append(self), draw(self))
    )
    shared = nn.Linear(5, 5)
    net = nn.Sequential(nn.Sequential(shared), nn.ReLU(), nn.Sequential(shared), nn.Linear(5, 4))
    result = hpcfl.run({**JOB, "rounds": 1}, model=net, data=data(), out=tmp_path / "run")
    job = load(result.directory / "job.yaml").job
    drawn.clear()
    job.model.build((5,), 4)
    assert len(drawn) == len(set(map(id, drawn))) == 2


def test_a_function_is_told_the_shape(tmp_path):
    checked = hpcfl.check(JOB, model=make_net, data=data(), load=True)
    assert checked.parameters == 24
    assert hpcfl.plan_job(JOB, model=make_net, data=data()).resources.parameters == 24


def test_the_run_is_of_these_objects(tmp_path):
    hpcfl.run(JOB, model=Net, data=data(), out=tmp_path / "run")
    more = {**JOB, "rounds": 3}
    again = hpcfl.run(more, model=Net, data=data(), out=tmp_path / "run", continued=True)
    assert again.rounds == 3
    with pytest.raises(JobError, match=r"holds a run of another job: it keeps no data-"):
        hpcfl.run(JOB, model=Net, data=data(owners=None), out=tmp_path / "run", continued=True)
    (file,) = (tmp_path / "run/kept").glob("data-*")
    file.write_bytes(file.read_bytes()[:-9] + b"\0" * 9)
    with pytest.raises(DataError):
        hpcfl.resume(tmp_path / "run", {"rounds": 4})


class Noisy(Dataset):
    def __len__(self):
        return 10

    def __getitem__(self, index):
        return torch.randn(5), index % 4


class WithNan(Dataset):
    def __len__(self):
        return 3

    def __getitem__(self, index):
        return torch.tensor([1.0, float("nan") if index == 1 else 0.0]), index


class Drawing(Dataset):
    """Adds noise to some items."""

    def __init__(self, noisy, generator=None):
        self.noisy, self.generator = noisy, generator

    def __len__(self):
        return 400

    def __getitem__(self, index):
        noise = torch.rand(5, generator=self.generator) if index in self.noisy else 0
        return torch.full((5,), float(index)) + noise, index % 4


@pytest.mark.parametrize(
    ("objects", "error"),
    [
        ({"model": nn.Linear}, "needs in_features, out_features"),
        ({"model": 3}, "found a int, expected a torch.nn.Module"),
        ({"data": 3}, "expected hpcfl.Data"),
        ({"data": hpcfl.Data(Noisy())}, "item 0 is another one each time"),
        ({"data": hpcfl.Data(WithNan())}, "x is not finite in row 1"),
        ({"data": hpcfl.Data(Drawing([7]))}, "its items draw from torch's generator as they are"),
        (
            {"data": hpcfl.Data(Drawing(range(50, 400), torch.Generator()))},
            "train: item 50 is another one each time",
        ),
        ({"data": hpcfl.Data((np.ones((3, 2)), [0, 1, 2]), owners=[0, 1])}, "owners is int64"),
        ({"data": hpcfl.Data((np.ones((3, 2)), [0, 1]))}, "x has 3 rows but y has shape"),
        ({"data": (np.ones((3, 2)), np.ones(3))}, "train is a ndarray, expected"),
        ({"data": hpcfl.Data((None, None))}, "data: x is object of shape (), expected an array"),
        ({"data": hpcfl.Data(({"a": 3}, [0]))}, "data: x.a is int64 of shape (), expected an arr"),
        ({"data": hpcfl.Data((np.ones((3, 2)), None))}, "data: y is object of shape (), expected"),
    ],
)
def test_an_object_that_cannot_be_used_is_refused_in_one_line(objects, error):
    with pytest.raises(JobError) as found:
        hpcfl.check(JOB, **objects)
    assert error in str(found.value)
    assert "\n" not in str(found.value)


def test_overrides_are_a_mapping(tmp_path):
    overrides = {
        "local.lr": np.float32(1e-5),
        "local": {"epochs": 2},
        "algorithm": {"name": "scaffold"},
        "evaluate": {"every": 2},
    }
    job = hpcfl.check({**JOB, "algorithm": {"name": "fedhbm", "beta": 0.5}}, overrides).job
    assert job["local"]["lr"] == pytest.approx(1e-5)
    assert (job["local"]["epochs"], job["local"]["batch_size"]) == (2, 16)
    assert (job["algorithm"]["name"], "beta" in job["algorithm"]) == ("scaffold", False)
    with pytest.raises(JobError, match=r"overrides: local\.lr: found a object"):
        hpcfl.check(JOB, {"local.lr": object()})
    with pytest.raises(JobError, match=r"expected a list of 'key\.path=value'"):
        hpcfl.check(JOB, "rounds=3")


def own_metric(outputs, labels):
    return outputs[:, 0]


def test_values_of_numpy_functions_and_no_overrides():
    model, job = nn.Linear(5, 4), {**JOB, "rounds": np.int64(7), "block_size": None}
    overrides = {
        "cohort": {"kind": "replay", "rounds": np.array([[0, 1], [1, 2]])},
        "evaluate.metrics": [own_metric],
        "rounds": torch.tensor(2),
    }
    found = hpcfl.check(job, overrides, model=model, data=data()).job
    assert found["rounds"] == 2
    assert found["evaluate"]["metrics"] == [f"{__name__}.own_metric"]
    assert found["cohort"]["rounds"] == [[0, 1], [1, 2]]
    job = {**JOB, "rounds": np.int64(7), "data": None, "model": {"name": "module", "of": Net}}
    assert hpcfl.check(job, None, data=data()).job["rounds"] == 7


@pytest.mark.parametrize(
    ("job", "overrides", "error"),
    [
        (
            None,
            (),
            "job: found None, expected a job file, the name of a packaged job, or a mapping",
        ),
        (
            {**JOB, "rounds": object()},
            (),
            r"job\.rounds: found a object, expected a number, a text",
        ),
        (JOB, {"evaluate": {"metrics": [len]}}, r"evaluate\.metrics\.0: found a builtin_function"),
        ({**JOB, "algorithm": None}, (), "algorithm: found None, expected a section"),
        (JOB, {"algorithm.name": "mine.py:Foo"}, "algorithm.name: found 'mine.py:Foo', a file"),
        (JOB, 3, "overrides: found 3, expected a list"),
    ],
)
def test_another_value_is_refused_in_one_line(job, overrides, error):
    with pytest.raises(JobError, match=error) as found:
        hpcfl.check(job, overrides, data=data())
    assert "\n" not in str(found.value)


def test_sizes_that_no_data_has_are_refused():
    with pytest.raises(JobError, match="clients is 20, but there are 10 training examples"):
        hpcfl.plan_job("quickstart", sizes={"clients": 20, "train": 10, "shape": (64,)})
    with pytest.raises(JobError, match="ranks: found 0, expected 1 at least"):
        hpcfl.plan_job(JOB, ranks=0)


def test_objects_are_measured_on_one_rank(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    made = hpcfl.plan_job(JOB, model=make_net, data=data(), measure=True)
    assert made.prediction.hours > 0
    assert made.memory.rank > 0
    assert not [*tmp_path.iterdir()]
    for name, value in (("SIZE", "2"), ("RANK", "1"), ("LOCAL_RANK", "1")):
        monkeypatch.setenv(f"OMPI_COMM_WORLD_{name}", value)
    with pytest.raises(JobError, match="measure=True measures objects on one rank alone; put"):
        hpcfl.plan_job(JOB, model=make_net, data=data(), measure=True)


def test_nothing_of_the_data_is_held_but_what_the_run_loads(tmp_path):
    """What was passed is written into the file, and then left to the caller."""

    class Watch(hpcfl.Callback):
        def start(self, run):
            gc.collect()
            self.alive = [part() is not None for part in parts]

    x, y, owners = examples()
    train, parts = TensorDataset(torch.tensor(x), torch.tensor(y)), []
    made, watch = objects.write_arrays, Watch()

    def write(arrays, file):
        parts.extend(map(weakref.ref, arrays.values()))
        made(arrays, file)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(objects, "write_arrays", write)
        own = hpcfl.Data(train, owners=owners)
        hpcfl.run(JOB, model=Net, data=own, out=tmp_path / "run", callbacks=[watch])
    assert watch.alive == [False] * 3


def test_export_log_and_report(tmp_path, monkeypatch):
    for name in ("a", "b"):
        hpcfl.run(JOB, {"seed": ord(name)}, model=Net, data=data(), out=tmp_path / name)
    files = hpcfl.export(tmp_path / "a", tmp_path / "x.npz", state_dict=tmp_path / "s.safetensors")
    assert all(file.stat().st_size for file in files)
    report = hpcfl.report_runs(tmp_path, plot=tmp_path / "p.png")
    assert [row["run"] for row in report.values][:2] == ["a", "b"]
    assert "seed 97" in str(report)
    assert "$RUN" not in str(report)  # equal objects do not distinguish runs
    assert (tmp_path / "p.png").stat().st_size
    one, listed = (hpcfl.report_runs(tmp_path, target_accuracies=a) for a in (0.05, [0.05]))
    assert one.values == listed.values != report.values
    shutil.rmtree(tmp_path / "b/checkpoints")
    (tmp_path / "b/log.jsonl").unlink()
    rows, plot = [tmp_path / "a", tmp_path / "b"], tmp_path / "p.png"
    drawn = hpcfl.report_runs(rows, plot=plot, y="train_loss")
    assert f"plot: without {tmp_path / 'b'}, which have no such number yet" in drawn.notes
    with pytest.raises(JobError, match="expected one of runs, seeds"):
        hpcfl.report_runs([tmp_path / "a"], layout="rows")
    with pytest.raises(JobError, match="directories: found none, expected those of a run"):
        hpcfl.report_runs([])
    log = hpcfl.read_log(tmp_path / "a")
    assert list(log["round"]) == [1, 2]
    assert log["test_accuracy"].notna().tolist() == [False, True]
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(JobError, match="pip install pandas"):
        hpcfl.read_log(tmp_path / "a")


SCRIPT = textwrap.dedent('''
    import sys
    import threading
    from dataclasses import dataclass

    import numpy as np
    import torch
    import torch.nn.functional as F
    from torch import nn

    import hpcfl
    from hpcfl.algorithms.fedavg import FedAvg
    from hpcfl.types import Share

    HIDDEN, lock = 3, threading.Lock()


    def squash(x):
        return F.relu(x)


    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.last = nn.Linear(5, HIDDEN), nn.Linear(HIDDEN, 4)

        def forward(self, x):
            return self.last(squash(self.first(x)))


    class Unkept(Net):
        def forward(self, x):
            with lock:
                return super().forward(x)


    @dataclass(frozen=True, kw_only=True)
    class Half(FedAvg):
        """Half of FedAvg's step."""

        share: Share = 0.5
        """Of the step."""

        def update(self, server, mean, cohort):
            return server._replace(x=server.x - self.share * mean.delta)


    from tests.start.test_objects import JOB, data

    what, out, rounds = sys.argv[1:4]
    given = data()
    rank = int(__import__("os").environ.get("RANK", 0))
    if what == "differ" and rank:
        given = data(owners=None)
    # As in cells of notebooks: the objects are equal, and the bytes of their pickles are not.
    Net.forward.__code__ = Net.forward.__code__.replace(co_filename=f"cell {rank}")
    torch.manual_seed(3)
    model = {"module": Net(), "unkept": Unkept}.get(what, Net)
    own = {"name": Half, "share": 0.25}
    hpcfl.run(JOB, {"rounds": int(rounds), "algorithm": own}, model=model, data=given, out=out)
''')


@pytest.fixture
def script(tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT)

    def start(what, name, rounds, ranks=1):
        out = tmp_path / name
        ended = python(ranks, tmp_path / "script.py", what, out, rounds)
        return ended, out

    return start


@pytest.mark.slow
@pytest.mark.parametrize("what", ["class", "module"])
def test_classes_of_a_script_on_two_ranks_and_from_another_process(tmp_path, script, what):
    ended, whole = script(what, "whole", 3)
    assert ended.returncode == 0, ended.stderr
    assert "Half (server_lr 1.0, share 0.25)" in ended.stderr
    ended, begun = script(what, "begun", 1, ranks=2)
    assert ended.returncode == 0, ended.stderr
    # This process knows none of the script's classes.
    assert torch.equal(hpcfl.resume(begun, {"rounds": 3}).x, final(whole))
    first, second = (
        sorted(file.stem[:-16] for file in (run / "kept").iterdir()) for run in (whole, begun)
    )
    assert first == second
    assert type(hpcfl.load_model(whole)).__name__ == "Net"
    (file,) = (whole / "kept").glob("objects-*")
    file.write_bytes(file.read_bytes() + b"\n")
    other = python(1, "-m", "hpcfl", "export", whole, "--state-dict", tmp_path / "s.safetensors")
    assert other.returncode == 2, other.stderr
    assert "was changed: its digest is not that in its name; put it back" in other.stderr


def final(directory):
    model = hpcfl.load_model(directory)
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()])


class WithoutGpu(Solo):
    """A group of which any collective but ``allgather`` needs a GPU, as NCCL's do."""

    def __init__(self, texts):
        self.texts = texts

    def allgather(self, text):
        return self.texts

    def _refuse(self, *args):
        raise AssertionError("no GPU is taken yet")

    bcast = allreduce_sum = allreduce_max = barrier = exchange = _refuse


def test_objects_are_compared_before_a_gpu_is_taken(tmp_path):
    """Else all ranks of a host would meet on its first GPU, which NCCL refuses."""
    folder, loaded = RunDir(tmp_path), load(JOB)
    KeptFiles().agree(loaded, folder, WithoutGpu(["", "", ""]))
    texts = [
        "data-b.npz objects-a-1.pkl",
        "data-b.npz objects-a-2.pkl",
        "data-d.npz objects-c-3.pkl",
    ]
    with pytest.raises(JobError, match="rank 2 was given another data and objects than rank") as e:
        KeptFiles().agree(loaded, folder, WithoutGpu(texts))
    assert e.value.collective


@pytest.mark.slow
def test_what_cannot_be_kept_or_differs_between_ranks_is_refused(script):
    ended, out = script("unkept", "unkept", 1)
    assert ended.returncode != 0
    assert "hpcfl.run: Unkept, Half cannot be pickled" in ended.stderr
    assert "cannot pickle '_thread.lock' object" in ended.stderr
    assert not out.exists()
    ended, out = script("differ", "differ", 1, ranks=2)
    assert ended.returncode != 0
    assert "rank 1 was given another data than rank 0; make the objects equal" in ended.stderr
    assert not out.exists()


def test_a_damaged_module_is_named(tmp_path):
    result = hpcfl.run(JOB, model=nn.Linear(5, 4), data=data(), out=tmp_path / "run")
    (file,) = (tmp_path / "run/kept").glob("*.pkl")
    file.write_bytes(b"nothing")
    with pytest.raises(StoreError, match=r"objects-[-\w]+\.pkl: was changed: its digest is not"):
        result.model()


def test_a_refused_start_keeps_the_files_of_a_run_without_checkpoints(tmp_path):
    run = tmp_path / "run"
    hpcfl.run(JOB, model=nn.Linear(5, 4), data=data(), out=run)
    for path in run.glob("checkpoints/*/manifest.json"):
        path.unlink()
    before = sorted((run / "kept").iterdir())
    with pytest.raises(JobError, match="holds the log of a run, but none of its checkpoints"):
        hpcfl.run(JOB, model=nn.Linear(5, 4, bias=False), data=data(), out=run)
    assert sorted((run / "kept").iterdir()) == before


def test_importing_hpcfl_does_not_import_torch():
    code = "import sys, hpcfl; sys.exit('torch' in sys.modules or 'numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
