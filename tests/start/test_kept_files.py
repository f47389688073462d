"""The files in which a run keeps the objects of hpcfl.run: whose they are, and what they hold."""

import fcntl
import os
import shutil
import subprocess
import sys

import pytest
import torch
from torch import nn

import hpcfl as api
from hpcfl.errors import JobError, StoreError
from tests.forked import python
from tests.start.test_objects import JOB, data


class Scaled(nn.Module):
    def __init__(self, scale):
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.scale = nn.Linear(5, 4), scale

    def forward(self, x):
        return self.layer(x) * self.scale


def double(module, inputs, output):
    return output * 2


def with_hook(scale):
    net = Scaled(scale)
    net.layer.register_forward_hook(double)
    return net


def with_buffer(value):
    net = Scaled(1.0)
    net.register_buffer("factor", torch.tensor(value), persistent=False)
    return net


@pytest.fixture(autouse=True)
def quiet(own_process):
    torch.set_num_threads(1)


def kept(run):
    return {path.name for path in (run / "kept").iterdir()}


@pytest.mark.parametrize(
    ("first", "second"),
    [(Scaled(1.0), Scaled(5.0)), (Scaled(1.0), with_hook(1.0)), (with_buffer(1.0), with_buffer(2))],
)
def test_all_of_a_module_counts(tmp_path, first, second):
    """Attributes, hooks and buffers that are not persistent are in neither repr nor state_dict."""
    expected = api.run(JOB, model=second, data=data(), out=tmp_path / "expected")
    run = tmp_path / "run"
    with pytest.raises(JobError, match="cohort"):
        api.run(JOB, {"cohort.size": 60}, model=first, data=data(), out=run)
    assert kept(run) != kept(tmp_path / "expected")
    (run / "kept" / "mine.txt").write_text("not hpcfl's to delete")
    assert torch.equal(api.run(JOB, model=second, data=data(), out=run).x, expected.x)
    assert len(kept(run)) == len(kept(tmp_path / "expected") | {"mine.txt"})
    with pytest.raises(JobError, match="run of another job: it keeps no objects-"):
        api.run(JOB, model=first, data=data(), out=run, continued=True)
    # An equal object is of this job.
    api.run(JOB, {"rounds": 3}, model=second, data=data(), out=run, continued=True)


def test_the_files_of_a_start_that_is_alive_are_left(tmp_path):
    """One that has no checkpoint yet has locked the directory."""
    run = tmp_path / "run"
    with pytest.raises(JobError, match="cohort"):
        api.run(JOB, {"cohort.size": 60}, model=Scaled(1.0), data=data(), out=run)
    before = kept(run)
    with (run / "lock").open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(JobError, match="a run is alive in this directory"):
            api.run(JOB, model=Scaled(2.0), data=data(), out=run)
    assert kept(run) == before


PICKLED = """
import sys
import torch
from torch import nn
from hpcfl.user_code.pickled import pickled

torch.manual_seed(0)

class Net(nn.Linear):
    def forward(self, x):
        return super().forward(x) if "a" in {"a", "b", "c"} else SCALE * x

SCALE = 2
net = Net(2, 3)
for name in sys.argv[2:]:
    net.register_buffer("".join(name), torch.zeros(1), persistent=False)
net.pair = (sys.argv[2], sys.argv[2], "".join(sys.argv[2]))
if sys.argv[1] == "constant":
    SCALE = 3
if sys.argv[1] == "weight":
    net.weight.data[0] += 1
if sys.argv[1] == "method":
    Net.forward = lambda self, x: x
print(pickled({"model": net, "Net": Net})[1])
"""


def test_equal_objects_have_one_fingerprint_in_every_process(tmp_path):
    """Sets of texts have another order in each process; lines and file names do not count."""
    names = [f"buffer_{number}" for number in range(9)]

    scripts = [tmp_path / name for name in ("pickled.py", "other.py")]
    for lines, script in enumerate(scripts):
        script.write_text("\n\n" * lines + PICKLED)

    def fingerprint(seed, script):
        env = {**os.environ, "PYTHONHASHSEED": f"{seed}"}
        command = [sys.executable, script, "-", *names]
        return subprocess.run(command, env=env, capture_output=True, text=True, check=True).stdout

    same, other = map(fingerprint, (1, 2), scripts)
    assert other == same
    kinds = ("-", "constant", "weight", "method")
    assert len({python(1, scripts[0], kind, *names).stdout for kind in kinds}) == len(kinds)


def test_a_module_of_kept_code_or_without_shapes_is_refused(tmp_path):
    with pytest.raises(JobError, match=r"weight has no shape yet, as the module is lazy; pass a b"):
        api.check(JOB, model=nn.LazyLinear(4), data=data())


def test_a_branch_needs_its_parent_no_more(tmp_path, hpcfl):
    run, branch = tmp_path / "run", tmp_path / "branch"
    job = {**JOB, "checkpoint": {"every": 1, "keep": 3}}
    api.run(job, model=with_hook(1.0), data=data(), out=run)
    api.resume(run, {"local.lr": 0.01}, out=branch, round=1)
    assert str(run) not in (branch / "job.yaml").read_text()
    shutil.move(run, tmp_path / "moved")
    assert api.resume(branch, {"rounds": 3}).rounds == 3
    assert hpcfl("export", branch, "-o", tmp_path / "x.npz").code == 0


@pytest.mark.usefixtures("forked_python")
def test_a_new_run_of_the_job_of_another_gets_copies(tmp_path, hpcfl, monkeypatch):
    run, new = tmp_path / "run", tmp_path / "new"
    expected = api.run(JOB, {"local.lr": 0.01}, model=with_hook(1.0), data=data(), out=run)
    assert hpcfl("run", run / "job.yaml", "rounds=1", "--out", new).code == 0
    assert kept(new) == kept(run)
    shutil.rmtree(run)
    assert str(run) not in (new / "job.yaml").read_text()
    again = hpcfl("run", new / "job.yaml", "rounds=2", "--out", new, "--continue")
    assert (again.code, api.resume(new).x.tolist()) == (0, expected.x.tolist())
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))  # of the runs of a sweep
    (tmp_path / "sweep.yaml").write_text(f"job: {new}/job.yaml\ngrid: {{local.lr: [0.1, 0.2]}}\n")
    for _ in range(2):
        assert hpcfl("sweep", tmp_path / "sweep.yaml", "--out", tmp_path / "all").code == 0
    for folder in (tmp_path / "all").glob("*/"):
        assert kept(folder) == kept(new)
    next((new / "kept").glob("data-*")).unlink()
    absent = hpcfl("run", new / "job.yaml", "--out", tmp_path / "absent")
    assert (absent.code, len(absent.err)) == (2, 1)
    assert "cannot be read: No such file or directory; put it back" in absent.err[0]


class Executed:
    def __reduce__(self):
        return os.mkdir, ("executed",)


@pytest.mark.parametrize(
    ("settings", "where"),
    [
        (["model={name: module, of: weights.pt}"], "model: of: found 'weights.pt', a file that"),
        (["model={name: module, of: mine.py:Net}"], "model: of: found 'mine.py:Net', a file that"),
        (["algorithm.name=mine.py:Foo"], "algorithm.name: found 'mine.py:Foo', a file that"),
        (
            [f"algorithm.name=kept/code-{'a' * 16}.py:Foo"],
            f"algorithm.name: found 'kept/code-{'a' * 16}.py:Foo', a file that",
        ),
        (["data.kind=kept/mine.py:Foo"], "data.kind: found 'kept/mine.py:Foo', a file that"),
    ],
)
def test_a_job_names_no_file_that_would_be_executed(
    job, refused, tmp_path, monkeypatch, settings, where
):
    monkeypatch.chdir(tmp_path)
    torch.save(Executed(), tmp_path / "weights.pt")
    (tmp_path / "mine.py").write_text("import os\nos.mkdir('executed')\n")
    line = refused("check", job, *settings)
    assert where in line
    assert "expected the dotted path of a class in a module, or a file that a run keeps" in line
    assert not (tmp_path / "executed").exists()


def test_a_kept_file_that_was_changed_is_not_executed(tmp_path, hpcfl, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run = tmp_path / "run"
    api.run(JOB, model=Scaled(1.0), data=data(), out=run)
    (file,) = (run / "kept").glob("*.pkl")
    torch.save(Executed(), file)
    for command in (["resume", run, "rounds=3"], ["run", run / "job.yaml", "--out", "new"]):
        refused = hpcfl(*command)
        assert (refused.code, len(refused.err)) == (2, 1)
        assert f"{file.name}: was changed: its digest is not that in its name" in refused.err[0]
    with pytest.raises(StoreError, match="was changed"):
        api.load_model(run)
    assert not (tmp_path / "executed").exists()


def test_a_kept_file_of_another_user_is_not_executed(tmp_path, refused, hpcfl, monkeypatch):
    """A job may name one that lies in that user's own folder."""
    run = tmp_path / "run"
    api.run(JOB, model=Scaled(1.0), data=data(), out=run)
    (file,) = (run / "kept").glob("*.pkl")
    if os.getuid() == 0:
        os.chown(file, 54321, -1)
    monkeypatch.setattr("os.geteuid", lambda: 12345)
    line = refused("run", run / "job.yaml", "--out", tmp_path / "new")
    owner = file.stat().st_uid
    assert f"{file.name}: cannot be read: it is of user {owner}; it would be executed: copy" in line
    monkeypatch.setattr("os.geteuid", lambda: owner)
    assert hpcfl("run", run / "job.yaml", "--out", tmp_path / "new").code == 0
