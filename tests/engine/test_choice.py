"""Cohorts by weight and by loss: against plain programs, by hand, stopped and resumed."""

import numpy as np
import pytest
import torch
from torch import nn

from hpcfl.clients.client_states import ClientStates
from hpcfl.engine import choice
from hpcfl.engine import round as round_
from hpcfl.errors import DivergedError, JobError
from hpcfl.evaluation.measure import Meter
from hpcfl.seeds import stream
from hpcfl.start.start import resume, start
from tests.algorithms.play import kept, parts, play, read, servers, softmax_problem, states, tree

PROBLEM = softmax_problem()
SIZES = np.array([3, 8, 5, 12, 7, 1])
DIGITS = {
    "task": "digits",
    "data": {"partition": {"kind": "dirichlet", "alpha": 0.3}, "clients": 12},
    "cohort": {"kind": "power_of_choice", "size": 3, "candidates": 7},
    "algorithm": {"name": "fedavg"},
    "local": {"steps": 2, "batch_size": "full", "lr": 0.5},
    "precision": "float64",
    "rounds": 5,
    "device": "cpu",
    "seed": 4,
}
POWER = {"kind": "power_of_choice", "size": 2, "candidates": 4}


def job(folder, **changes):
    return tree(folder, PROBLEM, **{"algorithm": {"name": "fedavg"}, **changes})


@pytest.fixture
def chosen(monkeypatch):
    """The members of each round, as the losses choose them."""
    found = []

    def noting(*args):
        made = choice.choose(*args)
        found.append(made.participation.members.tolist())
        return made

    monkeypatch.setattr(round_, "choose", noting)
    return found


@pytest.mark.parametrize("weights", ["examples", "uniform"])
def test_power_of_choice_is_what_a_plain_program_does(tmp_path, chosen, weights):
    """Five rounds on digits: candidates by p, then forward passes, then the mean of three models.

    The plain program has its own model, losses and steps; data, split and the stream of the draws
    are those of the job.
    """
    described = parts(tmp_path, {**DIGITS, "weights": weights})
    run = play(tmp_path, kept({**DIGITS, "weights": weights}))
    population = described.population
    dataset, train = population.dataset, population.dataset.train
    inputs = dataset.transform(train.inputs, torch.float64, None)
    labels, rows = train.labels, [torch.as_tensor(own) for own in population.rows]
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 10)).double()
    nn.utils.vector_to_parameters(described.model.x0.clone(), model.parameters())
    sizes = np.array([len(own) for own in rows], dtype=float)
    p = sizes / sizes.sum() if weights == "examples" else np.full(12, 1 / 12)
    expected = []

    def loss(i):
        return nn.functional.cross_entropy(model(inputs[rows[i]]), labels[rows[i]])

    for t in range(5):
        x = nn.utils.parameters_to_vector(model.parameters()).detach().clone()
        candidates = stream(4, "cohort", t).choice(12, 7, replace=False, p=p)
        with torch.no_grad():
            losses = {int(i): float(loss(i)) for i in candidates}
        members = sorted(sorted(losses, key=lambda i: -losses[i])[:3])
        expected.append(members)
        ends = []
        for i in members:
            nn.utils.vector_to_parameters(x.clone(), model.parameters())
            for _ in range(2):
                model.zero_grad()
                loss(i).backward()
                with torch.no_grad():
                    for parameter in model.parameters():
                        parameter -= 0.5 * parameter.grad
            ends.append(nn.utils.parameters_to_vector(model.parameters()).detach().clone())
        nn.utils.vector_to_parameters(torch.stack(ends).mean(0), model.parameters())
        ours = torch.as_tensor(servers(run.directory)[t + 1]["x"])
        plain = nn.utils.parameters_to_vector(model.parameters()).detach()
        assert torch.allclose(ours, plain, rtol=0, atol=1e-12)
    assert chosen == expected
    assert [line["clients"] for line in run.log if line["round"]] == [3] * 5


def test_the_chosen_clients_replayed_give_the_same_bits(tmp_path, chosen):
    described = job(tmp_path, cohort=POWER, algorithm={"name": "scaffold"})
    power = play(tmp_path, kept(described))
    again = {**described, "cohort": {"kind": "replay", "rounds": chosen}, "weights": "uniform"}
    for ours, replayed in zip(
        servers(power.directory), servers(play(tmp_path, kept(again)).directory), strict=True
    ):
        assert all(np.array_equal(ours[name], replayed[name]) for name in replayed)


def test_states_are_read_ahead_from_the_choice_on(tmp_path, chosen, monkeypatch):
    """Those of the chosen, before batches are made; and none of the round after."""
    prefetch, asked = ClientStates.prefetch, []

    def noting(self, clients):
        asked.append(list(clients))
        prefetch(self, clients)

    monkeypatch.setattr(ClientStates, "prefetch", noting)
    play(tmp_path, job(tmp_path, cohort=POWER, algorithm={"name": "scaffold"}))
    assert asked == [clients for members in chosen for clients in (members, [])]


def test_as_many_candidates_as_places_need_no_loss(tmp_path, chosen):
    cohort = {"kind": "power_of_choice", "size": 3, "candidates": 3}
    described = job(tmp_path, cohort=cohort)
    play(tmp_path, described)
    drawn = parts(tmp_path, described).population.participation
    assert chosen == [drawn(t).members.tolist() for t in range(described["rounds"])]


def test_candidates_in_the_log(tmp_path):
    """The model to the two that do not train too, and a number from each of the four."""
    log = play(tmp_path, job(tmp_path, cohort=POWER)).log
    for line in log:
        assert (line["clients"], line["candidates"]) == (2, 4)
        assert line["down_bytes"] == 4 * 8 * 15
        assert line["up_bytes"] == 2 * 8 * 15 + 4 * 8
        assert line["evaluate_s"] > 0
    assert "candidates" not in play(tmp_path, job(tmp_path)).log[0]


@pytest.mark.parametrize("cohort", [POWER, {"kind": "importance", "size": 4}])
def test_a_block_has_the_cohorts_of_one_after_the_other(tmp_path, chosen, cohort):
    described = job(tmp_path, cohort=cohort, algorithm={"name": "scaffold"})
    one = servers(play(tmp_path, kept(described)).directory)
    sequential, chosen[:] = list(chosen), []
    block = servers(play(tmp_path, kept({**described, "executor": "block"})).directory)
    assert chosen == sequential
    for a, b in zip(one, block, strict=True):
        assert all(np.allclose(a[name], b[name], rtol=1e-12, atol=1e-13) for name in a)


@pytest.mark.parametrize("cohort", [POWER, {"kind": "importance", "size": 4}])
@pytest.mark.parametrize("stop", [1, 3])
def test_resumed_at_a_round(tmp_path, cohort, stop):
    """As it would have gone on, with client states on the disk and none in memory."""
    changes = {"algorithm": {"name": "scaffold"}, "store": {"cache_gib": 0.0}}
    described = kept(job(tmp_path, cohort=cohort, **changes))
    whole = servers(play(tmp_path, described).directory)
    first = start(read(tmp_path, {**described, "rounds": stop}), tmp_path / "first").directory
    again = servers(resume(first, ["rounds=6"]).directory)
    for a, b in zip(whole, again, strict=True):
        assert all(np.array_equal(a[name], b[name]) for name in a)


def test_importance_counts_a_client_as_often_as_it_was_drawn(tmp_path):
    """x - (1/m) sum of count_i delta_i, with each client's movement from a round of its own."""
    cohort = {"kind": "importance", "size": 5}
    described = job(tmp_path, cohort=cohort, rounds=1)
    drawn = stream(5, "cohort", 0).choice(6, 5, p=SIZES / SIZES.sum())
    assert len(set(drawn.tolist())) < 5
    run = play(tmp_path, kept(described))
    x0, x1 = (server["x"] for server in servers(run.directory))
    expected = x0.copy()
    for i in drawn.tolist():
        alone = {**described, "cohort": {"kind": "replay", "rounds": [[i]]}}
        expected -= (x0 - servers(play(tmp_path, kept(alone)).directory)[-1]["x"]) / 5
    assert np.allclose(x1, expected, rtol=0, atol=1e-15)
    assert run.log[0]["clients"] == len(set(drawn.tolist()))
    assert run.log[0]["up_bytes"] == 8 * 15 * run.log[0]["clients"]


def test_a_plain_mean_has_each_client_of_importance_once(tmp_path):
    """SCAFFOLD's c stays the mean of all c_i, whichever clients are drawn twice."""
    changes = {"algorithm": {"name": "scaffold"}, "cohort": {"kind": "importance", "size": 5}}
    described = kept(job(tmp_path, **changes))
    run = play(tmp_path, described)
    held = states(run.directory, parts(tmp_path, described))
    total = sum(state.c.numpy() for state in held if state is not None)
    assert np.allclose(servers(run.directory)[-1]["c"], total / 6, rtol=0, atol=1e-14)


def test_a_loss_that_is_not_finite_is_named(tmp_path, monkeypatch):
    of_clients = Meter.of_clients

    def broken(self, clients, *args, **how):
        found = of_clients(self, clients, *args, **how)
        return {
            i: {**own, "loss": float("nan") if i == 3 else own["loss"]} for i, own in found.items()
        }

    monkeypatch.setattr(Meter, "of_clients", broken)
    cohort = {"kind": "power_of_choice", "size": 2, "candidates": 6}
    message = r"round 1: the loss of client 3 is not finite at the server's model; no client was"
    with pytest.raises(DivergedError, match=message):
        play(tmp_path, job(tmp_path, cohort=cohort))


def test_candidates_are_among_the_available_and_the_late_do_not_count(tmp_path, chosen):
    """Half of the clients can be asked; two places are kept for three with the largest losses."""
    devices = {"available": 0.5, "examples_per_s": {"median": 10.0, "sigma": 1.0}}
    more = {"over_select": 1.5, "deadline_s": 4.0, "late": "shorten"}
    described = job(tmp_path, cohort=POWER, devices=devices | more, rounds=12)
    log = play(tmp_path, described).log
    participants = parts(tmp_path, described).population.participants
    for line, members in zip(log, chosen, strict=True):
        t = line["round"] - 1
        available = participants.available(t)
        candidates = participants.candidates(t)
        assert line["candidates"] == len(candidates) == min(4, len(available))
        assert set(candidates.tolist()) <= set(available.tolist())
        assert set(members) <= set(candidates.tolist())
        assert line["clients"] == len(members) <= 2
    assert {len(members) for members in chosen} == {0, 1, 2}


def test_importance_among_the_available(tmp_path):
    """Draws are as many, of those that can be asked; who answers counts as often as drawn."""
    described = job(
        tmp_path, cohort={"kind": "importance", "size": 5}, devices={"available": 0.5}, rounds=1
    )
    participants = parts(tmp_path, described).population.participants
    for t in range(50):
        available, members = participants.available(t), participants(t).members
        assert set(members.tolist()) <= set(available.tolist())
        weights = participants.weights(t, members)
        assert weights.sum() == (5 if len(available) else 0)
        assert weights[1:].tolist() == participants.weights(t, members[1:]).tolist()


def test_no_more_clients_are_asked_than_there_are_candidates(tmp_path):
    devices = {"over_select": 2.5, "examples_per_s": 1.0}
    with pytest.raises(JobError, match=r"over_select: found 2.5, which asks 5 clients of 4 cand"):
        play(tmp_path, job(tmp_path, cohort=POWER, devices=devices))


def test_importance_asks_for_no_more_clients_than_it_draws(tmp_path):
    devices = {"over_select": 1.5, "examples_per_s": 1.0}
    with pytest.raises(JobError, match=r"over_select: found 1.5 with cohort.kind importance"):
        play(tmp_path, job(tmp_path, cohort={"kind": "importance", "size": 2}, devices=devices))


@pytest.mark.parametrize("cohort", [POWER, {"kind": "importance", "size": 2}])
def test_no_privacy_is_promised_for_them(tmp_path, cohort):
    private = {"name": "dpfedavg", "clip": 1.0, "noise": 1.0}
    with pytest.raises(JobError, match=f"dpfedavg has no bound for cohorts of {cohort['kind']}"):
        play(tmp_path, tree(tmp_path, PROBLEM, private, cohort=cohort))
