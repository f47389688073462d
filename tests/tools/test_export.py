"""Exported models and states are those of the checkpoint."""

import errno
import fcntl
import json
import os
import shutil

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

import hpcfl as api
from hpcfl.errors import StoreError, file_error
from hpcfl.runs import manifest
from hpcfl.runs.manifest import SERVER, committed
from hpcfl.start import saved_models

pytestmark = pytest.mark.slow


@pytest.fixture
def run(job, tmp_path, hpcfl):
    """A run of four rounds, of which 2 and 4 are kept."""
    out = tmp_path / "run"
    assert hpcfl("run", job, "--out", out).code == 0
    return out


def server(run, round):
    return load_file(run / "checkpoints" / f"{round:08d}" / SERVER)


def test_the_newest_model(run, tmp_path, hpcfl):
    target = tmp_path / "x.npz"
    done = hpcfl("export", run, "-o", target)
    score = json.loads((run / "log.jsonl").read_text().splitlines()[-1])["test_accuracy"]
    said = f"the model after round 4: test_accuracy {score:.4g}"
    assert (done.code, done.out, done.err) == (0, [str(target)], [said])
    with np.load(target) as found:
        assert set(found.files) == {"x", "round"}
        assert found["round"] == 4
        np.testing.assert_array_equal(found["x"], server(run, 4)["x"])


def test_an_older_round_needs_no_data(run, tmp_path, hpcfl):
    (tmp_path / "data.npz").unlink()
    target = tmp_path / "x.npz"
    assert hpcfl("export", run, "--round", 2, "-o", target).code == 0
    with np.load(target) as found:
        assert found["round"] == 2
        np.testing.assert_array_equal(found["x"], server(run, 2)["x"])
    assert (server(run, 2)["x"] != server(run, 4)["x"]).any()


def test_named_parameters(run, tmp_path, hpcfl):
    target = tmp_path / "x.safetensors"
    assert hpcfl("export", run, "--state-dict", target).code == 0
    found = load_file(target)
    assert {name: value.shape for name, value in found.items()} == {
        "1.weight": (4, 3),
        "1.bias": (4,),
    }
    flat = np.concatenate([found["1.weight"].ravel(), found["1.bias"]])
    np.testing.assert_array_equal(flat, server(run, 4)["x"])


def test_an_exported_model_starts_another_run(run, job, tmp_path, hpcfl):
    target = tmp_path / "x.safetensors"
    assert hpcfl("export", run, "--state-dict", target).code == 0
    other = tmp_path / "other"
    assert hpcfl("run", job, f"model.init={target}", "--out", other).code == 0
    np.testing.assert_array_equal(np.load(other / "initial.npy"), server(run, 4)["x"])


def test_client_states(job, tmp_path, hpcfl):
    """With one client a round, the client's last model is what the server just took over."""
    run, target = tmp_path / "one", tmp_path / "x.npz"
    assert hpcfl("run", job, "cohort={kind: cyclic, size: 1}", "rounds=3", "--out", run).code == 0
    assert hpcfl("export", run, "-o", target, "--clients").code == 0
    with np.load(target) as found:
        assert found["client"].tolist() == [0, 1, 2]  # client 3 was never asked
        assert found["state_z"].shape == (3, 16)
        assert found["state_known"].tolist() == [1, 1, 1]
        np.testing.assert_allclose(found["state_z"][2], found["x"], rtol=1e-6)
        assert (found["state_z"][0] != found["state_z"][1]).any()


def test_client_states_that_lie_in_two_parts(job, tmp_path, hpcfl):
    """What localghb keeps is the server's model before the client's last round."""
    run, target = tmp_path / "ghb", tmp_path / "x.npz"
    cohort = "cohort={kind: replay, rounds: [[0, 1, 2], [2], [0], [0, 3]]}"
    keep = "checkpoint={every: 1, keep: 9}"
    settings = ("algorithm={name: localghb}", cohort, keep)
    assert hpcfl("run", job, *settings, "--out", run).code == 0
    assert hpcfl("export", run, "-o", target, "--clients").code == 0
    with np.load(target) as found:
        assert found["client"].tolist() == [0, 1, 2, 3]
        assert found["state_known"].tolist() == [1, 1, 1, 1]
        last = [3, 0, 1, 3]
        np.testing.assert_array_equal(found["state_anchor"], [server(run, t)["x"] for t in last])


def test_no_client_states(job, tmp_path, hpcfl):
    run, target = tmp_path / "avg", tmp_path / "x.npz"
    assert hpcfl("run", job, "algorithm.name=fedavg", "--out", run).code == 0
    assert hpcfl("export", run, "-o", target, "--clients").code == 0
    with np.load(target) as found:
        assert set(found.files) == {"x", "round", "client"}
        assert not found["client"].size


def test_a_live_run_is_left_alone(run, tmp_path, hpcfl):
    before = {path: path.stat().st_mtime_ns for path in run.rglob("*")}
    with (run / "lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        done = hpcfl("export", run, "-o", tmp_path / "x.npz", "--clients")
    assert done.code == 0
    assert {path: path.stat().st_mtime_ns for path in run.rglob("*")} == before


@pytest.fixture
def pruned(run, monkeypatch):
    """A live run lets go of a round just when a function of a module looks at it."""

    def when(module, function, round):
        def prune_first(*arguments):
            if folder.exists():
                shutil.rmtree(folder)
            return real(*arguments)

        folder = run / f"checkpoints/{round:08d}"
        real = getattr(module, function)
        monkeypatch.setattr(module, function, prune_first)

    return when


def test_the_newest_that_is_kept_when_one_goes_away_meanwhile(run, tmp_path, pruned, hpcfl):
    pruned(saved_models, "read_checkpoint", 4)
    target = tmp_path / "x.npz"
    done = hpcfl("export", run, "-o", target, "--clients")
    assert done.code == 0
    assert done.err[-1].startswith("the model after round 2: ")
    assert np.load(target)["round"] == 2


def test_a_file_that_goes_away_while_it_is_read_on_nfs(run, tmp_path, monkeypatch, hpcfl):
    """NFS reports a stale handle, which elsewhere is a failure of the disk."""
    folder = run / "checkpoints/00000004"
    whole = saved_models.read_checkpoint

    def read_checkpoint(checkpoint, *arguments):
        if checkpoint.folder == folder:
            shutil.rmtree(folder)
            raise file_error(OSError(errno.ESTALE, "Stale file handle"), f"{folder}: x", StoreError)
        return whole(checkpoint, *arguments)

    monkeypatch.setattr(saved_models, "read_checkpoint", read_checkpoint)
    done = hpcfl("export", run, "-o", tmp_path / "x.npz")
    assert done.code == 0
    assert done.err[-1].startswith("the model after round 2: ")
    assert np.load(tmp_path / "x.npz")["round"] == 2


def test_a_named_round_that_goes_away_meanwhile(run, tmp_path, pruned, refused):
    pruned(saved_models, "read_checkpoint", 2)
    line = refused("export", run, "--round", 2, "-o", tmp_path / "x.npz")
    assert line.endswith("round 2 is not kept; give --round 4")
    assert not (tmp_path / "x.npz").exists()


def test_a_checkpoint_that_goes_away_while_they_are_listed(run, tmp_path, pruned, hpcfl):
    pruned(manifest, "read", 2)
    assert hpcfl("export", run, "-o", tmp_path / "x.npz").code == 0


def test_an_export_that_cannot_be_written_speaks_of_no_checkpoint(
    run, tmp_path, monkeypatch, hpcfl
):
    def full(fd):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    done = hpcfl("export", run, "-o", tmp_path / "x.npz")
    assert done.code == 74
    (line,) = done.err
    assert line.endswith("No space left on device; make room or repair the disk")
    assert not (tmp_path / "x.npz.part").exists()


def test_a_round_that_is_not_kept(run, tmp_path, refused):
    line = refused("export", run, "--round", 3, "-o", tmp_path / "x.npz")
    assert line.endswith("round 3 is not kept; give --round 2 or 4")


def test_damage_is_told(run, tmp_path, refused):
    path = committed(run / "checkpoints")[-1].folder / SERVER
    path.write_bytes(path.read_bytes()[:-1])
    assert "server.safetensors: checksum" in refused("export", run, "-o", tmp_path / "x.npz")


def test_data_of_another_shape(run, arrays, tmp_path, refused):
    arrays(x=np.zeros((40, 5)), x_test=None, y_test=None)
    line = refused("export", run, "--state-dict", tmp_path / "x.safetensors")
    assert "the model has 24 parameters with the data and code as they are now, 16 in" in line


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "nothing to write; give -o F.npz or --state-dict F.safetensors"),
        (["--clients", "--state-dict", "x"], "--clients adds to an .npz; give -o F.npz"),
        (["-o", "x.pt"], "x.pt: cannot be written: found the name x.pt, expected one in .npz"),
        (["--state-dict", "x.pth"], "found the name x.pth, expected one in .safetensors"),
        (["-o", "no/such/x.npz"], "no/such/x.npz: cannot be written: there is no directory"),
    ],
)
def test_arguments(run, refused, arguments, message):
    assert message in refused("export", run, *arguments)


def test_no_run(tmp_path, refused):
    assert "holds no run" in refused("export", tmp_path, "-o", tmp_path / "x.npz")


def test_half_precision_states_become_float32():
    from hpcfl.start.saved_models import _array

    found = _array(torch.tensor([1.5, -2.0], dtype=torch.bfloat16))
    assert found.dtype == np.float32
    assert found.tolist() == [1.5, -2.0]


def personal(name, client, out):
    """What is exported of a client of a run, and the same by its module and its named tensors."""
    run, npz, tensors = out / name, out / "own.npz", out / "own.safetensors"
    assert api.export(run, npz, state_dict=tensors, client=client) == [npz, tensors]
    with np.load(npz) as found:
        x = found["x"]
    module = api.load_model(run, client=client)
    named = load_file(tensors)
    assert named.keys() == module.state_dict().keys()
    for flat in (
        np.concatenate([named["1.weight"].ravel(), named["1.bias"]]),
        torch.nn.utils.parameters_to_vector(module.parameters()).detach().numpy(),
    ):
        np.testing.assert_array_equal(flat, x)
    return x


def test_a_client_s_own_model(job, tmp_path, hpcfl):
    """Client 3 was never asked: it has the personal parameters of the initial model."""
    settings = ["cohort={kind: cyclic, size: 1}", "rounds=3"]
    method = "algorithm={name: fedper, personal: [1.bias]}"
    assert hpcfl("run", job, method, *settings, "--out", tmp_path / "fedper").code == 0
    target, x = tmp_path / "x.npz", server(tmp_path / "fedper", 3)["x"]
    done = hpcfl("export", tmp_path / "fedper", "-o", target, "--client", 1, "--clients")
    assert done.code == 0
    with np.load(target) as found:
        np.testing.assert_array_equal(found["x"], [*x[:12], *found["state_own"][1]])
        np.testing.assert_array_equal(found["x"], personal("fedper", 1, tmp_path))
    np.testing.assert_array_equal(x, personal("fedper", 3, tmp_path))
    for client in (-1, 4):
        done = hpcfl("export", tmp_path / "fedper", "-o", target, "--client", client)
        assert (done.code, done.err) == (
            2,
            [f"JobError: client: found {client}, expected a number from 0 to 3"],
        )


def test_a_client_of_a_method_without_models(run, tmp_path, hpcfl):
    done = hpcfl("export", run, "-o", tmp_path / "x.npz", "--client", 0)
    assert (done.code, done.err) == (
        2,
        [
            "JobError: client: found 0, but fedhbm makes no models of the clients' own, as fedper "
            "and ditto do; leave it out"
        ],
    )


OWN = """\
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from hpcfl.algorithms.base import Message, Upload
from hpcfl.algorithms.fedavg import FedAvg


class Server(NamedTuple):
    x: Tensor
    table: Tensor  # [classes, F]
    of_clients: Tensor  # [N]


class State(NamedTuple):
    w: Tensor


@dataclass(frozen=True, kw_only=True)
class Own(FedAvg):
    def init_server(self, x0):
        facts = self.facts
        rows = x0.new_zeros(facts.classes, self.layout.features)
        return Server(x0, rows, x0.new_zeros(facts.population))

    def init_client(self, x0, random_init):
        return State(x0)

    def broadcast(self, server, cohort):
        return Message(server.x)

    def finish(self, y, local, message, state, client):
        return Upload(message.x - y), State(y)

    def update(self, server, mean, cohort):
        return server._replace(x=server.x - self.server_lr * mean.delta)

    def personal_model(self, x, state):
        return state.w
"""


def test_a_server_by_classes_and_clients(job, tmp_path, monkeypatch, own_process, hpcfl):
    """Its shapes follow from what the data say: 4 classes, and as many clients as there are."""
    (tmp_path / "by_classes.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    run, target = tmp_path / "run", tmp_path / "x.npz"
    settings = ["algorithm={name: by_classes.Own}", "cohort={kind: cyclic, size: 1}", "rounds=2"]
    assert hpcfl("run", job, *settings, "--out", run).code == 0
    assert server(run, 2)["table"].shape == (4, 3)
    assert hpcfl("export", run, "-o", target).code == 0
    with np.load(target) as found:
        np.testing.assert_array_equal(found["x"], server(run, 2)["x"])
    personal(run.name, 1, tmp_path)
    flat = torch.nn.utils.parameters_to_vector(api.load_model(run).parameters())
    np.testing.assert_array_equal(flat.detach().numpy(), server(run, 2)["x"])
