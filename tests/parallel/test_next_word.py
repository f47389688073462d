"""Next-word prediction: the same bits on one rank and on two."""

import pytest

from hpcfl.data.download import quiet
from hpcfl.data.sources.stackoverflow import StackOverflow
from tests.data import test_stackoverflow
from tests.parallel.harness import play_all
from tests.parallel.outcome import outcome

WORDS = ["the", "cat", "sat", "on", "a", "mat", "and", "slept", "."]
DATA = {"vocabulary": 6, "length": 5, "subset": True, "test_examples": None}


@pytest.fixture(scope="module")
def jobs(tmp_path_factory):
    """A job for each kind of prediction, on the sentences of eight users."""
    root = tmp_path_factory.mktemp("posts")
    count = "".join(f"{word} {9 - k}\n" for k, word in enumerate(WORDS))
    (root / "stackoverflow.word_count").write_text(count)
    texts = [" ".join(WORDS[j * k % 9] for j in range(1, 2 + k % 7)) for k in range(90)]
    users = {f"{user}": [text.encode() for text in texts[user::8]] for user in range(8)}
    test_stackoverflow.write(root, "train", users)
    test_stackoverflow.write(root, "test", {user: own[:2] for user, own in users.items()})
    StackOverflow(root=str(root), **DATA).prepare(quiet)
    return {
        predict: {
            "data": {"kind": "stackoverflow", "root": str(root), "predict": predict, **DATA},
            "model": {
                "name": "word_lstm", "predict": predict,
                "embedded": 3, "hidden": 4, "projected": 3,
            },
            "cohort": {"kind": "uniform", "size": 3},
            "algorithm": {"name": "mime" if predict == "every" else "fedhbm"},
            "local": {"epochs": 1, "batch_size": 4, "lr": 0.5},
            "rounds": 2,
            "evaluate": {"every": 1, "batch_size": 5, "train": True, "clients": True},
            "device": "cpu",
        }
        for predict in ("every", "last")
    }  # fmt: skip


def test_on_two_ranks(jobs, tmp_path):
    for ranks in (1, 2):
        (tmp_path / str(ranks)).mkdir()
        play_all(tmp_path / str(ranks), jobs, ranks, mpi=False)
    for name in jobs:
        alone = outcome(tmp_path / "1" / name)
        assert len(alone.log) == 3
        assert {"test_accuracy", "client_accuracy_mean", "train_objective"} <= set(alone.log[-1])
        assert outcome(tmp_path / "2" / name) == alone, name
