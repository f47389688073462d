"""The round loop, played in this process: what it logs, evaluates, commits and keeps."""

import json
import os
import re
import signal
from threading import Event

import pytest
import torch

from hpcfl import read_runs
from hpcfl.algorithms.fedavg import FedAvg
from hpcfl.algorithms.scaffold import Scaffold
from hpcfl.checkpoint import writer
from hpcfl.clients import client_pool
from hpcfl.engine import loop
from hpcfl.engine.callbacks import Callback
from hpcfl.errors import ClientError, DivergedError, HookError, Stopped, StoreError
from hpcfl.io.signals import STOP
from hpcfl.job.load import load
from hpcfl.local.sequential import Sequential
from hpcfl.runs.log import RunLog
from hpcfl.runs.manifest import committed
from hpcfl.start import prepare
from hpcfl.start.start import resume, start
from hpcfl.store.arena import StateArena
from hpcfl.store.row_table import Table
from hpcfl.tools.status import status
from tests.algorithms.play import (
    kept,
    parts,
    play,
    read,
    servers,
    softmax_problem,
    states,
    tree,
)
from tests.signals import not_ignored

pytestmark = pytest.mark.usefixtures("own_process")

PROBLEM = softmax_problem()
P = 15


def job(folder, **changes):
    return tree(folder, PROBLEM, **{"algorithm": {"name": "scaffold"}, **changes})


def test_the_log_has_every_round_once(tmp_path):
    cohort = {"kind": "replay", "rounds": [[0, 1], [], [2, 3, 4]]}
    log = play(tmp_path, job(tmp_path, cohort=cohort, rounds=3)).log
    assert [record["round"] for record in log] == [1, 2, 3]
    assert [record["clients"] for record in log] == [2, 0, 3]
    assert [record["down_bytes"] for record in log] == [n * 2 * 8 * P for n in (2, 0, 3)]
    assert [record["up_bytes"] for record in log] == [n * 2 * 8 * P for n in (2, 0, 3)]
    assert ["train_loss" in record for record in log] == [True, False, True]
    assert all(record["wall_s"] > 0 for record in log)


def test_examples_are_those_that_the_local_steps_took(tmp_path, monkeypatch):
    """Counted where the batches come from, of a job with partial batches and several passes."""
    counted, order = [0], client_pool.order

    def counting(*args, **how):
        for positions in order(*args, **how):
            counted[0] += len(positions)
            yield positions

    monkeypatch.setattr(client_pool, "order", counting)
    monkeypatch.setattr(
        prepare, "check_components", lambda parts, *, resumed: ()
    )  # takes examples too
    local = {"steps": 7, "batch_size": 4, "lr": 0.01}
    cohort = {"kind": "replay", "rounds": [[0, 1], [], [2, 3, 4]]}
    log = play(tmp_path, job(tmp_path, cohort=cohort, rounds=3, local=local)).log
    assert sum(record["examples"] for record in log) == counted[0] > 0
    assert [record["steps"] for record in log] == [14, 0, 21]
    for record in log:
        assert ("examples_per_s" in record) == (record["clients"] > 0)
        for key in ("clients", "examples"):
            if record[key]:
                speed = record[f"{key}_per_s"]
                assert speed == pytest.approx(record[key] / record["wall_s"], rel=1e-3)


def test_an_algorithms_numbers_are_in_every_line_and_in_what_shows_runs(tmp_path):
    changes = {"algorithm": {"name": "fedexp", "eps": 1e-9}, "weights": "uniform", "rounds": 3}
    cohort = {"kind": "replay", "rounds": [[0, 1, 2, 3, 4, 5], [], [2, 3]]}
    described = job(tmp_path, **changes, cohort=cohort)
    run = play(tmp_path, kept(described))
    rates = [float(server["rate"]) for server in servers(run.directory)[1:]]
    assert [line["server_eta_g"] for line in run.log] == rates
    assert rates[0] > 1
    assert re.search(rf"^server_eta_g +{rates[-1]:.4g} after round 3$", status(run.directory), re.M)
    assert read_runs([run.directory])["server_eta_g"].tolist() == rates[-1:]


def test_the_training_loss_is_the_weighted_mean_over_clients(tmp_path):
    """One full-batch step: the loss at x0 over the examples of the cohort."""
    changes = {"local": {"steps": 1, "batch_size": "full", "lr": 0.1}, "rounds": 1}
    log = play(tmp_path, job(tmp_path, **changes)).log
    described = parts(tmp_path, job(tmp_path, **changes))
    inputs, labels = described.population.dataset.train
    logits = described.gradient().predict(described.model.x0, inputs)
    whole = torch.nn.functional.cross_entropy(logits, labels)
    assert log[0]["train_loss"] == pytest.approx(float(whole), rel=1e-12)


@pytest.mark.parametrize(
    ("evaluate", "due"),
    [
        ({}, [7]),
        ({"every": 3}, [0, 3, 6, 7]),
        ({"every": 3, "last": 3}, [0, 3, 5, 6, 7]),
        ({"last": 2}, [6, 7]),
    ],
)
def test_when_the_model_is_evaluated(tmp_path, evaluate, due):
    digits = {"data": {"kind": "digits", "clients": 6}, "rounds": 7, "evaluate": evaluate}
    log = play(tmp_path, job(tmp_path, **digits)).log
    assert [record["round"] for record in log if "test_accuracy" in record] == due


@pytest.mark.parametrize(
    ("checkpoint", "kept"),
    [({"every": 3, "keep": 9}, [0, 3, 6, 7]), ({"every": 100}, [0, 7]), ({"every": 1}, [6, 7])],
)
def test_when_checkpoints_are_committed(tmp_path, checkpoint, kept):
    path = play(tmp_path, job(tmp_path, rounds=7, checkpoint=checkpoint)).directory
    assert [c.round for c in committed(path / "checkpoints")] == kept


def test_the_clients_of_a_round_keep_its_model_once(tmp_path):
    """As long as one of them was in no round since: a checkpoint names no more rows."""
    cohorts = [[0, 1, 2], [3, 4, 5], [0], [1, 2], [0, 1]]
    changes = {
        "algorithm": {"name": "localghb"},
        "cohort": {"kind": "replay", "rounds": cohorts},
        "rounds": 5,
        "checkpoint": {"every": 1, "keep": 9},
    }
    path = play(tmp_path, job(tmp_path, **changes)).directory
    described = parts(tmp_path, job(tmp_path, **changes))
    received = [torch.from_numpy(s["x"]) for s in servers(path)]
    last = {}
    for t, found in enumerate(committed(path / "checkpoints")):
        table = Table.load(found.folder, path / "stores").shared
        taken = set(zip(table.segments.tolist(), table.rows.tolist(), strict=True))
        assert len(taken) == len(set(last.values()))
        for i, state in enumerate(states(path, described, t)):
            assert (state is None) == (i not in last)
            if state:
                assert torch.equal(state.anchor, received[last[i]])
        last |= dict.fromkeys(cohorts[t] if t < 5 else [], t)
    assert set(found.files) == {"server.safetensors", "rows-0000.npz", "shared/rows-0000.npz"}


def test_each_kept_checkpoint_resumes_to_the_same_end(tmp_path):
    """Removing the newest ones by hand, as the error messages say."""
    changes = {"rounds": 6, "checkpoint": {"every": 2, "keep": 9}}
    whole = play(tmp_path, job(tmp_path, **changes))
    own = states(whole.directory, parts(tmp_path, job(tmp_path, **changes)))
    for round in (4, 2, 0):
        for c in committed(whole.directory / "checkpoints"):
            if c.round > round:
                (c.folder / "manifest.json").unlink()
        assert torch.equal(resume(whole.directory).x, whole.x)
        again = states(whole.directory, parts(tmp_path, job(tmp_path, **changes)))
        assert all(torch.equal(a.c, b.c) for a, b in zip(own, again, strict=True))
        lines = (whole.directory / "log.jsonl").read_text().splitlines()
        assert [json.loads(line)["round"] for line in lines] == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("number", STOP)
def test_a_signal_stops_after_the_round_and_counts_once(tmp_path, monkeypatch, number):
    run_round = loop.run_round

    def signalled(run, server, t, asked):
        if t == 2:
            os.kill(os.getpid(), number)
        return run_round(run, server, t, asked)

    monkeypatch.setattr(loop, "run_round", signalled)
    said = rf"{number.name} after round 3 of 6, with a checkpoint"
    with not_ignored(), pytest.raises(Stopped, match=said):
        play(tmp_path, job(tmp_path, checkpoint={"every": 100}))
    assert [c.round for c in committed(tmp_path / "run0" / "checkpoints")] == [0, 3]


def test_a_signal_in_the_last_round_changes_nothing(tmp_path, monkeypatch):
    run_round = loop.run_round

    def signalled(run, server, t, asked):
        if t == 5:
            os.kill(os.getpid(), signal.SIGTERM)
        return run_round(run, server, t, asked)

    monkeypatch.setattr(loop, "run_round", signalled)
    assert len(play(tmp_path, job(tmp_path)).log) == 6


def test_a_round_that_diverges_leaves_nothing(tmp_path):
    """The last checkpoint stands; the log ends before the round."""
    local = {"epochs": 2, "batch_size": 4, "lr": 1.0e300, "weight_decay": 1.0e10}
    with pytest.raises(DivergedError, match=r"client \d on rank 0, round \d: its upload"):
        play(tmp_path, job(tmp_path, local=local, checkpoint={"every": 1}))
    run = tmp_path / "run0"
    newest = committed(run / "checkpoints")[-1]
    assert (run / "log.jsonl").read_bytes().count(b"\n") == newest.round


def test_a_server_that_diverges_leaves_nothing(tmp_path):
    """Uploads are finite, one step of the server is not: in the last round nobody would see it."""
    algorithm = {"name": "fedavgm", "server_lr": 1e308, "beta": 0.0}
    with pytest.raises(DivergedError, match="round 1: the server's 'x' is not finite"):
        play(tmp_path, job(tmp_path, algorithm=algorithm, precision="float32", rounds=1))
    (kept,) = committed(tmp_path / "run0" / "checkpoints")
    assert kept.round == 0
    assert (tmp_path / "run0" / "log.jsonl").read_text() == ""


def test_the_log_is_json_where_a_score_is_not_finite(tmp_path):
    log = RunLog(tmp_path / "log.jsonl")
    log.write({"round": 3, "test_loss": float("nan"), "drift": float("inf"), "train_loss": 0.5})
    log.close()
    (line,) = (tmp_path / "log.jsonl").read_text().splitlines()
    assert line.startswith('{"round": 3, "test_loss": null, "drift": null, "train_loss": 0.5, "crc')


def test_an_error_of_a_client_names_it(tmp_path, monkeypatch):
    take_steps = Sequential._take_steps

    def broken(self, tasks, carries):
        (task,) = tasks
        if (task.client_id, task.round) == (3, 2):
            task = task._replace(batches=iter([next(task.batches)]))
        return take_steps(self, [task], carries)

    monkeypatch.setattr(Sequential, "_take_steps", broken)
    with pytest.raises(ClientError, match="client 3, round 3, step 1: StopIteration"):
        play(tmp_path, job(tmp_path))


def test_two_runs_of_one_process(tmp_path):
    """Nothing of the first shows in the second."""
    once = play(tmp_path, job(tmp_path)).x
    play(tmp_path, job(tmp_path, precision="float32", seed=9))
    assert torch.equal(play(tmp_path, job(tmp_path)).x, once)


def test_a_run_that_ended_may_be_resumed_in_the_same_process(tmp_path):
    """As a notebook does: the lock is of the run, not of the process."""
    loaded = read(tmp_path, job(tmp_path))
    first = start(loaded, tmp_path / "run")
    assert torch.equal(resume(tmp_path / "run").x, first.x)


def test_a_start_that_died_before_its_first_checkpoint_is_made_again(tmp_path):
    whole = play(tmp_path, job(tmp_path))
    died = tmp_path / "died"
    start(load(job(tmp_path)), died)
    for checkpoint in committed(died / "checkpoints"):
        (checkpoint.folder / "manifest.json").unlink()
    (died / "log.jsonl").unlink()
    assert torch.equal(start(load(job(tmp_path)), died).x, whole.x)
    lines = (died / "log.jsonl").read_text().splitlines()
    assert [json.loads(line)["round"] for line in lines] == [1, 2, 3, 4, 5, 6]


@pytest.fixture
def held(monkeypatch):
    """Writing the checkpoint of round 2 waits until this is set."""
    gate, write = Event(), writer._write

    def wait(folder, *rest):
        if folder.name == "00000002":
            assert gate.wait(60)
        write(folder, *rest)

    monkeypatch.setattr(writer, "_write", wait)
    return gate


def test_rounds_go_on_while_a_checkpoint_is_written(tmp_path, held, monkeypatch):
    """Round 2's is held back until round 4 has begun, and waited for when another is due."""
    found, run_round = [], loop.run_round

    def watched(run, server, t, ask):
        found.append([c.round for c in committed(tmp_path / "run" / "checkpoints")])
        if t == 3:
            held.set()
        return run_round(run, server, t, ask)

    monkeypatch.setattr(loop, "run_round", watched)
    loaded = load(job(tmp_path, rounds=5, checkpoint={"every": 2, "keep": 9}))
    start(loaded, tmp_path / "run")
    assert found[:4] == [[0]] * 4
    assert found[4] in ([0, 2], [0, 2, 4])
    newest = committed(tmp_path / "run" / "checkpoints")
    assert [c.round for c in newest] == [0, 2, 4, 5]


def diverge(server):
    return server._replace(x=server.x * float("nan"))


def fail(server):
    raise RuntimeError("the flux capacitor is empty")


def change_in_place_and_fail(server):
    server.x.add_(100.0)
    fail(server)


@pytest.mark.parametrize(
    ("fault", "error", "kept"),
    [
        (diverge, DivergedError, [0, 2]),
        (fail, HookError, [0, 2]),
        (change_in_place_and_fail, HookError, [0]),  # what is written may be what was changed
    ],
)
def test_an_error_loses_no_checkpoint_on_its_way(tmp_path, held, monkeypatch, fault, error, kept):
    update = Scaffold.update

    def broken(self, server, mean, cohort):
        if cohort.round < 2:
            return update(self, server, mean, cohort)
        held.set()
        return fault(server)

    monkeypatch.setattr(Scaffold, "update", broken)
    loaded = load(job(tmp_path, rounds=9, checkpoint={"every": 2}))
    with pytest.raises(error):
        start(loaded, tmp_path / "run")
    assert [c.round for c in committed(tmp_path / "run" / "checkpoints")] == kept


def test_an_error_of_a_callback_loses_no_checkpoint_on_its_way(tmp_path, held):
    class Fails(Callback):
        def round(self, record, model):
            if record["round"] == 3:
                held.set()
                raise KeyError("accuracy")

    loaded = load(job(tmp_path, rounds=9, checkpoint={"every": 2}))
    with pytest.raises(HookError, match="KeyError"):
        start(loaded, tmp_path / "run", callbacks=[Fails()])
    assert [c.round for c in committed(tmp_path / "run" / "checkpoints")] == [0, 2]


def test_a_commit_that_fails_is_not_tried_again(tmp_path):
    """Its error says what is wrong, and that rounds were trained."""

    class Blocks(Callback):
        def round(self, record, model):
            if record["round"] == 3:
                (tmp_path / "run/checkpoints/00000002/manifest.json/file").mkdir(parents=True)

    loaded = load(job(tmp_path, rounds=9, checkpoint={"every": 2}))
    with pytest.raises(StoreError, match="Is a directory") as caught:
        start(loaded, tmp_path / "run", callbacks=[Blocks()])
    assert caught.value.exit_code == 1


@pytest.mark.parametrize("name", ["fedhbm", "localghb", "scaffold"])
def test_states_of_fewer_bits_are_rounded_once(tmp_path, name):
    """As if every state were rounded when its client leaves; whatever is in the cache."""
    found = []
    for k, cache in enumerate((0.0, 1.0)):
        store = {"dtype": "bfloat16", "cache_gib": cache}
        changes = {"algorithm": {"name": name}, "rounds": 6, "store": store}
        found.append(start(load(job(tmp_path, **changes)), tmp_path / f"run{k}"))
    assert torch.equal(found[0].x, found[1].x)
    exact = start(load(job(tmp_path, algorithm={"name": name}, rounds=6)), tmp_path / "exact")
    gap = float((found[0].x - exact.x).norm() / exact.x.norm())
    assert 0 < gap < 1e-2


@pytest.mark.parametrize("executor", ["sequential", "block"])
def test_states_that_were_read_are_let_go_before_the_new_ones_come(tmp_path, monkeypatch, executor):
    """All 5 clients remember: 5 places in memory, and one for a new state beside its old one."""
    shelves = []

    class Noted(StateArena):
        def __init__(self, schema, **how):
            super().__init__(schema, **how)
            shelves.append(self)

    monkeypatch.setattr("hpcfl.store.hdf5.StateArena", Noted)
    monkeypatch.setattr("hpcfl.store.footprint.BLOCK_BYTES", 1)  # a block a state
    cohort = {"kind": "replay", "rounds": [[0, 1, 2, 3, 4]] * 3}
    play(tmp_path, job(tmp_path, cohort=cohort, rounds=3, executor=executor))
    (shelf,) = shelves
    assert len(shelf._blocks) == 6


class ChangesLate(FedAvg):
    """Breaks the rule in a round that no trial plays."""

    where = "update"

    def update(self, server, mean, cohort):
        if self.where == "update" and cohort.round == 2:
            server.x.add_(100.0)
        return super().update(server, mean, cohort)

    def broadcast(self, server, cohort):
        if self.where == "broadcast" and cohort.round == 2:
            server.x.add_(100.0)
        return super().broadcast(server, cohort)


@pytest.mark.parametrize("where", ["update", "broadcast"])
def test_a_server_that_is_changed_in_place_is_refused(where, tmp_path, monkeypatch):
    """Its checkpoint may be being written, and the best model may be its x."""
    monkeypatch.setattr(ChangesLate, "where", where)
    own = {"name": f"{__name__}.ChangesLate"}
    with pytest.raises(HookError, match="in place in round 3; make a new tensor"):
        play(tmp_path, job(tmp_path, algorithm=own, rounds=4))
