"""Which keys of a job are free, and the mark of the others."""

from pathlib import Path

import pytest

from hpcfl.errors import JobError
from hpcfl.job.resume_rules import BOUND, FREE, differences, free, is_free, mark, require_free
from hpcfl.job.schema import load
from hpcfl.job.settings import flat, over_seeds

JOB = {
    "data": {"kind": "digits", "clients": 4},
    "model": {"name": "linear"},
    "cohort": {"kind": "uniform", "size": 2},
    "algorithm": {"name": "fedhbm"},
    "local": {"lr": 0.1},
    "rounds": 8,
}


def settings(*overrides):
    return flat(load(JOB, overrides).tree)


def test_every_key_is_free_or_bound_as_written_here():
    """A new key of a job is bound until somebody decides otherwise, and then stands here."""
    assert sorted(free(settings())) == [
        "balance",
        "checkpoint.every",
        "checkpoint.keep",
        "checkpoint.minutes",
        "comm.backend",
        "comm.timeout_s",
        "diagnostics.consistency",
        "diagnostics.cosine",
        "diagnostics.dissimilarity",
        "diagnostics.drift",
        "diagnostics.every",
        "evaluate.best",
        "evaluate.clients",
        "evaluate.every",
        "evaluate.last",
        "evaluate.own",
        "evaluate.train",
        "log.tensorboard",
        "rounds",
        "store.cache_gib",
        "store.dir",
        "store.kind",
    ]


def test_what_is_free_keeps_no_two_seeds_apart():
    jobs = [{**settings(), "seed": seed} for seed in (0, 1)]
    for key in free(settings()).keys() - {"rounds"}:
        assert over_seeds([jobs[0], {**jobs[1], key: "another"}]) == [[0, 1]], key


def test_what_is_named_exists():
    job = settings()
    assert all(any(f"{key}.".startswith(f"{name}.") for key in job) for name in FREE)
    assert set(BOUND) <= set(job)


def test_the_mark_is_of_what_must_not_change():
    whole = mark(settings())
    for change in ("rounds=9", "evaluate.every=3", "checkpoint.keep=5", "store.kind=memory"):
        assert mark(settings(change)) == whole, change
    for change in ("seed=1", "local.lr=0.2", "evaluate.batch_size=7", "threads=2"):
        assert mark(settings(change)) != whole, change
    assert mark(dict(reversed(settings().items()))) == whole


def test_a_cosine_binds_the_rounds():
    cosine = settings("local.schedule=cosine")
    assert is_free("rounds", settings())
    assert not is_free("rounds", cosine)
    assert mark(settings("local.schedule=cosine", "rounds=9")) != mark(cosine)
    with pytest.raises(JobError, match=r"rounds: is 8 in runs/a, asked for is 9, .*cosine spans"):
        require_free(cosine, settings("local.schedule=cosine", "rounds=9"), Path("runs/a"))


@pytest.mark.parametrize("key", ["rounds", "roundsX", "evaluate_more.every", "store", "storeX"])
def test_a_key_is_free_by_its_whole_name(key):
    assert is_free(key, {}) == (key == "rounds")


def test_differences():
    assert differences({"a": 1, "b": 2, "c": 3}, {"a": 1, "b": 5, "d": 4}) == {"b": 5}
