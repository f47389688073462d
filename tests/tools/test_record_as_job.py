"""`hpcfl run RECORD`: others repeat a run from its record, and get the same bits."""

import json
import shutil
import sys
from pathlib import Path

import pytest
import torch
import yaml

from hpcfl import run as run_job
from hpcfl.io.version import __version__
from tests.forked import finish
from tests.rundirs import starts

pytestmark = pytest.mark.usefixtures("own_process")

ROOT = Path(__file__).parents[2]
MODULES = {
    "own/__init__.py": "FACTOR = 2\n",
    "own/method.py": """\
from hpcfl.algorithms.fedavg import FedAvg

from . import FACTOR
from .helpers import scaled


class Mine(FedAvg):
    def direction(self, point, local, grad, client):
        return scaled(grad(point), FACTOR), local
""",
    "own/helpers.py": "def scaled(vector, factor):\n    return vector * factor\n",
    "net.py": """\
from torch import nn


class Net(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, 4))
""",
}
OWN = ("algorithm={name: own.method.Mine}", "model={name: module, of: net.Net}")


def forget():
    for name in [name for name in sys.modules if name.partition(".")[0] in ("own", "net")]:
        del sys.modules[name]


@pytest.fixture
def mine(tmp_path, monkeypatch):
    """The folder of the user's modules, where Python finds them."""
    folder = tmp_path / "mine"
    for name, source in MODULES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(source)
    monkeypatch.setattr(sys, "path", [str(folder), *sys.path])  # also undoes what a record adds
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    forget()
    yield folder
    forget()


@pytest.fixture
def record(job, mine, tmp_path, hpcfl):
    """The record of a run with classes of the user's; the run and the classes are gone."""
    run, target = tmp_path / "run", tmp_path / "records" / "study-v0.1"
    assert hpcfl("run", job, *OWN, "--out", run).code == 0
    done = hpcfl("export", run, "--record", target)
    assert (done.code, done.err) == (0, [])
    shutil.rmtree(run)
    shutil.rmtree(mine)
    forget()
    return target


def digests(record):
    return json.loads((record / "digests.json").read_text())


def sources(record):
    """The files of ``code/``, but what Python caches of them."""
    code = record / "code"
    return {str(path.relative_to(code)): path.read_text() for path in code.rglob("*.py")}


def test_it_gives_the_same_bits_in_an_empty_folder(record, arrays, tmp_path, hpcfl, monkeypatch):
    """On two ranks, in processes that find the user's modules in the record alone."""
    empty = tmp_path / "empty"
    empty.mkdir()
    data = f"data.path={arrays('moved.npz')}"
    done = finish(2, "run", record, data, folders=[empty, empty])
    assert done.returncode == 0, done.stderr
    (run,) = (empty / "runs").iterdir()
    assert run.name.startswith("study-v0.1-data_path")
    monkeypatch.syspath_prepend(record / "code")
    again = tmp_path / "again"
    assert hpcfl("export", run, "--record", again).err == []
    assert (again / "digests.json").read_bytes() == (record / "digests.json").read_bytes()
    assert sources(again) == sources(record)


def test_what_it_has(record):
    assert sources(record) == (MODULES)
    (start,) = starts(record)
    found = digests(record)
    assert found["code"] == start["code"]
    assert sorted(found["code"]) == ["net", "own", "own.helpers", "own.method"]
    assert found["round"] == 4
    of_content = [found["split"], *found["inputs"].values(), *map(found.get, MODELS)]
    assert all(len(digest.removeprefix("sha256:")) == 64 for digest in of_content)
    assert len({*of_content}) == 4 == len(of_content)
    python, own, *versions = (record / "packages.txt").read_text().splitlines()
    assert python == f"# Python {start['python']}"
    assert own.startswith(f"# hpcfl {__version__}, from its source at commit ")
    torch = start["torch"]
    assert f"torch=={torch.partition('+')[0]}" in [line.partition("  #")[0] for line in versions]
    assert all(line.count("==") == 1 and "+" not in line.partition("#")[0] for line in versions)
    assert any(torch in line for line in versions)
    readme = (record / "README.md").read_text()
    assert "hpcfl run study-v0.1 data.path=PATH --out repeated\n" in readme
    assert "PYTHONPATH=study-v0.1/code hpcfl export repeated" in readme
    assert "Not in this record" not in readme


MODELS = ("initial_model", "final_model")


def test_digests_tell_what_is_another(job, tmp_path, hpcfl):
    found = {}
    for name, *settings in (
        ("before",),
        ("rate", "local.lr=0.2"),
        ("split", "data.partition={kind: iid, seed: 7}"),
    ):
        run, target = tmp_path / "runs" / name, tmp_path / name
        assert hpcfl("run", job, *settings, "--out", run).code == 0
        assert hpcfl("export", run, "--record", target).code == 0
        found[name] = digests(target)
    before = found.pop("before")
    differing = {
        name: {key for key in before if before[key] != other[key]} for name, other in found.items()
    }
    assert differing == {"rate": {"final_model"}, "split": {"split", "final_model"}}


def test_only_what_takes_it_as_a_job_executes_its_code(record, tmp_path, hpcfl):
    mark = tmp_path / "executed"
    for path in (record / "code").rglob("*.py"):
        path.write_text(f"{path.read_text()}\nopen({str(mark)!r}, 'w').close()\n")
    for command in ("report", "cite", "status"):
        assert hpcfl(command, record).code == 0
        assert not mark.exists(), command
    assert hpcfl("check", record).code == 0
    assert mark.exists()


def test_paths_that_it_has_not_are_asked_for(record, tmp_path, refused, monkeypatch):
    empty = tmp_path / "empty"
    empty.mkdir()
    monkeypatch.chdir(empty)
    assert refused("run", record) == (
        f"JobError: {record}: data.path {empty}/data.npz: not found here, as a record has neither "
        "data nor paths; add data.path=PATH"
    )
    assert not Path("runs").exists()


def test_it_is_a_job_for_other_commands(record, arrays, hpcfl, monkeypatch):
    assert hpcfl("check", record, "--kind").out == ["job"]
    assert hpcfl("check", record, "--where").out == ["runs/study-v0.1"]
    monkeypatch.chdir(record)
    assert hpcfl("check", ".", "--where").out == ["runs/study-v0.1"]
    done = hpcfl("check", record, "--data", f"data.path={arrays()}")
    assert done.code == 0, done.err


def test_what_is_no_record_and_what_stays_one(record, job, arrays, tmp_path, hpcfl, refused):
    assert "choose another directory" in refused("run", job, "--out", record)
    assert f"`hpcfl run {record}` repeats it" in refused("resume", record)
    assert hpcfl("check", record, "--kind").out == ["job"]
    run = tmp_path / "run"
    assert hpcfl("run", record, f"data.path={arrays()}", "--out", run).code == 0
    (run / "initial.npy").unlink()
    assert hpcfl("check", run, "--kind").out == ["run"]
    assert "use `hpcfl resume" in refused("run", run)


def test_a_disk_of_another_machine_is_not_taken(job, tmp_path, hpcfl):
    run, target = tmp_path / "run", tmp_path / "record"
    (tmp_path / "disk").mkdir()
    assert hpcfl("run", job, f"store.dir={tmp_path / 'disk'}", "--out", run).code == 0
    assert hpcfl("export", run, "--record", target).code == 0
    again = tmp_path / "again"
    data = f"data.path={tmp_path / 'data.npz'}"
    assert hpcfl("run", target, data, "--out", again).code == 0
    assert yaml.safe_load((again / "job.yaml").read_text())["store"]["dir"] is None


def test_source_that_was_edited_is_told(job, mine, tmp_path, hpcfl):
    run, target = tmp_path / "run", tmp_path / "record"
    assert hpcfl("run", job, *OWN, "--out", run).code == 0
    (mine / "own/helpers.py").write_text("# edited\n")
    done = hpcfl("export", run, "--record", target)
    (line,) = done.err
    assert done.code == 0
    assert line.startswith(f"not in {target}: the source of module own.helpers (")
    assert line.partition(": ")[2] in (target / "README.md").read_text()
    assert not (target / "code/own/helpers.py").exists()
    assert (target / "code/own/method.py").exists()


def test_a_file_that_a_module_reads_is_named(job, mine, tmp_path, hpcfl):
    (mine / "own/data").mkdir()
    (mine / "own/data/widths.json").write_text("2")
    (mine / "own/notes.txt").write_text("not named in any source")
    (mine / "own/__init__.py").write_text(
        "import json\nfrom pathlib import Path\n"
        'FACTOR = json.loads((Path(__file__).parent / "data/widths.json").read_text())\n'
        'OTHER = ("helpers.py", "absent.json", "../secret", "two words", "")\n'
    )
    (mine.parent / "secret").write_text("private")
    run, target = tmp_path / "run", tmp_path / "record"
    assert hpcfl("run", job, *OWN, "--out", run).code == 0
    done = hpcfl("export", run, "--record", target)
    said = "own/data/widths.json, which own/__init__.py names and may read: if it does, copy it to"
    for text in (" ".join(done.err), (target / "README.md").read_text()):
        assert text.count("names and may read") == 1
        assert f"{said} code/own/data/widths.json of the record" in text
    assert not [*target.rglob("widths.json")]
    shutil.rmtree(mine)
    forget()
    again = target / "code/own/data/widths.json"
    again.parent.mkdir()
    again.write_text("2")
    assert hpcfl("check", target).code == 0


def test_objects_are_left_out_and_may_be_put_in(job, tmp_path, hpcfl, refused):
    run, target, again = (tmp_path / name for name in ("run", "record", "again"))
    run_job(job, model=torch.nn.Linear(3, 4), out=run)
    (line,) = hpcfl("export", run, "--record", target).err
    assert "copy kept of the run into the record yourself" in line
    data = f"data.path={tmp_path / 'data.npz'}"
    assert f"{target}/kept/" in refused("run", target, data)
    shutil.copytree(run / "kept", target / "kept")
    assert hpcfl("run", target, data, "--out", again).code == 0
    assert hpcfl("export", again, "--record", tmp_path / "new").code == 0
    assert digests(tmp_path / "new") == digests(target)


def test_code_that_changed_between_starts_is_told(job, mine, tmp_path, hpcfl):
    run, target = tmp_path / "run", tmp_path / "record"
    assert hpcfl("run", job, *OWN, "--out", run).code == 0
    (mine / "own/__init__.py").write_text("FACTOR = 3\n")
    forget()
    assert hpcfl("resume", run, "rounds=6").code == 0
    done = hpcfl("export", run, "--record", target)
    assert done.err == [
        f"not in {target}: the former source of own, with which earlier starts made rounds"
    ]
    assert (target / "code/own/__init__.py").read_text() == "FACTOR = 3\n"


def test_the_record_of_a_branch_is_no_job(job, tmp_path, hpcfl, refused):
    run, branch, target = (tmp_path / name for name in ("run", "branch", "record"))
    assert hpcfl("run", job, "--out", run).code == 0
    assert hpcfl("resume", run, "--round", 2, "--out", branch, "local.lr=0.01").code == 0
    assert "a branch cannot be run" in hpcfl("export", branch, "--record", target).err[0]
    assert "is the record of a branch" in refused("run", target)


def test_a_record_that_was_edited_is_refused(job, tmp_path, hpcfl, refused):
    run, target = tmp_path / "run", tmp_path / "record"
    assert hpcfl("run", job, "--out", run).code == 0
    assert hpcfl("export", run, "--record", target).code == 0
    path = target / "job.yaml"
    path.write_bytes(path.read_bytes().replace(b"lr: 0.1", b"lr: 0.2"))
    assert "it was edited or damaged" in refused("run", target)


def test_published_records_are_jobs(hpcfl):
    for name in ("cifar10-fedavg", "shakespeare/fedhbm"):
        assert hpcfl("check", ROOT / "docs/records" / name).code == 0, name
