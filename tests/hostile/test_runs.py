"""Damage in any file of a run directory: `status`, `export` and `resume` say so in one line."""

import shutil

import pytest
from hypothesis import given
from hypothesis import strategies as st

import hpcfl
from hpcfl.tools.exports.checkpoint import export
from hpcfl.tools.status import status
from tests.hostile.damage import damaged, ends_well, many

pytestmark = pytest.mark.slow

JOB = {
    "task": "digits",
    "data": {"clients": 4},
    "cohort": {"kind": "uniform", "size": 2},
    "algorithm": {"name": "fedhbm"},
    "local": {"steps": 1, "batch_size": 4, "lr": 0.1},
    "rounds": 2,
    "evaluate": {"every": 1, "best": True},
    "checkpoint": {"every": 1},
}
FILES = (
    *("job.yaml", "history.jsonl", "log.jsonl", "initial.npy", "best.safetensors"),
    *("function.json", "manifest.json", "server.safetensors", "rows-0000.npz"),
)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    root = tmp_path_factory.mktemp("run")
    pytest.importorskip("sklearn")
    hpcfl.run(JOB, out=root / "run")
    return root / "run"


def exported(run, *, best=False, clients=False):
    export(run, round=None, npz=run.parent / "x.npz", state_dict=None, clients=clients, best=best)


@pytest.mark.parametrize("name", FILES)
def test_any_damage_ends_in_a_line(run, name):
    newest = run / "checkpoints" / "00000002"
    path = run / name if (run / name).exists() else newest / name
    whole = path.read_bytes()

    def read():
        status(run)
        exported(run, best=name == "best.safetensors", clients=name != "best.safetensors")

    read()

    @many(40)
    @given(st.data())
    def play(data):
        path.write_bytes(data.draw(damaged(whole)))
        ends_well(read)

    play()
    path.write_bytes(whole)


@pytest.mark.parametrize("name", FILES)
def test_no_damage_ends_a_resume_otherwise(run, tmp_path, name):
    """A copy plays one round more."""
    newest = run / "checkpoints" / "00000002"
    path = newest / name if (newest / name).exists() else run / name
    whole = path.read_bytes()
    copy = tmp_path / "copy"

    @many(4)
    @given(st.data())
    def play(data):
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(run, copy)
        (copy / path.relative_to(run)).write_bytes(data.draw(damaged(whole)))
        ends_well(lambda: hpcfl.resume(copy, ["rounds=3"]))

    play()
