"""What every algorithm must keep to, whatever it computes."""

import ast
import io
import re
import tokenize
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

import hpcfl.algorithms
from hpcfl.algorithms import ALGORITHMS
from hpcfl.algorithms.facts import Client, Cohort
from hpcfl.clients.draws import drawn
from hpcfl.engine.dry_round import dry_round
from hpcfl.engine.trial import StandIn, made_up_counts
from hpcfl.job.registry import REGISTRIES
from hpcfl.local.grad import StepGrad
from hpcfl.types import Batch
from tests.algorithms.facts import facts
from tests.algorithms.methods import ALL, SAMPLE, WHOLE
from tests.algorithms.play import softmax_problem, tree
from tests.algorithms.trace import trace
from tests.long_form import long_form

FILES = sorted(Path(hpcfl.algorithms.__file__).parent.glob("*.py"))
METHODS = [path for path in FILES if path.stem not in ("__init__", "base", "facts", "layout")]
MACHINE = {"rank", "ranks", "device", "devices", "row", "rows", "path", "paths", "cuda", "mpi"}
LOWER = (
    "hpcfl.algorithms",
    "hpcfl.algorithms.layout",
    "hpcfl.algorithms.optim",
    "hpcfl.types",
)  # modules
P = 7


def test_no_algorithm_is_missing():
    assert {entry["name"] for entry in ALL.values()} == set(ALGORITHMS)
    options = {
        (e["name"], e.get("option"), e.get("first"), e.get("nesterov")) for e in ALL.values()
    }
    assert {("scaffold", option, None, None) for option in (1, 2)} <= options
    assert {
        ("fedhbm", None, first, nesterov)
        for first in ("zero", "shared", "random")
        for nesterov in (None, True)
    } <= options


def test_names_are_the_files_names():
    assert set(ALGORITHMS) == {path.stem for path in METHODS}
    assert all(cls.__module__ == f"hpcfl.algorithms.{name}" for name, cls in ALGORITHMS.items())


def algorithm(name):
    fields = {
        key: tuple(value) if isinstance(value, list) else value
        for key, value in ALL[name].items()
        if key != "name"
    }
    fields.pop("personal", None)  # names of another model
    made = ALGORITHMS[ALL[name]["name"]](**fields)
    own = facts(
        *((1.0, 1) if name == "centralized" else (0.5, 6)),
        all_take_part=True,
        size=P,
        weight_decay=0.01,
        weights="uniform",
    )
    return made.resolve(own).with_facts(own)


class Witness:
    """An algorithm whose every hook is checked to leave its arguments as they were."""

    def __init__(self, inner):
        self._inner = inner
        self.called = set()

    def __getattr__(self, name):
        hook = getattr(self._inner, name)
        if not callable(hook):
            return hook

        def watched(*args):
            tensors = [leaf for leaf in tree_leaves(args) if isinstance(leaf, Tensor)]
            before = [(leaf, leaf.clone(), leaf._version) for leaf in tensors]
            first = hook(*args)
            for leaf, copy, version in before:
                assert leaf._version == version, f"{name} changes an argument in place"
                assert torch.equal(leaf, copy), f"{name} changes an argument"
            again = hook(*args)
            same = zip(tree_leaves(first), tree_leaves(again), strict=True)
            assert all(torch.equal(*map(torch.as_tensor, pair)) for pair in same), (
                f"{name} remembers"
            )
            self.called.add(name)
            return first

        return watched


def loop(algorithm, rounds=3, dtype=torch.float64):
    """The round of base.py's docstring, word for word, for two clients; yields every tuple."""
    generator = torch.Generator().manual_seed(0)
    draw = lambda: torch.randn(P, generator=generator, dtype=dtype)  # noqa: E731
    x0, centres, fresh = draw(), [draw(), draw()], [draw(), draw()]
    server, states = algorithm.init_server(x0), {}
    if algorithm.warm_start:
        states = {
            i: algorithm.init_client(x0, lambda i=i: fresh[i], x0 - centre)
            for i, centre in enumerate(centres)
        }
        server = algorithm.init_server(x0, x0 - sum(centres) / 2)
    for t in range(rounds):
        mean_centre = sum(centres) / 2
        grads = ()
        if algorithm.full_gradient == "server":
            points = algorithm.full_gradient_points(server)
            grads = tuple(point - mean_centre for point in points)
        cohort = Cohort(t, 2, 4, 0.1, grads)
        message = algorithm.broadcast(server, cohort)
        uploads = []
        for i, centre in enumerate(centres):
            steps = 2 + i
            client = Client(
                torch.tensor(float(t), dtype=torch.float64),
                torch.tensor(0.0, dtype=torch.float64),
                torch.tensor(float(steps), dtype=torch.float64),
                torch.tensor(0.1, dtype=torch.float64),
                torch.tensor(5.0, dtype=torch.float64),
                full_grad=None if algorithm.full_gradient == "none" else message.x - centre,
                label_counts=made_up_counts(algorithm, x0),
            )
            state = states.get(i)
            if state is None:
                state = algorithm.init_client(x0, lambda i=i: fresh[i])
            local = algorithm.begin(message, state, client)
            y = algorithm.first_point(message, state, client)
            for k in range(steps):
                client = client._replace(step=torch.tensor(float(k), dtype=torch.float64))
                start, point = algorithm.points(y, local, client)
                grad = StepGrad(StandIn(algorithm).on(Batch(-centre, centre), 0))
                d, local = algorithm.direction(point, local, grad, client)
                scale = algorithm.step_scale(y, local, client)
                y = start - scale * 0.1 * (d + 0.01 * point)
            client = client._replace(step=torch.zeros((), dtype=torch.float64))
            upload, states[i] = algorithm.finish(
                y,
                local,
                message,
                state,
                client._replace(draws=drawn(algorithm.client_draws, y, 0, t, i)),
            )
            uploads.append(upload)
        mean = tree_map(lambda a, b: (a + b) / 2, *uploads)
        yield server, message, states[1], upload
        cohort = cohort._replace(draws=drawn(algorithm.server_draws, x0, 0, t))
        server = algorithm.update(server, mean, cohort)


@pytest.mark.parametrize("name", ALL)
def test_hooks_are_pure(name):
    witness = Witness(algorithm(name))
    assert len(list(loop(witness))) == 3
    assert {"broadcast", "begin", "direction", "finish", "update", "init_client"} <= witness.called


def test_the_witness_sees_a_change_in_place():
    class Spoils(ALGORITHMS["fedavg"]):
        def direction(self, point, local, grad, client):
            return grad(point.mul_(2)), local

    with pytest.raises(AssertionError, match="direction changes an argument"):
        list(loop(Witness(Spoils().with_facts(facts(size=P)))))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("name", ALL)
def test_the_dry_round_foretells_every_shape(name, dtype):
    """Field for field, in every round, and everything is a NamedTuple of tensors."""
    schema = dry_round(algorithm(name), P, dtype)
    for real in loop(algorithm(name), dtype=dtype):
        for dry, live in zip(schema[:4], real, strict=True):
            assert dry._fields == live._fields
            pairs = zip(tree_leaves(dry), tree_leaves(live), strict=True)
            for a, b in pairs:
                assert (a.shape, a.dtype, a.device.type) == (b.shape, b.dtype, "meta"), dry
        assert schema.server._fields[0] == schema.message._fields[0] == "x"
    assert algorithm(name).unweighted <= set(schema.upload._fields)


@pytest.mark.parametrize("name", ALL)
def test_an_algorithm_is_a_frozen_value(name):
    one, other = algorithm(name), algorithm(name)
    assert one == other
    assert hash(one) == hash(other)
    with pytest.raises(AttributeError):
        one.server_lr = 2.0


@pytest.mark.parametrize(
    "precision",
    [pytest.param("float64", marks=long_form), pytest.param("float32", marks=long_form), "bf16"],
)
@pytest.mark.parametrize("name", SAMPLE)
def test_runs_in_every_precision(tmp_path, name, precision):
    """Stays finite and learns; what is kept is of the model's dtype.

    Other tests play every algorithm in float64 (test_reference.py) and float32 (tests/golden).
    """
    job = tree(tmp_path, softmax_problem(), ALL[name], precision=precision, rounds=8)
    if ALL[name]["name"] not in WHOLE:
        job["cohort"] = {"kind": "uniform", "size": 4}
    job["weights"] = "uniform"
    found = trace(job)
    x, dtype = found.servers[-1].x, torch.float64 if precision == "float64" else torch.float32
    assert x.dtype == dtype
    assert torch.isfinite(x).all()
    losses = [record["train_loss"] for record in found.records if record["round"]]
    assert np.isfinite(losses).all()
    assert np.mean(losses[-2:]) < losses[0]
    left = [s for s in found.states[-1] if s is not None]
    x0 = torch.zeros(P)
    remembers = len(algorithm(name).init_client(x0, lambda: x0)) > 0
    assert bool(left) == remembers
    for state in left:
        assert all(leaf.dtype in (dtype, torch.int64) for leaf in state)
        assert all(torch.isfinite(leaf).all() for leaf in state)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_no_machine_word_in_an_algorithm(path):
    """Neither in the code nor in what is written about it, but for a setting of the field."""
    text = path.read_text().replace("Cross-Device", "")
    assert text.isascii()
    found = {word for word in re.split(r"[^a-z]+", text.lower()) if word in MACHINE}
    assert not found


@pytest.mark.parametrize("path", METHODS, ids=lambda path: path.stem)
def test_an_algorithm_is_one_short_file(path):
    """At most 100 lines of code, neither blank, nor comment, nor docstring."""
    text = path.read_text()
    texts = {
        line
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        for line in range(node.lineno, node.end_lineno + 1)
    }
    idle = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT}
    code = {
        token.start[0]
        for token in tokenize.generate_tokens(io.StringIO(text).readline)
        if token.type not in idle | {tokenize.ENDMARKER}
    }
    assert 0 < len(code - texts) <= 100


@pytest.mark.parametrize("path", METHODS, ids=lambda path: path.stem)
def test_an_algorithm_tells_its_round_and_its_source(path):
    doc = ast.get_docstring(ast.parse(path.read_text()))
    assert doc
    assert all(re.search(rf"^ +{part} ", doc, re.MULTILINE) for part in ("send", "step", "update"))
    assert re.search(r"arXiv:\d{4}\.\d{5}|equation|algorithm \d|Transactions on", doc)
    assert "\nDepartures: " in doc


def test_algorithms_import_types_and_torch_alone():
    known = {"abc", "collections", "copy", "dataclasses", "functools", "itertools", "math", "types"}
    for path in FILES[1:]:  # but __init__.py, which imports them when they are asked for
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom):
                top = node.module.split(".")[0]
                assert top in known | {"typing", "torch"} or (node.module.startswith(LOWER)), (
                    f"{path.name}: {node.module}"
                )
            assert not isinstance(node, ast.Import), f"{path.name}: import {node.names[0].name}"


@pytest.mark.parametrize("name", ALGORITHMS)
def test_fields_are_documented_keys(name):
    """Every hyperparameter has a default or is required, and an attribute docstring."""
    cls = ALGORITHMS[name]
    assert REGISTRIES["algorithm"].known[name] is cls
    for node in ast.walk(ast.parse(Path(FILES[0].parent / f"{name}.py").read_text())):
        if isinstance(node, ast.ClassDef) and node.name == cls.__name__:
            body = node.body
            for now, after in zip(body, [*body[1:], None], strict=True):
                if isinstance(now, ast.AnnAssign) and "ClassVar" not in ast.unparse(now.annotation):
                    told = isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)
                    assert told, f"{name}.{ast.unparse(now.target)} has no docstring"
