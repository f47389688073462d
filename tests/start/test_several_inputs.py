"""A model with several inputs, from its data to its export."""

import inspect
import json

import numpy as np
import pytest
import torch
import yaml
from torch import nn

import hpcfl
from hpcfl.errors import JobError
from hpcfl.runs.log_keys import measured
from tests.forked import finish
from tests.parallel.outcome import outcome

RANDOM = np.random.default_rng(0)
LENGTHS = RANDOM.integers(1, 6, 90)
MASK = np.arange(5) < LENGTHS[:, None]
IDS = np.where(MASK, RANDOM.integers(1, 12, (90, 5)), 0)
Y = (IDS.max(1) > 8).astype(np.int64) + (IDS.sum(1) > 20)
JOB = {
    "data": {"clients": 6, "partition": {"kind": "iid"}},
    "rounds": 3,
    "seed": 5,
    "algorithm": {"name": "scaffold"},
    "cohort": {"kind": "uniform", "size": 3},
    "local": {"epochs": 1, "batch_size": 4, "lr": 0.1},
    "evaluate": {"every": 1, "metrics": [f"{__name__}.margin"], "personal": {"steps": 1}},
}


class Words(nn.Module):
    def __init__(self, outputs):
        super().__init__()
        self.table, self.out = nn.Embedding(12, 4), nn.Linear(4, outputs)
        self.drop = nn.Dropout(0.1)

    def forward(self, ids, mask):
        assert (ids.dtype, mask.dtype) == (torch.int64, torch.bool)
        kept = mask.unsqueeze(-1)
        mean = (self.table(ids) * kept).sum(1) / kept.sum(1)
        return self.out(self.drop(mean))


class Unpacks(Words):
    """Takes the ids and the mask side by side."""

    def forward(self, both):
        return super().forward(both[:, :5].contiguous(), both[:, 5:].bool())


class Other(Words):
    def forward(self, ids, masks):
        return super().forward(ids, masks)


class Dated(nn.Module):
    """An image and a number of an example; the last layer learns of their width by itself."""

    def __init__(self, input_shape, outputs):
        super().__init__()
        channels, *_ = input_shape["image"]
        assert input_shape["day"] == ()
        self.conv, self.out = nn.Conv2d(channels, 2, 3), nn.LazyLinear(outputs)

    def forward(self, day, image):
        return self.out(torch.cat([self.conv(image).relu().flatten(1), day.view(-1, 1)], 1))


def margin(outputs, labels):
    two = outputs.topk(2).values
    return two[:, 0] - two[:, 1]


def data(x, **fields):
    part = {name: array[60:] for name, array in x.items()}
    train = ({name: array[:60] for name, array in x.items()}, Y[:60])
    return hpcfl.Data(train, (part, Y[60:]), **fields)


def run(out, model, examples, **overrides):
    return hpcfl.run(JOB, overrides, model=model, data=examples, out=out)


def same(one, other):
    assert torch.equal(one.x, other.x)
    logs = [
        [{k: v for k, v in line.items() if not measured(k)} for line in r.log] for r in (one, other)
    ]
    assert logs[0] == logs[1]


@pytest.mark.parametrize("executor", ["sequential", "block"])
def test_several_inputs_are_those_that_a_model_takes_apart_itself(tmp_path, executor):
    by_name = run(tmp_path / "a", Words, data({"ids": IDS, "mask": MASK}), executor=executor)
    both = np.concatenate([IDS, MASK], 1)
    side_by_side = hpcfl.Data((both[:60], Y[:60]), (both[60:], Y[60:]), integers=True)
    same(by_name, run(tmp_path / "b", Unpacks, side_by_side, executor=executor))
    assert "test_margin" in by_name.log[-1]
    assert any(key.startswith("personal_") for key in by_name.log[-1])


def test_a_model_stays_what_it_is(tmp_path):
    made = []

    class Seen(hpcfl.Callback):
        def round(self, record, model):
            inputs = {"ids": torch.from_numpy(IDS[:2]), "mask": torch.from_numpy(MASK[:2])}
            made.append(model.module()(**inputs))

    torch.manual_seed(1)
    passed = Words(3)
    found = hpcfl.run(
        JOB, model=passed, data=data({"ids": IDS, "mask": MASK}), out=tmp_path / "run",
        callbacks=[Seen()],
    )  # fmt: skip
    assert not passed._forward_pre_hooks
    model = found.model()
    assert type(model) is Words
    assert not model._forward_pre_hooks
    outputs = model(ids=torch.from_numpy(IDS[60:]), mask=torch.from_numpy(MASK[60:]))
    right = (outputs.argmax(1) == torch.from_numpy(Y[60:])).double().mean()
    assert right.item() == pytest.approx(found.accuracy)
    assert torch.equal(made[-1], model(torch.from_numpy(IDS[:2]), torch.from_numpy(MASK[:2])))


@pytest.mark.parametrize("executor", ["sequential", "block"])
@pytest.mark.parametrize("precision", ["float32", "float64"])
def test_an_image_and_a_number(tmp_path, executor, precision):
    x = {"image": RANDOM.random((90, 1, 4, 4)), "day": RANDOM.random(90).astype(np.float32)}
    found = run(tmp_path, Dated, data(x), executor=executor, precision=precision)
    assert found.rounds == 3
    assert found.model()(**{k: torch.from_numpy(v).to(found.x.dtype) for k, v in x.items()}).shape


@pytest.mark.parametrize(
    ("model", "x", "message"),
    [
        (
            Other,
            {"ids": IDS, "mask": MASK},
            r"cannot be called with the inputs ids, mask by name in forward \(.+\): missing a "
            r"required argument: 'masks'; name the arguments of forward as the inputs",
        ),
        (
            {"name": "linear"},
            {"ids": IDS, "mask": MASK},
            r"model.name: linear takes one input, and this data has ids int64\[5\], mask bool\[5\]",
        ),
        (
            Words,
            {"ids": IDS, "mask": MASK[:, :4]},
            r"data.kind .+ \(ids int64\[4, 5\], mask bool\[4, 4\], labels int64\[4\]\)",
        ),
        (
            Dated,
            {"image": np.full((90, 1, 4, 4), 1e200), "day": Y},
            "data: holds numbers up to 1e\\+200, which are infinite in float32",
        ),
    ],
)
def test_what_does_not_fit_is_one_line(tmp_path, model, x, message):
    job = JOB
    if isinstance(model, dict):
        job, model = {**JOB, "model": model}, None
    with pytest.raises(JobError, match=message) as caught:
        hpcfl.run(job, model=model, data=data(x), out=tmp_path / "run")
    assert "\n" not in str(caught.value)


def test_files_ranks_resume_and_record(tmp_path, monkeypatch):
    (tmp_path / "words.py").write_text(
        f"import torch\nfrom torch import nn\n\n\n{inspect.getsource(Words)}"
    )
    env = {"PYTHONPATH": str(tmp_path)}
    arrays = {"x.ids": IDS[:60], "x.mask": MASK[:60], "y": Y[:60]}
    arrays |= {"x_test.ids": IDS[60:], "x_test.mask": MASK[60:], "y_test": Y[60:]}
    np.savez(tmp_path / "own.npz", **arrays)
    source = {"kind": "arrays", "path": str(tmp_path / "own.npz"), **JOB["data"]}
    model = {"name": "module", "of": "words.Words"}
    job = {**JOB, "data": source, "model": model, "evaluate": {"every": 1}}
    file = tmp_path / "job.yaml"
    file.write_text(yaml.safe_dump(job))

    def hpcfl_ends(ranks, *args):
        ended = finish(ranks, *args, env=env)
        assert ended.returncode == 0, ended.stderr
        return ended.stdout

    whole, halted, again = (tmp_path / name for name in ("whole", "halted", "again"))
    said = hpcfl_ends(1, "check", file, "--data")
    assert "forward     ids int64[5], mask bool[5]" in said
    assert f"trained on  ids 0 to {IDS[:60].max()}, mask False to True" in said
    hpcfl_ends(1, "run", file, "rounds=4", "--out", whole)
    hpcfl_ends(2, "run", file, "rounds=2", "--out", halted)
    hpcfl_ends(2, "resume", halted, "rounds=4")
    hpcfl_ends(1, "export", whole, "--record", tmp_path / "record")
    path = f"data.path={tmp_path / 'own.npz'}"
    hpcfl_ends(2, "run", tmp_path / "record", path, "--out", again)
    monkeypatch.syspath_prepend(tmp_path)
    assert outcome(halted) == outcome(again) == outcome(whole)
    swapped = {**arrays, "x.mask": ~MASK[:60]}
    np.savez(tmp_path / "own.npz", **swapped)
    ended = finish(1, "resume", whole, "rounds=5", env=env)
    assert ended.returncode == 2
    assert "its content changed since" in ended.stderr
    assert json.loads((whole / "log.jsonl").read_text().splitlines()[-1])["round"] == 4
