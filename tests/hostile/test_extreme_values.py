"""Extreme numbers in a job: refused in one line with the key, or trained; never a traceback."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.long_form import LONG

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
HUGE, VAST = 10**12, 1.0e308

ARRAYS = """\
data: {{kind: arrays, path: {path}, clients: 4, partition: {partition}}}
model: {{name: linear}}
cohort: {cohort}
algorithm: {{name: {algorithm}}}
local: {{lr: 0.1, steps: 2, batch_size: 4}}
rounds: 2
"""
QUADRATICS = """\
data: {kind: quadratics}
model: {name: point}
cohort: {kind: uniform, size: 2}
algorithm: {name: fedavg}
local: {lr: 0.1, steps: 2}
rounds: 2
"""
# One process plays many cases under limits of memory and of time; it prints a line for each.
PLAYER = """
import json, resource, signal, sys, traceback
from pathlib import Path
from hpcfl.cli.main import main

resource.setrlimit(resource.RLIMIT_AS, (16 << 30, 16 << 30))
out = Path(sys.argv[1])
for number, (job, setting) in enumerate(json.loads(sys.argv[2])):
    signal.signal(signal.SIGALRM, signal.default_int_handler)
    signal.alarm(60)
    try:
        code = main(["run", job, setting, "--out", str(out / str(number))])
    except BaseException as e:
        traceback.print_exc()
        code = type(e).__name__
    signal.alarm(0)
    print(f"{setting}: {code}", flush=True)
"""


@pytest.fixture
def jobs(tmp_path, arrays):
    """Job files by name."""
    path = arrays()
    uniform, iid = "{kind: uniform, size: 2}", "{kind: iid}"
    made = {
        "iid": ARRAYS.format(path=path, partition=iid, cohort=uniform, algorithm="fedavg"),
        "dirichlet": ARRAYS.format(
            path=path,
            partition="{kind: dirichlet, alpha: 1.0}",
            cohort=uniform,
            algorithm="fedhbm",
        ),
        "ghb": ARRAYS.format(
            path=path, partition=iid, cohort="{kind: bernoulli, p: 0.5}", algorithm="ghb"
        ),
        "quadratics": QUADRATICS,
    }
    found = {}
    for name, text in made.items():
        found[name] = tmp_path / f"{name}.yaml"
        found[name].write_text(text)
    return found


REFUSED = [
    ("quadratics", f"data.dim={HUGE}", "data.dim: data of 2 clients in 1000000000000 dim"),
    ("quadratics", f"data.clients={HUGE}", "data.clients: data of 1000000000000 clients in 1 dim"),
    ("dirichlet", "data.partition.alpha=1.0e+308", "alpha: found 1e+308, expected a number of at"),
    (
        "iid",
        "data.partition={kind: quantity, form: power, exponent: 1.0e+308}",
        "exponent: found 1e+308, expected a number of at most 1000000",
    ),
    (
        "iid",
        f"data.partition={{kind: quantity, form: lognormal, sigma: 1.0, least: {2**62}}}",
        "need 18446744073709551616 train",
    ),
    (
        "iid",
        f"data.partition={{kind: classes, per_client: {2**62}}}",
        "need 18446744073709551616 train",
    ),
    (
        "iid",
        f"data.partition={{kind: classes, form: exact, per_client: {2**62}}}",
        f"per_client: found {2**62}",
    ),
    ("iid", "rounds=2147483648", "rounds: found 2147483648, expected a number of at most 1000000"),
    ("iid", "local.steps=2147483648", "local.steps: found 2147483648, expected a number of at"),
    (
        "iid",
        f"local={{lr: 0.1, epochs: {HUGE}}}",
        "local.epochs: found 1000000000000",
    ),
    ("iid", "local.lr=1.0e+308", "local.lr: found 1e+308, expected a number of at most 1e+300"),
    ("iid", "local.weight_decay=1.0e+308", "local.weight_decay: found 1e+308"),
    ("ghb", f"algorithm.tau={HUGE}", "algorithm.tau: found 1000000000000, expected"),
    ("iid", f"data.partition={{kind: iid, examples: {2**62}}}", "need 18446744073709551616 train"),
    ("iid", f"cohort.size={HUGE}", "cohort.size: cohorts of 1000000000000 clients"),
    ("iid", f"data.classes={HUGE}", "data.classes: found 1000000000000"),
    (
        "iid",
        "comm.timeout_s=5.0e-324",
        "comm.timeout_s: found 5e-324",
    ),
    ("ghb", "cohort.p=1.0e-9", "algorithm.name: ghb takes tau = round(1 / C), which is more than"),
    ("iid", f"checkpoint.keep={HUGE}", "checkpoint.keep: found 1000000000000"),
    ("iid", "comm.timeout_s=1.0e+30", "comm.timeout_s: found 1e+30"),
    ("iid", f"threads={HUGE}", "threads: "),
]


@pytest.mark.parametrize(("name", "setting", "said"), REFUSED, ids=[s for _, s, _ in REFUSED])
def test_a_number_that_no_run_can_take(name, setting, said, jobs, tmp_path, refused):
    line = refused("run", jobs[name], setting, "--out", tmp_path / "run")
    assert said in line
    assert not (tmp_path / "run").exists()


def test_examples_without_features(arrays, job, refused):
    path = arrays("empty.npz", x=np.zeros((40, 0)), x_test=np.zeros((12, 0)))
    line = refused("run", job, f"data.path={path}")
    assert "data.kind: arrays: an example of train has the shape (0,)" in line
    assert "expected one feature at least" in line


INTEGERS = [
    "evaluate.every",
    "evaluate.last",
    "evaluate.batch_size",
    "local.batch_size",
    "checkpoint.every",
    "checkpoint.keep",
    "threads",
    "seed",
    "data.clients",
    "cohort.size",
    "diagnostics.every",
    "data.classes",
]
FLOATS = [
    "local.lr",
    "local.lr_decay",
    "local.weight_decay",
    "local.momentum",
    "local.clip",
    "checkpoint.minutes",
    "store.cache_gib",
    "comm.timeout_s",
    "algorithm.server_lr",
    "data.holdout",
]


def cases():
    """A job and a setting of each."""
    for key in INTEGERS:
        for value in (2**31, 2**63 - 1, 2**64):
            yield "iid", f"{key}={value}"
    for key in FLOATS:
        for value in ("5.0e-324", "1.0e+30", "1.0e+308"):
            yield "iid", f"{key}={value}"
    for value in ("5.0e-324", "1.0e-300", "1.0e-9", "1.0e+30", "1.0e+308"):
        yield "dirichlet", f"data.partition.alpha={value}"
        for kind in ("dirichlet_per_class", "quantity"):
            yield "iid", f"data.partition={{kind: {kind}, least: 1, alpha: {value}}}"
        for form, key in (("lognormal", "sigma"), ("power", "exponent")):
            yield "iid", f"data.partition={{kind: quantity, form: {form}, {key}: {value}}}"
        yield "ghb", f"algorithm.beta={value}"
        yield "ghb", f"cohort.p={value}"
        for key in ("curvature", "spread", "heterogeneity"):
            yield "quadratics", f"data.{key}={value}"
    for value in (1, 5_000, 2**31, 2**64):
        yield "ghb", f"algorithm.tau={value}"
        yield "quadratics", f"data.dim={value if value != 5_000 else 2**40}"


def test_no_extreme_number_ends_in_a_traceback(jobs, tmp_path):
    """Every exit code is that of a run, of a wrong job or of divergence; CI plays every sixth."""
    chosen = list(cases())[:: 1 if LONG else 6]
    given = json.dumps([(str(jobs[name]), setting) for name, setting in chosen])
    done = subprocess.run(
        [sys.executable, "-c", PLAYER, str(tmp_path / "runs"), given],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
    )
    codes = {}
    for line in done.stdout.splitlines():
        setting, _, code = line.rpartition(": ")
        codes[setting] = code
    wrong = {setting: code for setting, code in codes.items() if code not in ("0", "2", "3")}
    assert not wrong, f"{wrong}\n{done.stderr[-3000:]}"
    assert "Traceback" not in done.stderr, done.stderr[-3000:]
    assert len(codes) == len(chosen), done.stderr[-3000:]
