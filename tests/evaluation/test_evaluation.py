"""The scores of a model, by hand; tests/parallel has them on several ranks.

The model is linear in one feature, without bias: its logits are (0, w, 2 w) at w = 1, so an
example at 1 is taken for class 2 and one at -1 for class 0.
"""

import csv
import math

import numpy as np
import pytest
import torch

from hpcfl.clients.client_pool import ClientPool
from hpcfl.engine.hook_rules import CheckedAlgorithm
from hpcfl.errors import JobError
from hpcfl.evaluation.clients import _summary
from hpcfl.evaluation.metrics import Scoring, totals
from hpcfl.job.load import load
from hpcfl.local.sequential import Sequential
from hpcfl.runs.log_keys import measured
from hpcfl.start.checks.preflight import check_sizes
from hpcfl.start.components.scores import own_models
from tests.algorithms.play import Problem, parts, play, read, states, tree

X = np.array([[1.0], [1.0], [-1.0], [1.0], [-1.0], [1.0], [1.0]])
Y = np.array([2, 0, 0, 2, 2, 2, 1])
CLIENT = np.array([0, 0, 1, 2, 2, 2, 2])
THREE = Problem(X, Y, CLIENT)
# The losses: log(1 + e^s + e^2s) - s y, s being the sign of x.
UP, DOWN = math.log(1 + math.e + math.e**2), math.log(1 + math.e**-1 + math.e**-2)
LOSSES = [UP - 2, UP, DOWN, UP - 2, DOWN + 2, UP - 2, UP - 1]


@pytest.fixture(autouse=True)
def _determinism(determinism):
    pass


@pytest.fixture
def job(tmp_path):
    """A job of one round from w = 1, evaluated before it too."""

    def make(problem=THREE, algorithm="fedavg", **changes):
        np.save(tmp_path / "w.npy", np.array([0.0, 1.0, 2.0]))
        model = {"name": "linear", "bias": False, "init": str(tmp_path / "w.npy")}
        asked = {"every": 1, **changes.pop("evaluate", {})}
        return tree(
            tmp_path, problem, {"name": algorithm},
            **{"model": model, "evaluate": asked, "rounds": 1, **changes},
        )  # fmt: skip

    return make


@pytest.fixture
def log(tmp_path, job):
    return lambda **changes: play(tmp_path, job(**changes)).log


def near(value):
    return pytest.approx(value, rel=0, abs=1e-12)


@pytest.mark.parametrize("batch_size", [1, 3, 500])
@pytest.mark.parametrize(
    ("weights", "expected"),
    [
        ("examples", sum(LOSSES) / 7),
        ("uniform", (sum(LOSSES[:2]) / 2 + LOSSES[2] + sum(LOSSES[3:]) / 4) / 3),
    ],
)
def test_the_objective_weighs_clients_as_the_job_does(log, weights, expected, batch_size):
    asked = {"train": True, "batch_size": batch_size}
    found = log(evaluate=asked, weights=weights)
    assert found[0]["train_objective"] == near(expected)
    assert found[1]["train_objective"] < expected  # trained


def test_the_objective_is_what_full_batch_training_starts_at(log):
    local = {"steps": 1, "batch_size": "full", "lr": 0.1}
    found = log(evaluate={"train": True}, local=local)
    assert found[0]["train_objective"] == near(found[1]["train_loss"])


def test_accuracies_on_the_clients_training_examples(log):
    """1/2, 1 and 2/4; a tenth of three clients is one."""
    found = log(evaluate={"clients": True})[0]
    assert found["client_accuracy_mean"] == near(2 / 3)
    assert found["client_accuracy_worst_decile"] == 0.5
    assert found["client_accuracy_best_decile"] == 1.0
    assert found["client_accuracy_std"] == near(np.std([0.5, 1.0, 0.5]))
    assert "train_objective" not in found


def test_the_tenths_of_clients():
    """Of 29 clients two, of 9 one; nothing of none."""
    values = [0.1, 0.4, *[1.0] * 27]
    found = _summary("a", values, low=values, high=values[::-1])
    spread = near(np.std(values))
    assert found == {"a_mean": near(27.5 / 29), "a_std": spread, "a_low": 0.25, "a_high": 1.0}
    assert _summary("a", [], low=[]) == {}
    few = [0.1, *[0.7] * 8]
    assert _summary("a", few, low=few)["a_low"] == 0.1


def test_accuracies_on_held_out_examples(tmp_path, job, log):
    """Every client of two examples or more keeps one back; client 1 has but one, to train on."""
    data = {**THREE.write(tmp_path), "holdout": 0.25}
    described = parts(tmp_path, job(data=data))
    assert [len(own) for own in described.population.rows] == [1, 1, 3]
    assert [len(own) for own in described.population.split.held_out] == [1, 0, 1]
    right = [
        np.mean(np.where(X[own, 0] > 0, 2, 0) == Y[own])
        for own in described.population.split.held_out
        if len(own)
    ]
    found = log(data=data, evaluate={"clients": True, "train": True})[0]
    assert found["client_accuracy_mean"] == near(np.mean(right))
    assert found["client_accuracy_worst_decile"] == min(right)
    kept = np.concatenate(described.population.rows)
    assert found["train_objective"] == near(np.mean(np.array(LOSSES)[kept]))


@pytest.fixture
def owned_tests(tmp_path):
    """The three clients, and test examples of clients 0 and 2 and of one that does not train."""
    tests = [(1, 2, 0), (1, 1, 0), (-1, 0, 9), (-1, 2, 2)]
    train = zip(X[:, 0], Y, CLIENT, strict=True)
    rows = [f"{x:g},{y},{k},train" for x, y, k in train]
    rows += [f"{x},{y},{k},test" for x, y, k in tests]
    path = tmp_path / "table.csv"
    path.write_text("\n".join(["x,y,who,part", *rows, ""]))
    return {"kind": "table", "path": str(path), "label": "y", "client": "who", "split": "part"}


def test_accuracies_on_the_clients_own_test_examples(tmp_path, job, log, owned_tests):
    """1/2 of client 0, nothing of 1, none of client 2; the test set has the fourth example too."""
    asked = {"clients": "table", "train": True, "local_models": True}
    found = log(data=owned_tests, evaluate=asked, algorithm="fedhbm")[0]
    assert found["client_accuracy_mean"] == 0.25
    assert found["client_accuracy_worst_decile"] == 0.0
    assert found["test_accuracy"] == 0.5
    assert found["train_objective"] == near(sum(LOSSES) / 7)
    with (tmp_path / "run0/clients.csv").open() as file:
        first = [row for row in csv.DictReader(file) if row["round"] == "0"]
    assert [(row["client"], row["data"], row["examples"]) for row in first] == [
        ("0", "test", "2"),
        ("2", "test", "1"),
    ]
    assert [float(row["loss"]) for row in first] == [near((UP - 2 + UP - 1) / 2), near(DOWN + 2)]


@pytest.mark.parametrize(
    "change", [{"holdout": 0.25}, {"partition": {"kind": "iid"}, "clients": 3}]
)
def test_other_clients_have_no_tests_of_their_own(tmp_path, job, owned_tests, change):
    """Held-out examples come first, and clients that are dealt anew own no test example."""
    described = parts(tmp_path, job(data={**owned_tests, **change}))
    wanted = "holdout" if "holdout" in change else "train"
    assert described.population.clients.tested_on == wanted


def test_clients_kept_for_validation_take_their_tests_along(tmp_path, job, owned_tests):
    cohort, sizes = {"kind": "cyclic", "size": 2}, {2: 2, 1: 0, 4: 1}
    for seed in range(4):
        data = {**owned_tests, "validation": {"share": 0.3, "of": "clients", "seed": seed}}
        described = parts(tmp_path, job(data=data, cohort=cohort))
        assert len(described.population.rows) == 2
        assert [len(own) for own in described.population.client_tests.rows] == [
            sizes[len(own)] for own in described.population.rows
        ]


def test_clients_of_whom_none_has_tests(tmp_path, job, owned_tests):
    """Client 1, who is drawn alone, cannot be scored; if tests are strangers', nobody has any."""
    data, cohort = {**owned_tests, "clients": 1}, {"kind": "cyclic", "size": 1}
    alone = [
        described
        for seed in range(20)
        for described in [
            parts(tmp_path, job(data=data, cohort=cohort, evaluate={"clients": True}, seed=seed))
        ]
        if described.population.clients.examples == [1]
    ]
    assert alone
    with pytest.raises(JobError, match=r"none of those that train has one; set data\.holdout"):
        check_sizes(alone[0])
    table = tmp_path / "table.csv"
    rows = [line for line in table.read_text().splitlines() if ",test" not in line]
    table.write_text("\n".join([*rows, "1,2,9,test", ""]))
    described = parts(tmp_path, job(data=owned_tests, evaluate={"clients": True}))
    assert described.population.clients.tested_on == "train"
    check_sizes(described)


def test_only_tested_clients_are_tuned(tmp_path, job, owned_tests):
    found = play(tmp_path, job(data=owned_tests, evaluate={"personal": {"steps": 2}}))
    assert found.log[0]["personal_loss"] > 0
    described = parts(tmp_path, job(data=owned_tests, evaluate={"personal": {"steps": 2}}))
    assert described.population.tested_clients == 2


def test_drawn_clients_keep_their_tests(tmp_path, job, owned_tests):
    """Of two of the three clients each has its own tests, wherever it is numbered."""
    data, cohort = {**owned_tests, "clients": 2}, {"kind": "cyclic", "size": 2}
    for seed in range(4):
        described = parts(tmp_path, job(data=data, cohort=cohort, seed=seed))
        tested_on, rows = described.population.client_tests
        sizes = {2: 2, 1: 0, 4: 1}  # of its tests, by a client's training examples
        assert tested_on == "test"
        assert [len(own) for own in rows] == [sizes[len(own)] for own in described.population.rows]


@pytest.mark.parametrize("batch_size", [1, 2, 500])
@pytest.mark.parametrize("of", ["examples", "clients"])
def test_scores_on_validation_data(tmp_path, job, log, of, batch_size):
    """Of the initial model, by hand; the objective is of the examples that clients train on."""
    data = {**THREE.write(tmp_path), "validation": {"share": 0.4, "of": of}}
    cohort = {"kind": "uniform", "size": 2}
    described = parts(tmp_path, job(data=data, cohort=cohort))
    rows, trained = described.population.split.validation, np.concatenate(described.population.rows)
    assert sorted([*rows, *trained]) == list(range(7))
    asked = {"train": True, "best": True, "batch_size": batch_size}
    found = log(data=data, cohort=cohort, evaluate=asked)
    assert found[0]["validation_loss"] == near(np.mean(np.array(LOSSES)[rows]))
    right = np.mean(np.where(X[rows, 0] > 0, 2, 0) == Y[rows])
    assert found[0]["validation_accuracy"] == near(right)
    assert found[0]["train_objective"] == near(np.mean(np.array(LOSSES)[trained]))
    assert found[1]["validation_loss"] != found[0]["validation_loss"]


def test_own_models(tmp_path, job):
    """FedHBM keeps them; of three clients two took part."""
    cohort = {"kind": "replay", "rounds": [[2], [0], []]}
    asked = {"local_models": True, "clients": True}
    settings = job(algorithm="fedhbm", cohort=cohort, rounds=3, evaluate=asked)
    run = play(tmp_path, settings)
    assert [record["local_model_clients"] for record in run.log] == [0, 1, 2, 2]
    assert "local_model_accuracy_mean" not in run.log[0]
    right = []
    for client in (0, 2):
        z = states(run.directory, parts(tmp_path, settings))[client].z.numpy()
        rows = THREE.rows(client)
        right.append(np.mean((X[rows] * z).argmax(axis=1) == Y[rows]))
    assert run.log[1]["local_model_accuracy_mean"] == right[1]
    assert run.log[2]["local_model_accuracy_mean"] == near(np.mean(right))
    assert run.log[2]["local_model_accuracy_worst_decile"] == min(right)
    assert run.log[3]["local_model_accuracy_mean"] == run.log[2]["local_model_accuracy_mean"]


@pytest.mark.parametrize("algorithm", ["ditto", "fedper"])
def test_personal_models(tmp_path, job, algorithm):
    """All clients have one, the initial model if they took no part yet; the third never does."""
    cohort = {"kind": "replay", "rounds": [[2], [0], []]}
    settings = job(
        algorithm=algorithm, cohort=cohort, rounds=3, evaluate={"personal": True, "clients": True}
    )
    run = play(tmp_path, settings)
    for whose in ("mean", "std", "worst_decile", "best_decile"):
        first = run.log[0]
        assert first[f"personal_accuracy_{whose}"] == first[f"client_accuracy_{whose}"]
    assert run.log[0]["personal_loss"] == near(np.mean(LOSSES))
    components = parts(tmp_path, settings)
    right, loss, rate = [], [], []
    for client, state in enumerate(states(run.directory, components)):
        rows, kept = THREE.rows(client), state or components.first_state(client)
        outputs = torch.tensor(X[rows]) * kept[0]  # everything is the client's own
        labels = torch.tensor(Y[rows])
        right.append(int((outputs.argmax(1) == labels).sum()))
        loss.append(float(torch.nn.functional.cross_entropy(outputs, labels, reduction="sum")))
        rate.append(right[-1] / len(rows))
    assert run.log[2]["personal_accuracy"] == near(sum(right) / 7)
    assert run.log[2]["personal_loss"] == near(sum(loss) / 7)
    assert run.log[2]["personal_loss"] != run.log[1]["personal_loss"]
    assert run.log[2]["personal_accuracy_mean"] == near(np.mean(rate))
    assert run.log[2]["personal_accuracy_worst_decile"] == near(min(rate))
    assert run.log[3]["personal_loss"] == run.log[2]["personal_loss"]


@pytest.mark.parametrize("algorithm", ["ditto", "fedper"])
def test_personal_models_on_their_own_validation_data(tmp_path, job, algorithm):
    """Clients 0 and 2 keep an example each; client 1 has but one, to train on.

    Nobody asks for these scores: there are examples that the models are not trained on.
    """
    data = {**THREE.write(tmp_path), "validation": {"share": 0.3}}
    settings = job(data=data, algorithm=algorithm)
    run, components = play(tmp_path, settings), parts(tmp_path, settings)
    kept = components.population.split.own_validation
    assert [len(rows) for rows in kept] == [1, 0, 1]
    first = np.mean([LOSSES[row] for rows in kept for row in rows])
    assert run.log[0]["personal_validation_loss"] == near(first)
    loss, right = 0.0, 0
    for rows, state in zip(kept, states(run.directory, components), strict=True):
        outputs, labels = torch.tensor(X[rows]) * state[0], torch.tensor(Y[rows])
        loss += float(torch.nn.functional.cross_entropy(outputs, labels, reduction="sum"))
        right += int((outputs.argmax(1) == labels).sum())
    assert run.log[1]["personal_validation_loss"] == near(loss / 2)
    assert run.log[1]["personal_validation_accuracy"] == right / 2
    assert run.log[1]["personal_validation_loss"] != run.log[1]["validation_loss"]


def test_a_client_is_tuned_once_for_both_sets(tmp_path, job, monkeypatch):
    """For its held-out examples and for its validation data."""
    tuned, tune = [], ClientPool.task_apart
    monkeypatch.setattr(
        ClientPool, "task_apart", lambda pool, *task: tuned.append(task[0]) or tune(pool, *task)
    )
    data = {**THREE.write(tmp_path), "holdout": 0.25, "validation": {"share": 0.3}}
    found = play(tmp_path, job(data=data, evaluate={"personal": {"steps": 2}})).log
    assert tuned == [0, 2] * 2  # before and after the round
    for line in found:
        assert {"personal_loss", "personal_validation_loss"} <= set(line)


@pytest.mark.parametrize(
    ("algorithm", "data", "asked", "scored"),
    [
        ("ditto", {"holdout": 0.25}, {}, True),
        ("ditto", {"validation": {"share": 0.3}}, {}, True),
        ("ditto", {}, {}, False),  # the models know all examples by heart
        ("ditto", {"holdout": 0.25}, {"personal": False}, False),
        ("fedavg", {"holdout": 0.25}, {}, False),
    ],
)
def test_the_clients_own_models_are_scored_by_default(
    tmp_path, job, algorithm, data, asked, scored
):
    data = {**THREE.write(tmp_path), **data}
    run = play(tmp_path, job(algorithm=algorithm, data=data, evaluate=asked))
    assert ("personal_loss" in run.log[-1]) is scored
    assert load(run.directory / "job.yaml").job.evaluate.personal is scored
    key = "personal_accuracy" if scored else "validation_accuracy"
    assert run.accuracy == run.log[-1].get(key, run.log[-1].get("test_accuracy"))


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"data": {"holdout": 0.25}}, "the run counts by personal_accuracy, of the clients' own"),
        ({"data": {}}, "the clients' own models are not scored: the run counts by no score, of x"),
        ({"data": {"validation": {"share": 0.3}}}, "tested on their training examples, which"),
        (
            {"data": {"holdout": 0.25, "validation": {"share": 0.3, "of": "clients"}},
             "cohort": {"kind": "uniform", "size": 1}},
            "have no validation scores, as data.validation keeps clients that do not train",
        ),
    ],
)  # fmt: skip
def test_a_start_says_whose_score_counts(tmp_path, job, changes, told):
    data = {**THREE.write(tmp_path), **changes.pop("data")}
    described = parts(tmp_path, job(algorithm="fedper", data=data, **changes))
    assert any(told in note for note in check_sizes(described))
    assert not check_sizes(parts(tmp_path, job(data=data, **changes)))


@pytest.mark.parametrize(
    ("algorithm", "trained"),
    [
        ({"name": "ditto"}, "trained"),
        ({"name": "fedper", "personal": ["1.bias"]}, "partly trained"),
        ({"name": "fedper", "personal": "all"}, "not trained"),
        ({"name": "fedavg"}, None),
    ],
)
def test_what_of_x_is_trained_follows_from_what_is_sent(tmp_path, algorithm, trained):
    own = own_models(parts(tmp_path, tree(tmp_path, THREE, algorithm)))
    assert trained is None if own is None else own.x == trained


@pytest.mark.parametrize("executor", ["sequential", "block"])
@pytest.mark.parametrize("algorithm", ["fedavg", "ditto"])
def test_fine_tuned_models(tmp_path, job, algorithm, executor, monkeypatch):
    """Two steps more from x, or from the client's own model; the run is as it is without them.

    The run's executor takes them: in blocks of 2, the third client has a block of its own.
    """
    kind = {"executor": executor, "block_size": 2 if executor == "block" else None}
    if executor == "block":
        take_steps = Sequential._take_steps

        def in_the_trial_alone(self, *args):
            assert isinstance(self.algorithm, CheckedAlgorithm)
            return take_steps(self, *args)

        monkeypatch.setattr(Sequential, "_take_steps", in_the_trial_alone)
    local = {"steps": 5, "batch_size": "full", "lr": 0.1, "weight_decay": 0.1}
    asked = {"evaluate": {"personal": {"steps": 2}}, "local": local}
    settings = job(algorithm=algorithm, **asked, **kind)
    run, components = play(tmp_path, settings), parts(tmp_path, settings)
    plain = play(tmp_path, job(algorithm=algorithm, local=local, **kind))
    assert torch.equal(run.x, plain.x)
    loss = 0.0
    for client, state in enumerate(states(run.directory, components)):
        rows = THREE.rows(client)
        inputs, labels = torch.tensor(X[rows]), torch.tensor(Y[rows])
        w = (state.v if algorithm == "ditto" else run.x).clone().requires_grad_()
        for _ in range(2):
            mean = torch.nn.functional.cross_entropy(inputs * w, labels)
            (g,) = torch.autograd.grad(mean, w)
            w = (w - 0.1 * (g + 0.1 * w)).detach().requires_grad_()
        loss += torch.nn.functional.cross_entropy(inputs * w, labels, reduction="sum").item()
    assert run.log[1]["personal_loss"] == near(loss / 7)


def test_personal_models_of_a_regression_have_a_loss(log):
    problem = THREE._replace(y=Y.astype(float))
    model = {"name": "linear", "bias": False}
    found = log(problem=problem, algorithm="ditto", model=model, evaluate={"personal": True})
    assert {key for key in found[1] if key.startswith("personal")} == {"personal_loss"}


def test_scores_cost_nothing_unless_asked_for(tmp_path, job, monkeypatch):
    plain = play(tmp_path, job(algorithm="fedhbm"))
    assert {key for key in plain.log[0] if not measured(key)} == {"round"}
    asked = {"train": True, "clients": True, "local_models": True}
    scored = play(tmp_path, job(algorithm="fedhbm", evaluate=asked))
    assert torch.equal(scored.x, plain.x)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"evaluate": {"local_models": True}},
            "evaluate.local_models: fedavg keeps no local models",
        ),
        ({"evaluate": {"best": True}}, "evaluate.best: this data has no test set"),
        (
            {
                "problem": THREE._replace(y=Y.astype(float)),
                "evaluate": {"clients": True},
                "model": {"name": "linear"},
            },
            "evaluate.clients: accuracies need classes",
        ),
    ],
)
def test_what_cannot_be_had_is_refused(tmp_path, job, changes, message):
    components = parts(tmp_path, job(**changes))
    with pytest.raises(JobError, match=message):
        check_sizes(components)


# the five largest outputs


def top5(rows, labels):
    outputs = torch.tensor(rows)
    scoring = Scoring("cross_entropy", outputs.shape[1])
    return totals(scoring, outputs, torch.tensor(labels)).get("correct_top5")


def test_top_5():
    """Label 6 is first, label 4 third, label 1 sixth, label 0 last."""
    row = [0.0, 1.0, 2.0, 3.0, 5.0, 4.0, 6.0]
    assert [top5([row], [label]) for label in range(7)] == [0, 0, 1, 1, 1, 1, 1]
    assert top5([row, row, row], [6, 4, 0]) == 2


def test_top_5_of_equals_takes_the_lower_class_as_the_largest_does():
    assert [top5([[1.0] * 7], [label]) for label in range(7)] == [1, 1, 1, 1, 1, 0, 0]
    assert top5([[math.nan] * 7], [0]) == 0


def test_top_5_of_five_classes_says_nothing():
    assert top5([[0.0] * 5], [0]) is None


def test_top_5_of_a_run(tmp_path):
    data = {"data": {"kind": "digits", "clients": 6}, "rounds": 1, "local": {"lr": 0.001}}
    settings = tree(tmp_path, THREE, {"name": "fedavg"}, **data)
    run = play(tmp_path, settings)
    described = parts(tmp_path, settings)
    inputs, labels = described.population.dataset.test
    best = described.gradient().predict(run.x, inputs.double()).topk(5).indices
    found = run.log[-1]
    assert found["test_top5_accuracy"] == float((best == labels[:, None]).any(1).double().mean())
    assert found["test_accuracy"] < found["test_top5_accuracy"] < 1


def test_personal_models_are_asked_of_a_method_that_makes_them(tmp_path, job):
    """A job is refused as it is read: a check without data and a sweep's dry run tell it."""
    message = r"job\.yaml:\d+: evaluate\.personal: fedavg makes no models of the clients' own"
    with pytest.raises(JobError, match=message):
        read(tmp_path, job(evaluate={"personal": True}))
    read(tmp_path, job(evaluate={"personal": True}, algorithm="ditto"))
    read(tmp_path, job(evaluate={"personal": {"steps": 1}}))
    own_statistics = job(evaluate={"personal": True})
    own_statistics["model"]["statistics"] = "local"
    read(tmp_path, own_statistics)
