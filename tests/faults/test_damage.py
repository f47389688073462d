"""Files of a run that are damaged: found and named, or without effect; never other bits."""

import os
import random
import shutil
from pathlib import Path

import pytest
from scaffold_run import ROUNDS, complete, error_line, killed, write

from hpcfl.errors import StoreError
from hpcfl.runs.layout import RunDir
from hpcfl.tools.selftest import outcome
from tests.forked import finish
from tests.long_form import long_form


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    """Its clients share rows, and the checkpoints hold more than the server."""
    return write(tmp_path_factory.mktemp("job"), algorithm={"name": "localghb"})


@pytest.fixture(scope="module")
def branch(job, tmp_path_factory):
    """The words that begin a branch at round 4, which has the files of any run and one more."""
    parent = tmp_path_factory.mktemp("parent") / "run"
    assert finish(1, "run", job, "rounds=4", "--out", parent).returncode == 0
    return "resume", parent, "local.lr=0.02", f"rounds={ROUNDS}"


@pytest.fixture(scope="module")
def whole(branch, tmp_path_factory):
    root = tmp_path_factory.mktemp("whole") / "run"
    assert finish(1, *branch, "--out", root).returncode == 0
    return outcome(RunDir(root))


@pytest.fixture(scope="module")
def dead(branch, tmp_path_factory):
    """A branch that was killed in the middle."""
    return killed(tmp_path_factory.mktemp("dead") / "run", 9, *branch)


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def flip(path: Path) -> None:
    """One bit in each of a few bytes all over the file."""
    content = bytearray(path.read_bytes())
    draw = random.Random(path.name)
    for at in draw.sample(range(len(content)), min(8, len(content))):
        content[at] ^= 1 << draw.randrange(8)
    path.write_bytes(content)


@pytest.mark.parametrize(
    "damage", [pytest.param(Path.unlink, marks=long_form), cut, pytest.param(flip, marks=long_form)]
)
def test_damaged_files(job, whole, dead, tmp_path, damage):
    """Every file that the dead run left, one after the other."""
    names = [
        path.relative_to(dead.root)
        for path in sorted(dead.root.rglob("*"))
        if path.is_file() and path.stat().st_size
    ]
    assert len(names) > 10
    noticed = []
    for name in names:
        folder = RunDir(tmp_path / "run")
        shutil.copytree(dead.root, folder.root)
        damage(folder.root / name)
        ended = finish(1, "resume", folder.root)
        if ended.returncode:
            assert name.name in error_line(ended) or name.parent.name in error_line(ended)
            noticed.append(name)
            shutil.copy2(dead.root / name, folder.root / name)
            assert complete(folder, job).differences(whole) == []
        else:
            try:
                assert outcome(folder).differences(whole) == []
            except StoreError as error:  # a state that the rounds to come did not need
                assert name.name in str(error)
                noticed.append(name)
        shutil.rmtree(folder.root)
    newest = max(name.parent for name in names if name.name == "manifest.json")
    must = {name for name in names if name.parent == newest}
    must |= {Path("job.yaml"), Path("log.jsonl"), Path("branches.json")}
    if damage is Path.unlink:  # which is what a checkpoint looks like that was not committed
        must.remove(newest / "manifest.json")
    assert must <= set(noticed)
