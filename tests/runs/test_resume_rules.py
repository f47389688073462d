"""Which keys of a job are free, and the mark of the others."""

import re
import shlex
from pathlib import Path

import pytest

from hpcfl.errors import JobError
from hpcfl.job.load import load
from hpcfl.runs.job_file.resume_rules import (
    IMMUTABLE,
    KEPT_IN_BRANCH,
    MUTABLE,
    PLACES,
    differences,
    input_places,
    is_mutable,
    job_fingerprint,
    mutable_settings,
    require_allowed,
)
from hpcfl.runs.job_file.settings import flatten
from hpcfl.tools.report.groups import group_by_seed

JOB = {
    "data": {"kind": "digits", "clients": 4},
    "model": {"name": "linear"},
    "cohort": {"kind": "uniform", "size": 2},
    "algorithm": {"name": "fedhbm"},
    "local": {"lr": 0.1},
    "rounds": 8,
}


def settings(*overrides):
    return flatten(load(JOB, overrides).tree)


def test_every_key_is_free_or_bound_as_written_here():
    """A new key of a job is bound until somebody decides otherwise, and then stands here."""
    assert sorted(mutable_settings(settings())) == [
        "balance",
        "callbacks",
        "checkpoint.every",
        "checkpoint.keep",
        "checkpoint.minutes",
        "comm.backend",
        "comm.timeout_s",
        "diagnostics.consistency",
        "diagnostics.dissimilarity",
        "diagnostics.drift",
        "diagnostics.every",
        "evaluate.best",
        "evaluate.clients",
        "evaluate.every",
        "evaluate.last",
        "evaluate.local_models",
        "evaluate.metrics",
        "evaluate.personal",
        "evaluate.train",
        "rounds",
        "stop",
        "store.cache_gib",
        "store.dir",
        "store.kind",
    ]


def test_a_key_may_become_a_section_and_a_section_null():
    plain, stop = {"stop": None, "seed": 1}, {"stop.metric": "test_loss", "stop.target": 0.1}
    assert differences(plain, {**stop, "seed": 1}) == {
        "stop": {"metric": "test_loss", "target": 0.1}
    }
    assert differences({**stop, "seed": 1}, plain) == {"stop": None}
    assert differences(stop, {**stop, "stop.target": 0.2}) == {"stop.target": 0.2}
    assert differences({"seed": 1}, plain) == {}


def test_what_is_free_keeps_no_two_seeds_apart():
    jobs = [{**settings(), "seed": seed} for seed in (0, 1)]
    for key in mutable_settings(settings()).keys() - {"rounds", *PLACES}:
        assert group_by_seed([jobs[0], {**jobs[1], key: "another"}]) == [[0, 1]], key


def test_what_is_named_exists():
    job = settings()
    own = set(MUTABLE) - set(PLACES) - {"log"}  # of earlier versions
    assert all(any(f"{key}.".startswith(f"{name}.") for key in job) for name in own)
    data = {"kind": "arrays", "path": "own.npz", "partition": {"kind": "file", "path": "split.npz"}}
    cohort = {"kind": "replay", "path": "cohorts.json"}
    files = {"data": data, "cohort": cohort, "devices": {"path": "trace.csv"}}
    other = flatten(load({**JOB, **files}, ()).tree)
    images = flatten(load({**JOB, "data": {"kind": "cifar10", "clients": 4}}, ()).tree)
    text = {"kind": "text", "path": "a", "length": 4, "tokenizer": "b", "clients": 4}
    texts, own_bytes = (
        flatten(load({**JOB, "data": {**text, **more}}, ()).tree)
        for more in ({"test_path": "c"}, {"tokenizer": "bytes"})
    )
    found = (input_places(job).keys() for job in (other, images, texts))
    assert set().union(*found) == set(PLACES)
    assert input_places(own_bytes).keys() == {"data.path"}
    assert all(is_mutable(key, other) for key in PLACES)
    assert set(IMMUTABLE) <= set(job)


def test_the_mark_is_of_what_must_not_change():
    whole = job_fingerprint(settings())
    for change in ("rounds=9", "evaluate.every=3", "checkpoint.keep=5", "store.cache_gib=0"):
        assert job_fingerprint(settings(change)) == whole, change
    for change in ("seed=1", "local.lr=0.2", "evaluate.batch_size=7", "threads=2"):
        assert job_fingerprint(settings(change)) != whole, change
    assert job_fingerprint(dict(reversed(settings().items()))) == whole


def test_a_cosine_binds_the_rounds():
    cosine = settings("local.schedule=cosine")
    assert is_mutable("rounds", settings())
    assert not is_mutable("rounds", cosine)
    assert job_fingerprint(settings("local.schedule=cosine", "rounds=9")) != job_fingerprint(cosine)
    with pytest.raises(JobError, match=r"rounds: is 8 in runs/a, asked for is 9, .*cosine spans"):
        after = settings("local.schedule=cosine", "rounds=9")
        require_allowed(cosine, after, Path("runs/a"), copied=False)


def rate(n, steps):
    return 1.0


@pytest.mark.parametrize("kind", ["linear", "cosine", "own", "constant"])
def test_a_schedule_by_steps_binds_the_rounds(kind):
    """Unless its rates do not depend on their number."""
    schedule = f"{__name__}.rate" if kind == "own" else kind
    given = [f"local={{lr: 0.1, steps: 3, step_schedule: {schedule}}}"]
    before, after = settings(*given), settings(*given, "rounds=9")
    if kind == "constant":
        require_allowed(before, after, Path("runs/a"), copied=False)
    else:
        with pytest.raises(JobError, match=f"local.step_schedule {kind} spans all rounds"):
            require_allowed(before, after, Path("runs/a"), copied=False)
    require_allowed(before, after, Path("runs/a"), copied=True)


ADAM = "local={lr: 0.1, steps: 3, optimizer: adam, keep_optimizer: true}"
CHANGES = {
    "local.keep_optimizer=false": "have their optimiser's, or have none",
    "local.optimizer=adamw": "are of this optimiser",
    "local={lr: 0.1, steps: 3, optimizer: sgd, momentum: 0.9, keep_optimizer: true}": "are of this",
    "local.optimizer={kind: adam, b2: 0.9}": None,
    "local={lr: 0.2, epochs: 1, optimizer: adam, keep_optimizer: true}": None,
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_branch_keeps_the_kind_of_a_kept_optimizer(change):
    before, after, said = settings(ADAM), settings(ADAM, change), CHANGES[change]
    if said is None:
        require_allowed(before, after, Path("runs/a"), copied=True)
    else:
        with pytest.raises(JobError, match=f"a branch keeps it: the stored states .* {said}"):
            require_allowed(before, after, Path("runs/a"), copied=True)


def test_a_branch_may_say_that_no_optimizer_is_kept():
    """Which is the same as not to say it."""
    after = settings("local.keep_optimizer=false")
    require_allowed(settings(), after, Path("runs/a"), copied=True)


@pytest.mark.parametrize("key", ["rounds", "roundsX", "evaluate_more.every", "store", "storeX"])
def test_a_key_is_free_by_its_whole_name(key):
    assert is_mutable(key, {}) == (key == "rounds")


def test_every_key_may_change_in_a_branch_or_not_as_written_here():
    """A branch keeps a new section of a job until somebody decides otherwise."""
    job = settings()
    kept = []
    for key in job:
        try:
            require_allowed(job, {**job, key: "another"}, Path("runs/a"), copied=True)
        except JobError as error:
            assert f"command line: {key}: is " in str(error)
            kept.append(key)
    free = {key.partition(".")[0] for key in job if key not in kept}
    assert [key for key in kept if key.partition(".")[0] not in ("data", "model")] == [
        *("task", "devices", "algorithm.name", "local.keep_optimizer", "seed", "store.dtype"),
    ]
    assert free >= {"algorithm", "cohort", "local", "weights", "precision"}
    only_some = {"cohort.path", "algorithm.personal"}  # of some cohorts and methods
    assert set(KEPT_IN_BRANCH) - only_some <= {*job, "data", "model"}


def test_differences():
    assert differences({"a": 1, "b": 2, "c": 3}, {"a": 1, "b": 5, "d": 4}) == {"b": 5}


@pytest.mark.parametrize(
    "change",
    [
        "local.lr=1.0e-05",
        "algorithm={name: fedavg, server_lr: 0.5}",
        "algorithm={name: fedmim, alpha: [0.6, 0.3], beta: [0.5, 0.25]}",
        "data.partition={kind: dirichlet, alpha: 0.3}",
        "data={kind: fashion_mnist, clients: 4, partition: {kind: dirichlet, alpha: 0.3}}",
        "cohort={kind: bernoulli, p: 0.5}",
        "local.clip=0.25",
    ],
)
@pytest.mark.parametrize("copied", [False, True])
def test_the_command_that_an_error_tells_can_be_typed(copied, change):
    base = JOB | {"data": {**JOB["data"], "partition": {"kind": "iid"}}}
    before, after = (flatten(load(base, words).tree) for words in ([], [change]))
    try:
        require_allowed(before, after, Path("runs/it"), copied=copied)
    except JobError as error:
        commands = re.findall(r"`(hpcfl (?:run|resume) runs/it\S* .*?)`", str(error))
        assert commands
    else:  # a branch may change it
        assert copied
        return
    for command in commands:
        words = shlex.split(command.partition(" --")[0])[3:]
        told = flatten(load(base, words).tree)
        sections = {word.partition("=")[0] for word in words}
        for key, value in after.items():
            if key in sections or key.rpartition(".")[0] in sections:
                assert told[key] == value
        assert told != before
