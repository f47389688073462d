"""The models that clients have of their own."""

import numpy as np
import pytest

from hpcfl.errors import JobError
from tests.algorithms.play import parts, softmax_problem, tree
from tests.algorithms.reference import METHODS
from tests.algorithms.settings import CLIENTS, HARDEST, a, cohorts, far, job, setting, within
from tests.algorithms.trace import trace

METHODS_WITH_MODELS = [
    a("fedper", personal=["1.bias"]),
    a("fedper", personal="all"),
    a("fedrep", personal=["1.weight"], body=0.6),
    a("fedbn"),
    a("ditto", lam=0.5),
]


def models(found):
    """{client: [P]} after the last round, of the clients that took part."""
    x = found.servers[-1].x
    return {
        i: found.algorithm.personal_model(x, state).numpy()
        for i, state in enumerate(found.states[-1])
        if state is not None
    }


def check(found, expected):
    assert found.keys() == expected.keys()
    for i, model in expected.items():
        np.testing.assert_allclose(found[i], model, rtol=0, atol=1e-12, err_msg=str(i))


@pytest.mark.parametrize("method", METHODS_WITH_MODELS, ids=str)
def test_the_clients_models_equal_plain_numpy(folder, method):
    fields = {key: value for key, value in method.fields.items() if key != "name"}
    for at in within({}):
        found, expected = trace(job(folder, method, at)), {}
        numbers = {**fields, "server_lr": at["server_lr"], "models": expected}
        METHODS[method.fields["name"]](setting(at, found.xs[0]), **numbers)
        check(models(found), expected)
        assert set(expected) == set().union(*cohorts(at))


def test_a_client_alone_is_its_own_sgd(folder):
    """By Ditto without its pull, and by FedPer with everything personal, whose x never moves."""
    for at in within({}):
        alone = trace(job(folder, a("fedper", personal="all"), at))
        ditto = trace(job(folder, a("ditto", lam=0.0), at))
        s, expected = setting(at, alone.xs[0]), {}
        for t, cohort in enumerate(cohorts(at)):
            expected |= {i: s.descend(i, t, expected.get(i, s.x0)) for i in cohort}
        check(models(alone), expected)
        check(models(ditto), expected)
        assert (alone.xs == alone.xs[0]).all()
        assert far(ditto.xs[-1], ditto.xs[0])


def test_a_pull_or_a_shared_parameter_moves_them(folder):
    alone = models(trace(job(folder, a("ditto", lam=0.0), HARDEST)))
    for other in (a("ditto", lam=0.5), a("fedper", personal=["1.weight"])):
        found = models(trace(job(folder, other, HARDEST)))
        assert all(far(found[i], alone[i]) for i in range(CLIENTS))


@pytest.mark.parametrize("name", ["fedper", "fedrep"])
def test_names_that_the_model_does_not_have_are_refused(tmp_path, name):
    settings = {"name": name, "personal": ["1.bias", "head.bias"]}
    with pytest.raises(JobError) as refused:
        parts(tmp_path, tree(tmp_path, softmax_problem(), settings))
    assert str(refused.value) == (
        f"algorithm.name: {name} keeps algorithm.personal: the model has no parameter "
        "'head.bias', expected some of 1.weight, 1.bias"
    )


def test_a_method_without_models_says_so(tmp_path):
    made = {
        name: parts(tmp_path, tree(tmp_path, softmax_problem(), {"name": name})).training.algorithm
        for name in ("fedavg", "fedhbm", "ditto", "fedrep")
    }
    assert [name for name in made if made[name].has_personal_models] == ["ditto", "fedrep"]
