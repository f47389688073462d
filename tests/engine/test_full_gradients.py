"""A client's full gradient is that of its mean loss over all its labels, however it is batched."""

import pytest
import torch

from hpcfl.clients.client_pool import ClientData, ClientPool, ClientTests
from hpcfl.clients.evaluation_set import EvaluationSet
from hpcfl.clients.examples import example_source
from hpcfl.clients.section import Local
from hpcfl.comm.solo import Solo
from hpcfl.data.base import Dataset
from hpcfl.data.partition import RowRanges
from hpcfl.data.sources.arrays import to_indices
from hpcfl.data.vocabulary import Vocabulary
from hpcfl.evaluation.clients import Clients
from hpcfl.evaluation.config import Evaluate
from hpcfl.evaluation.measure import Meter
from hpcfl.evaluation.metrics import Scoring
from hpcfl.evaluation.scores import Evaluation
from hpcfl.local.gradient import Gradient, _recurrent_layers_in_training
from hpcfl.models.flat_vector import flatten, parameters
from hpcfl.models.losses import loss_of
from hpcfl.models.word_lstm import WordLstm
from hpcfl.types import PAD, Examples

torch.set_num_threads(1)

WORDS = Vocabulary(["the", "cat", "sat"])
SENTENCES = [["cat"], ["the", "cat", "sat"], [], ["the"] * 7, ["dog"], []]
ROWS = torch.from_numpy(WORDS.encode(SENTENCES, 4))
LOSS = loss_of("tokens", PAD)
SCORING = Scoring("tokens", WORDS.classes, PAD, WORDS.scored)


@pytest.fixture
def model():
    torch.manual_seed(0)
    return WordLstm(embedded=3, hidden=4, projected=3).build((4,), WORDS.classes).double()


def dataset(rows):
    return Dataset(
        train=Examples(rows[:, :-1], rows[:, 1:]),
        test=None,
        natural=None,
        classes=WORDS.classes,
        loss="tokens",
        padding=PAD,
        scored=WORDS.scored,
        transform=to_indices,
    )


def population(batch, rows=ROWS):
    """The first client has the first four sentences, the second none with a word to score."""
    clients = RowRanges(torch.tensor([0, 4]).numpy(), torch.tensor([4, 2]).numpy())
    return ClientPool(
        ClientData(dataset(rows), clients, ClientTests("train", clients)),
        Local(lr=1.0), local_lr=lambda *_: 1.0, seed=0,
        dtype=torch.float64, device=torch.device("cpu"), full_batch=batch,
    )  # fmt: skip


@pytest.mark.parametrize("batch", [1, 3, 4])
def test_the_full_gradient_is_that_of_the_mean_over_the_words(model, batch):
    loss = LOSS(model(ROWS[:4, :-1].long()), ROWS[:4, 1:])
    expected = flatten(torch.autograd.grad(loss, list(model.parameters())))
    task = population(batch).task(0, 0)
    x = parameters(model)
    (full,) = Gradient(model, LOSS).full((x,), task.full_batches)
    torch.testing.assert_close(full, expected, rtol=1e-12, atol=1e-14)
    found = Meter(Gradient(model, LOSS), SCORING).whole(x, population(batch).training(0))
    assert found["examples"] == 2 + 4 + 1 + 4
    assert found["loss"] / found["examples"] == pytest.approx(float(loss.detach()), rel=1e-12)


def test_a_client_without_a_word_to_score_has_no_accuracy(model):
    meter, x = Meter(Gradient(model, LOSS), SCORING), parameters(model)
    people = population(4)
    clients = Clients(people, [0, 1], torch.ones(2).double().numpy(), lambda _: None, None)
    found = clients.global_scores(meter, x, Solo(), objective=False, accuracy=True)
    sums = meter.whole(x, people.training(0))
    assert (sums["scored"], sums["examples"]) == (1 + 3 + 4, 11)
    assert (
        found["client_accuracy_mean"]
        == sums["correct"] / 8
        == found["client_accuracy_worst_decile"]
    )
    assert meter.whole(x, people.training(1))["scored"] == 0


def test_a_client_whose_labels_are_all_padding(model):
    """Its gradient is zero, and it adds nothing to the objective."""
    rows = ROWS.clone()
    rows[4:] = PAD
    people, x = population(4, rows), parameters(model)
    gradient = Gradient(model, LOSS)
    (full,) = gradient.full((x,), people.task(1, 0).full_batches)
    assert torch.equal(full, torch.zeros_like(x))
    meter = Meter(gradient, SCORING)
    weights = torch.ones(2).double().numpy()
    clients = Clients(people, [0, 1], weights, lambda _: None, None)
    found = clients.global_scores(meter, x, Solo(), objective=True, accuracy=False)
    sums = meter.whole(x, people.training(0))
    assert found["train_objective"] == sums["loss"] / sums["examples"] / 2


@pytest.mark.parametrize(
    ("rows", "scored"),
    [(ROWS, {"test_loss", "test_accuracy", "test_perplexity"}), (0 * ROWS, set())],
)
def test_a_test_set_of_padding_alone_has_no_scores(model, rows, scored):
    people, gradient = population(4), Gradient(model, LOSS)
    examples = Examples(rows[:, :-1], rows[:, 1:])
    source = example_source(examples, (), torch.device("cpu"))
    like = {"batch_size": 4, "dtype": torch.float64}
    tests = EvaluationSet(len(rows), None, lambda: source, to_indices, **like)
    clients = Clients(people, [0, 1], torch.ones(2).double().numpy(), lambda _: None, None)
    evaluation = Evaluation(Evaluate(), gradient, dataset(rows), {"test": tests}, clients, Solo())
    assert scored == evaluation.scores(parameters(model), 0).keys() - {"test_top5_accuracy"}


def test_recurrent_layers_train_without_dropout_on_a_gpu():
    """cuDNN has no backward pass of theirs in evaluation, where the values are the same."""
    torch.manual_seed(0)
    layer = torch.nn.LSTM(3, 4, num_layers=2, dropout=0.5)
    model, x = torch.nn.Sequential(layer, torch.nn.Identity()).eval(), torch.ones(5, 2, 3)
    expected = layer(x)[0]
    with _recurrent_layers_in_training(model, torch.device("cuda")):
        assert (layer.training, layer.dropout) == (True, 0.0)
        assert torch.equal(layer(x)[0], expected)
    assert layer.dropout == 0.5
    with _recurrent_layers_in_training(model.eval(), torch.device("cpu")):
        assert not layer.training
