"""What is sent and kept is found, not declared: traffic, states, and faults in an algorithm."""

import subprocess
import sys
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from hpcfl.algorithms.base import Upload
from hpcfl.algorithms.fedavg import FedAvg
from hpcfl.algorithms.fedhbm import FedHBM
from hpcfl.algorithms.layout import stand_in
from hpcfl.algorithms.localghb import LocalGHB
from hpcfl.algorithms.optim import Descent, Sgd
from hpcfl.algorithms.scaffold import Scaffold
from hpcfl.engine.dry_round import MAX_ZEROS, dry_round, nbytes, traffic
from hpcfl.engine.hook_rules import CheckedAlgorithm
from hpcfl.engine.trial import SMALL, require_repeatable_without_data
from hpcfl.errors import BrokenRuleError
from hpcfl.local.sequential import Sequential

P = 1000


@pytest.mark.parametrize(
    ("algorithm", "down", "up", "kept"),
    [
        (FedAvg(), 1, 1, []),
        (Scaffold(option=1), 2, 2, ["c"]),
        (Scaffold(option=2), 2, 2, ["c"]),
        (FedHBM(), 1, 1, ["z", "known"]),
        (FedHBM(first="random"), 1, 1, ["z", "known"]),
        (FedHBM(nesterov=True), 1, 1, ["z", "known"]),
    ],
)
@pytest.mark.parametrize(("dtype", "width"), [(torch.float32, 4), (torch.float64, 8)])
def test_traffic_and_state_in_vectors(algorithm, down, up, kept, dtype, width):
    schema = dry_round(algorithm, P, dtype)
    vector = width * P
    assert traffic(algorithm, schema) == (down * vector, up * vector)
    assert [field.name for field in schema.client_state.fields] == kept
    vectors = [field for field in schema.client_state.fields if field.shape == (P,)]
    assert len(vectors) == min(len(kept), 1)
    assert all(field.dtype == dtype for field in schema.client_state.fields)


@pytest.mark.parametrize("nesterov", [False, True])
def test_what_is_kept_of_the_message_is_shared(nesterov):
    kept = dry_round(LocalGHB(nesterov=nesterov), P, torch.float32).client_state
    assert [field.name for field in kept.shared.fields] == ["anchor"]
    assert [field.name for field in kept.own.fields] == ["known"]
    assert (kept.own.bytes, kept.shared.bytes, kept.bytes) == (4, 4 * P, 4 * P + 4)


@dataclass(frozen=True, kw_only=True)
class Clings(FedAvg):
    """Keeps for ever what it began with: x0, the server's model in the dry round's first round."""

    def init_client(self, x0, fresh):
        return Twice(x0, fresh())


@pytest.mark.parametrize("algorithm", [FedHBM(), FedHBM(first="random"), Scaffold(), Clings()])
def test_what_is_a_client_s_own_is_not_shared(algorithm):
    kept = dry_round(algorithm, P, torch.float32).client_state
    assert kept.shared.fields == ()
    assert kept.own.fields == kept.fields


def test_the_loss_rides_along_but_is_no_traffic():
    schema = dry_round(Scaffold(), P, torch.float32)
    assert schema.reduced._fields == ("delta", "dc", "train_loss")
    upload = schema.upload._replace(delta=torch.ones(P), dc=torch.zeros(P))
    back, loss = schema.split_loss(schema.with_loss(upload, torch.tensor(0.5)))
    assert type(back) is type(upload)
    assert back.delta is upload.delta
    assert loss == 0.5


class Twice(NamedTuple):
    delta: Tensor
    again: Tensor


@dataclass(frozen=True, kw_only=True)
class Doubled(FedAvg):
    """Sends the same vector twice, the second of which is not transmitted."""

    not_transmitted = frozenset({"again"})

    def finish(self, y, local, message, state, client):
        return Twice(message.x - y, message.x - y), state


class Surveyed(NamedTuple):
    x: Tensor
    c: Tensor


@dataclass(frozen=True, kw_only=True)
class Surveys(FedAvg):
    """Sends the mean gradient of the cohort."""

    full_gradient = "server"

    def broadcast(self, server, cohort):
        return Surveyed(server.x, cohort.grads[0])


def test_fields_that_are_not_transmitted_are_summed_but_not_counted():
    schema = dry_round(Doubled(), P, torch.float32)
    assert traffic(Doubled(), schema) == (4 * P, 4 * P)
    assert schema.reduced._fields == ("delta", "again", "train_loss")


def test_a_survey_costs_a_vector_each_way():
    assert traffic(Surveys(), dry_round(Surveys(), P, torch.float32)) == (8 * P, 8 * P)


@dataclass(frozen=True, kw_only=True)
class Asks(FedAvg):
    """Wants means at three points, at the server alone."""

    full_gradient = "server"

    def full_gradient_points(self, server):
        return server.x, 0.5 * server.x, -server.x


def test_every_point_costs_a_vector_up_and_all_but_the_first_one_down():
    assert traffic(Asks(), dry_round(Asks(), P, torch.float32)) == (4 * 3 * P, 4 * 4 * P)


@dataclass(frozen=True, kw_only=True)
class Hopes(FedAvg):
    """Sends full gradients that it did not ask for."""

    def finish(self, y, local, message, state, client):
        return Upload(client.full_grad - y), state


def test_a_full_gradient_that_was_not_asked_for_is_none():
    with pytest.raises(TypeError, match="NoneType"):
        dry_round(Hopes(), P, torch.float32)


@dataclass(frozen=True, kw_only=True)
class Elsewhere(Asks):
    """Its first point is not the model that clients receive."""

    def full_gradient_points(self, server):
        return (0.5 * server.x,)


@dataclass(frozen=True, kw_only=True)
class NoTuple(Asks):
    """Gives the point itself."""

    def full_gradient_points(self, server):
        return server.x


@dataclass(frozen=True, kw_only=True)
class Short(Asks):
    """A point of another size than the model."""

    def full_gradient_points(self, server):
        return server.x, server.x[1:]


@dataclass(frozen=True, kw_only=True)
class ShortPoint(Asks):
    """A point of the step is none of the model's."""

    def points(self, y, local, client):
        return y, y[1:]


@dataclass(frozen=True, kw_only=True)
class OnePoint(Asks):
    """The start of the step alone."""

    def points(self, y, local, client):
        return y


@dataclass(frozen=True, kw_only=True)
class WarmsUp(Scaffold):
    """A warm start by states of another shape."""

    warm_start = True

    def init_client(self, x0, random_init, grad=None):
        first = super().init_client(x0, random_init)
        return first if grad is None else first._replace(c=grad[1:])


@dataclass(frozen=True, kw_only=True)
class WarmServer(Scaffold):
    """A warm start by another server."""

    warm_start = True

    def init_server(self, x0, grad=None):
        return super().init_server(x0) if grad is None else grad


@dataclass(frozen=True, kw_only=True)
class Cold(Scaffold):
    """A warm start whose server takes no gradient."""

    warm_start = True

    def init_server(self, x0):
        return super().init_server(x0)


@dataclass(frozen=True, kw_only=True)
class AlwaysWarm(Scaffold):
    """A warm start whose client has no state without a gradient."""

    warm_start = True

    def init_client(self, x0, random_init, grad):
        return super().init_client(x0, random_init, grad)


@pytest.mark.parametrize(
    ("cls", "rule"),
    [
        (Elsewhere, "full_gradient_points returns another first point than the x of the message"),
        (NoTuple, r"full_gradient_points returns tensor\(.*; expected a tuple of vectors"),
        (Short, r"full_gradient_points returns float32\[999\] on cpu, expected float32\[1000\]"),
        (ShortPoint, r"points returns float32\[999\] on cpu, expected float32\[1000\]"),
        (
            OnePoint,
            "points returns Tensor; expected a plain tuple of the start of the step and the point",
        ),
        (WarmsUp, r"init_client returns a state with other fields.*\[999\]"),
        (WarmServer, "init_server returns a server with other fields"),
        (Cold, r"init_server takes \(x0\), expected \(x0, grad=None\)"),
        (
            AlwaysWarm,
            r"init_client takes \(x0, random_init, grad\), "
            r"expected \(x0, random_init, grad=None\)",
        ),
    ],
)
def test_hooks_around_full_gradients_keep_rules(cls, rule):
    with pytest.raises(BrokenRuleError, match=rf"{cls.__name__}\.{rule}"):
        require_repeatable_without_data(cls(), Descent(Sgd(), 0.0, stand_in(SMALL)))


@dataclass(frozen=True, kw_only=True)
class Grows(Scaffold):
    """Keeps another shape than it starts with."""

    def finish(self, y, local, message, state, client):
        upload, after = super().finish(y, local, message, state, client)
        return upload, after._replace(c=after.c[:-1])


@dataclass(frozen=True, kw_only=True)
class Widens(Scaffold):
    """Keeps another dtype than it starts with."""

    def finish(self, y, local, message, state, client):
        upload, after = super().finish(y, local, message, state, client)
        return upload, after._replace(c=after.c.double())


@pytest.mark.parametrize("cls", [Grows, Widens])
def test_a_state_that_changes_its_shape_is_refused(cls):
    with pytest.raises(TypeError, match=f"{cls.__name__}.finish returns a state with other fields"):
        dry_round(cls(), P, torch.float32)


class Pair(NamedTuple):
    """An upload that could be taken for an upload and a state."""

    delta: torch.Tensor
    other: torch.Tensor


@pytest.mark.parametrize(
    ("returned", "found"),
    [
        (lambda x, state: Pair(x, x), "returns Pair"),
        (lambda x, state: [Upload(x), state], "returns list"),
        (lambda x, state: (Upload(x), state, x), "returns a tuple of 3"),
        (lambda x, state: None, "returns NoneType"),
    ],
)
def test_finish_must_return_an_upload_and_a_state(returned, found):
    @dataclass(frozen=True, kw_only=True)
    class Alone(FedAvg):
        def finish(self, y, local, message, state, client):
            return returned(message.x - y, state)

    rule = "expected a plain tuple of the upload and the client's next state"
    with pytest.raises(TypeError, match=f"Alone.finish {found}; {rule}"):
        dry_round(Alone(), P, torch.float32)


@dataclass(frozen=True, kw_only=True)
class Branches(FedAvg):
    """Looks at a tensor's value, against the law."""

    def finish(self, y, local, message, state, client):
        return Upload(y if y.sum() > 0 else -y), state


def test_a_branch_on_a_value_is_found():
    with pytest.raises(RuntimeError, match="meta"):
        dry_round(Branches(), P, torch.float32)


@dataclass(frozen=True, kw_only=True)
class Counts(FedAvg):
    """Looks at a value, but not in the dry round."""

    def finish(self, y, local, message, state, client):
        upload, state = super().finish(y, local, message, state, client)
        return upload, state if y.is_meta or int(client.round) < 3 else None


@pytest.mark.parametrize("size", [P, MAX_ZEROS + 1])
def test_an_algorithm_may_tell_the_dry_round_by_its_meta_tensors(size):
    schema = dry_round(Counts(), size, torch.float32)
    assert {leaf.device.type for leaf in tree_leaves(schema[:4])} == {"meta"}
    assert schema.upload.delta.shape == (size,)


def test_a_small_model_s_dry_round_does_not_import_the_compiler():
    program = (
        "import sys, torch; from hpcfl.algorithms.fedhbm import FedHBM;"
        "from hpcfl.algorithms.fedbn import FedBN;"
        "from hpcfl.engine.dry_round import dry_round, traffic;"
        "dry_round(FedHBM(), 10, torch.float32);"
        "traffic(FedBN(), dry_round(FedBN(), 10_000, torch.float32));"
        "assert 'torch._dynamo' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_nbytes_counts_tuples_of_tensors():
    assert nbytes({"past": (torch.zeros(3), torch.zeros(2, dtype=torch.float64))}) == 12 + 16


@dataclass(frozen=True, kw_only=True)
class RemoteRankError(FedHBM):
    """Keeps a model that is not the one it arrived at."""

    def finish(self, y, local, message, state, client):
        upload, after = super().finish(y, local, message, state, client)
        return upload, after._replace(z=message.x)


@pytest.mark.parametrize(
    ("algorithm", "own"),
    [(FedAvg(), None), (Scaffold(), None), (FedHBM(), "z"), (RemoteRankError(), None)],
)
def test_a_client_s_own_last_model_is_found_by_identity(algorithm, own):
    assert dry_round(algorithm, P, torch.float32).local_model_field == own


@dataclass(frozen=True, kw_only=True)
class Drifts(FedAvg):
    """Moves the point it is handed, against the law."""

    def direction(self, point, local, grad, client):
        point += 1
        return grad(point), local


def test_a_change_in_place_is_found():
    with pytest.raises(TypeError, match=r"Drifts\.direction changes one of its arguments in place"):
        dry_round(Drifts(), P, torch.float32)


class Named(NamedTuple):
    delta: Tensor
    train_loss: Tensor


@dataclass(frozen=True, kw_only=True)
class Sends(FedAvg):
    """Sends what ``made`` makes of a vector."""

    made: Any

    def finish(self, y, local, message, state, client):
        return self.made(message.x - y), state


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (lambda d: Named(d, d.norm()), "an upload with train_loss, which hpcfl adds; rename it"),
        (lambda d: Twice(d, d > 0), "an upload whose again is torch.bool, which has no mean"),
        (lambda d: Twice(d, torch.complex(d, d)), "again is torch.complex64, which has no mean"),
        (lambda d: Twice(d, (d, d)), "an upload whose again is a tuple; expected a tensor"),
        (lambda d: Twice(d, 3.0), "an upload whose again is a float; expected a tensor"),
        (lambda d: {"delta": d}, "returns a dict as an upload; expected a NamedTuple"),
    ],
)
def test_uploads_that_have_no_mean_are_refused(made, message):
    with pytest.raises(BrokenRuleError, match=message):
        dry_round(Sends(made=made), P, torch.float32)


@pytest.mark.parametrize("attribute", ["unweighted", "not_transmitted"])
@pytest.mark.parametrize(
    ("names", "message"),
    [
        (frozenset({"detla"}), "names 'detla', expected fields of the upload: delta"),
        ("delta", "is 'delta', expected a frozenset of names of fields"),
    ],
)
def test_names_of_no_field_are_refused(attribute, names, message):
    wrong = dataclass(frozen=True, kw_only=True)(type("Wrong", (FedAvg,), {attribute: names}))
    with pytest.raises(BrokenRuleError, match=message):
        dry_round(wrong(), P, torch.float32)


class Whole(NamedTuple):
    count: Tensor


@dataclass(frozen=True, kw_only=True)
class Keeps(FedAvg):
    def init_client(self, x0, random_init):
        return Whole(x0.new_zeros((), dtype=torch.int32))


def test_states_that_no_store_holds_are_refused():
    with pytest.raises(BrokenRuleError, match=r"a state whose count is torch\.int32; expected"):
        dry_round(Keeps(), P, torch.float32)


SEEN = []


@dataclass(frozen=True, kw_only=True)
class Sees(FedAvg):
    def finish(self, y, local, message, state, client):
        SEEN.append(message.x - y)
        return Upload(message.x - y), state


def test_the_step_that_is_tried_is_the_jobs():
    """With its weight decay."""
    x0 = torch.randn(SMALL, generator=torch.Generator().manual_seed(0))
    for sgd, decay in ((Sgd(), 0.0), (Sgd(momentum=0.9), 0.5)):
        require_repeatable_without_data(Sees(), Descent(sgd, decay, stand_in(SMALL)))
    plain, decayed = SEEN[0], SEEN[len(SEEN) // 2]
    torch.testing.assert_close(decayed - plain, 0.1 * 0.5 * x0)  # a step of rate 0.1


def test_the_round_that_is_tried_is_that_of_the_executor(monkeypatch):
    rounds, train = [], Sequential.train

    def watched(self, *args, **options):
        rounds.append(type(self.algorithm))
        return train(self, *args, **options)

    monkeypatch.setattr(Sequential, "train", watched)
    dry_round(Scaffold(), P, torch.float32)
    require_repeatable_without_data(Scaffold(), Descent(Sgd(), 0.0, stand_in(SMALL)))
    assert rounds == [CheckedAlgorithm] * (1 + 2 * 2)  # of each client twice


class Scale(FedAvg):
    found = None

    def round_numbers(self, server):
        return self.found


@pytest.mark.parametrize(
    ("numbers", "said"),
    [
        ([1.0], r"returns \[1.0\]; expected names with their numbers"),
        ({1: 1.0}, "expected names with their numbers"),
        ({"scale": "much"}, r"'scale' of str; expected a number or a tensor of shape \[\]"),
        ({"scale": torch.ones(2)}, r"'scale' of \[2\]; expected a number or a tensor"),
    ],
)
def test_numbers_of_a_round_are_numbers(monkeypatch, numbers, said):
    monkeypatch.setattr(Scale, "found", numbers)
    with pytest.raises(BrokenRuleError, match=rf"Scale\.round_numbers .*{said}"):
        dry_round(Scale(), 5, torch.float64)
