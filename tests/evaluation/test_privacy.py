"""The epsilon of DP-FedAvg: against formulas of the papers, in the log, in a plan."""

import os
from importlib import import_module
from math import log, log1p, pi, sqrt

import numpy as np
import pytest
import yaml

import hpcfl.evaluation.privacy as privacy
from hpcfl.algorithms.dpfedavg import DPFedAvg
from hpcfl.algorithms.fedavg import FedAvg
from hpcfl.clients.sampling import Bernoulli, Cyclic, Uniform
from hpcfl.errors import JobError
from hpcfl.evaluation.privacy import accountant
from hpcfl.io.packages import installed
from tests.algorithms.play import play, softmax_problem, tree

CLIENTS = 6
KEYS = {"name": "dpfedavg", "clip": 0.5, "noise": 1.0}


@pytest.fixture
def library():
    if not installed(privacy.PACKAGE):
        give_up = pytest.fail if os.environ.get("HPCFL_REQUIRE_PRIVACY") == "1" else pytest.skip
        give_up("the extra privacy is not installed")


@pytest.fixture
def missing(monkeypatch):
    monkeypatch.setattr(privacy, "installed", lambda package: False)


def of(cohort, population=1000, **fields):
    return accountant(DPFedAvg(**{"clip": 1.0, "noise": 1.0} | fields), cohort, population)


def least(renyi, delta):
    """Epsilon by the Renyi divergence of each order (Canonne, Kamath, Steinke, 2020).

    The orders are so many that another one gives no less in the first three digits.
    """
    orders = 1 + np.geomspace(0.1, 255, 200)
    return min(renyi(a) + log1p(-1 / a) - (log(delta) + log(a)) / (a - 1) for a in orders)


# Epsilon is least at the orders 7.9, 8, 3.3, 2.8, 2.3 and 1.8.
@pytest.mark.parametrize(
    ("q", "z", "rounds"),
    [
        (0.01, 1.0, 500),
        (0.1, 2.0, 50),
        (0.01, 0.6, 100),
        (0.3, 1.0, 10),
        (0.1, 0.8, 100),
        (0.001, 0.3, 100),
    ],
)
def test_poisson_sampling(library, q, z, rounds):
    """The integral that defines the divergence (Mironov, Talwar, Zhang, 2019, section 3)."""
    x, step = np.linspace(-40 * z, 256 + 40 * z, 20_001, retstep=True)
    density = -(x**2) / (2 * z * z) - log(z * sqrt(2 * pi))  # its logarithm, without the client
    ratio = np.logaddexp(log1p(-q), log(q) + (2 * x - 1) / (2 * z * z))

    def renyi(a):
        terms = density + a * ratio
        most = terms.max()
        return rounds * (most + log(step * np.exp(terms - most).sum())) / (a - 1)

    found = of(Bernoulli(p=q), noise=z)
    assert found.delta == pytest.approx(1000**-1.1)
    expected = least(renyi, found.delta)
    assert expected * (1 - 1e-3) <= found.epsilon(rounds) <= expected * (1 + 1e-2)


@pytest.mark.parametrize("rounds", [1, 100, 4000])
def test_no_sampling(library, rounds):
    """T rounds of a Gaussian: T a / (2 z^2); cohorts that nobody draws, or everyone takes part."""
    for cohort in (Cyclic(size=10), Uniform(size=1000), Bernoulli(p=1.0)):
        found = of(cohort, noise=20.0, delta=1e-5)
        expected = least(lambda a: rounds * a / (2 * 20.0**2), 1e-5)
        assert expected * (1 - 1e-3) <= found.epsilon(rounds) <= expected * (1 + 1e-2)
    assert "no sampling" in of(Cyclic(size=10)).bound


@pytest.mark.parametrize("q", [0.001, 0.01, 0.1, 0.5])
def test_no_more_than_the_library_gives(library, q):
    """With its own orders; and more noise, fewer rounds or less sampling give less away."""
    accounting = import_module(privacy.PACKAGE)

    def by_the_library(z):
        event = accounting.PoissonSampledDpEvent(q, accounting.GaussianDpEvent(z))
        accountant = accounting.rdp.RdpAccountant()
        return [accountant.compose(event, n).get_epsilon(1000**-1.1) for n in (1, 29, 970)]

    def ours(q, z):
        accountant = of(Bernoulli(p=q), noise=z)
        return [accountant.epsilon(rounds) for rounds in (1, 30, 1000)]

    noises = (0.4, 0.8, 2.0, 8.0)
    found = np.array([ours(q, z) for z in noises])
    expected = np.array([by_the_library(z) for z in noises])
    assert np.all(found <= expected * (1 + 1e-9))
    assert found == pytest.approx(expected, rel=1e-2)
    assert np.all(np.diff(found, axis=0) <= 0)
    assert np.all(np.diff(found, axis=1) >= 0)
    assert np.all([ours(0.8 * q, z) for z in noises] <= found)


def test_an_order_that_is_left_out_is_no_warning(library, caplog):
    """At this rate and noise the library leaves out the orders 1.1 to 1.7, and warns of each."""
    assert of(Bernoulli(p=0.5), noise=0.8).epsilon(1) < np.inf
    assert not caplog.records


def test_fixed_size_is_another_bound(library):
    """Of one client replaced; more than of Poisson sampling, less than without sampling."""
    fixed, poisson, plain = (
        of(cohort, noise=4.0).epsilon(20)
        for cohort in (Uniform(size=10), Bernoulli(p=0.01), Cyclic(size=10))
    )
    assert poisson < fixed < plain
    assert "without replacement" in of(Uniform(size=10)).bound


@pytest.mark.parametrize("cohort", [Bernoulli(p=0.1), Uniform(size=100)], ids=str)
def test_the_noise_for_an_epsilon(library, cohort):
    noise = of(cohort).noise_for(8.0, 100)
    assert of(cohort, noise=noise).epsilon(100) == pytest.approx(8.0, abs=1e-3)
    assert of(cohort, noise=0.95 * noise).epsilon(100) > 8
    assert of(cohort, noise=float(f"{noise:.6g}")).epsilon(100) <= 8  # as a plan prints it


def test_no_rounds_give_nothing_away(library):
    assert of(Bernoulli(p=0.1)).epsilon(0) == 0


def test_without_noise_there_is_no_epsilon_to_report(tmp_path, job, capsys):
    without = {**job, "algorithm": KEYS | {"noise": 0.0}}
    assert not any("epsilon" in line for line in play(tmp_path, without).log)
    assert "epsilon is not in the log: without noise it is infinite" in capsys.readouterr().err


def test_other_methods_promise_none():
    assert accountant(FedAvg(), Bernoulli(p=0.1), 1000) is None


def test_a_missing_package_is_one_line(missing):
    found = of(Bernoulli(p=0.1))
    assert found.why_none.startswith("dp-accounting is not installed")
    for call in (lambda: found.epsilon(1), lambda: found.noise_for(8.0, 1)):
        with pytest.raises(JobError, match="needs the package dp-accounting; pip install"):
            call()


@pytest.fixture
def job(tmp_path):
    made = tree(tmp_path, softmax_problem(), KEYS, rounds=4)
    return {**made, "cohort": {"kind": "bernoulli", "p": 0.5}, "evaluate": {"every": 2}}


def test_the_log_has_epsilon_at_every_evaluation(library, tmp_path, job):
    log = play(tmp_path, job).log
    found = of(Bernoulli(p=0.5), CLIENTS, clip=0.5)
    expected = {t: pytest.approx(found.epsilon(t)) for t in (0, 2, 4)}
    assert {line["round"]: line["epsilon"] for line in log if "epsilon" in line} == expected


def test_a_run_without_the_package_says_so(missing, tmp_path, job, capsys):
    log = play(tmp_path, job).log
    assert not any("epsilon" in line for line in log)
    assert "epsilon is not in the log: dp-accounting is not installed" in capsys.readouterr().err


@pytest.fixture
def file(tmp_path, job):
    path = tmp_path / "private.yaml"
    path.write_text(yaml.safe_dump(job))
    return path


def test_a_plan_has_epsilon_and_finds_the_noise(library, file, hpcfl):
    found = of(Bernoulli(p=0.5), CLIENTS)
    done = hpcfl("plan", file, "--epsilon", "20")
    assert f"epsilon {found.epsilon(4):.4g} for delta {CLIENTS**-1.1:.3g}" in done.text
    noise = found.noise_for(20.0, 4)
    assert f"epsilon 20 after 4 rounds: algorithm.noise={noise:.6g}" in done.text
    kept = hpcfl("plan", file, f"algorithm.noise={noise:.6g}").text
    assert "epsilon 20 for delta" in kept


def test_a_plan_without_noise_says_so(file, hpcfl):
    said = hpcfl("plan", file, "algorithm.noise=0").text
    assert "epsilon is not computed: without noise it is infinite" in said


def test_a_plan_without_the_package_says_so(missing, file, hpcfl, refused):
    assert "epsilon is not computed: dp-accounting is not installed" in hpcfl("plan", file).text
    line = refused("plan", file, "--epsilon", "8")
    assert "its epsilon needs the package dp-accounting; pip install 'hpcfl[privacy]'" in line


def test_an_epsilon_of_another_method_is_refused(file, refused):
    line = refused("plan", file, "algorithm={name: fedavg}", "--epsilon", "8")
    assert line.endswith("--epsilon: fedavg promises no privacy; use algorithm.name: dpfedavg")


@pytest.mark.parametrize("epsilon", ["-1", "0", "inf", "much"])
def test_an_epsilon_is_a_positive_number(file, hpcfl, capsys, epsilon):
    with pytest.raises(SystemExit):
        hpcfl("plan", file, f"--epsilon={epsilon}")
    assert f"found '{epsilon}', expected a positive number" in capsys.readouterr().err


def test_other_weights_are_refused(file, refused):
    assert "set weights: uniform" in refused("run", file, "weights=examples")


def test_clients_asked_in_place_of_others_are_refused(file, refused):
    setting = ["cohort={kind: uniform, size: 2}", "devices={over_select: 1.5}"]
    line = refused("run", file, *setting)
    assert "devices.over_select: found 1.5 with dpfedavg, whose epsilon does not hold" in line


def test_a_branch_keeps_the_noise_and_the_cohorts(missing, tmp_path, job, refused):
    run = play(tmp_path, {**job, "checkpoint": {"every": 1, "keep": 9}}).directory
    for change in ("algorithm.noise=2.0", "cohort.p=0.7"):
        line = refused("resume", run, change, "--round", 2, "--out", tmp_path / "new")
        assert "epsilon counts all rounds alike" in line
