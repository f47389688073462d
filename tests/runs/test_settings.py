"""Which settings tell jobs apart."""

from hpcfl.runs.job_file.settings import affects_results, changed, distinguishing_settings, written

JOB = {"task": None, "algorithm.name": "fedhbm", "seed": 0, "store.kind": "hdf5"}


def test_the_type_of_stored_states_tells_jobs_apart():
    """A state that is rounded to bfloat16 changes the model; where it is kept does not."""
    jobs = [
        {**JOB, "store.dtype": "float32", "store.dir": None},
        {**JOB, "store.dtype": "bfloat16", "store.dir": "/scratch"},
    ]
    assert distinguishing_settings(jobs) == ["store.dtype float32", "store.dtype bfloat16"]


def test_a_section_tells_a_job_from_one_without_it():
    jobs = [
        {**JOB, "data.validation": None},
        {**JOB, "data.validation.share": 0.1, "data.validation.of": "examples"},
    ]
    assert distinguishing_settings(jobs) == [
        "data.validation null", "data.validation {share: 0.1, of: exam...",
    ]  # fmt: skip
    others = [jobs[1], {**jobs[1], "data.validation.share": 0.2}]
    assert distinguishing_settings(others) == [
        "data.validation.share 0.1", "data.validation.share 0.2",
    ]  # fmt: skip


def test_a_key_that_only_some_jobs_have_is_named_where_nothing_else_differs():
    """As one that is newer than the run; the seed does not stand for it."""
    newer = {**JOB, "data.std": 0.2, "seed": 1}
    assert distinguishing_settings([JOB, newer]) == ["seed 0", "seed 1, data.std 0.2"]
    assert distinguishing_settings([JOB, newer], but=["data.std"]) == ["seed 0", "seed 1"]
    assert distinguishing_settings([JOB, {**newer, "local.lr": None}], but=["seed"]) == [
        "", "data.std 0.2, local.lr null",
    ]  # fmt: skip
    jobs = [{**JOB, "local.lr": 0.1}, {**newer, "local.lr": 0.3}]
    assert distinguishing_settings(jobs, but=["seed"]) == ["local.lr 0.1", "local.lr 0.3"]
    others = [{**JOB, "algorithm.beta": 1.0}, {**JOB, "algorithm.name": "fedavg"}]
    assert distinguishing_settings(others) == ["", ""]
    tasks = [{**job, "task": task} for task in ("a", "b") for job in (JOB, {**newer, "x.y": None})]
    assert distinguishing_settings(tasks, but=["seed", "data.std"]) == [
        "task a", "task a, x.y null", "task b", "task b, x.y null",
    ]  # fmt: skip


def test_keys_are_compared_whole():
    assert not affects_results("store.cache_gib")
    assert not affects_results("evaluate.every")
    assert affects_results("store.dtype")
    assert affects_results("rounds")


def test_settings_are_shown_as_yaml_writes_them():
    values = [None, True, 0.1, [0.5, None, False], "text", {"a": {"b": True}}]
    texts = ["null", "true", "0.1", "[0.5, null, false]", "text", "{a: {b: true}}"]
    assert list(map(written, values)) == texts
    assert list(changed({"local.clip": None}, {"local.clip": 1.0})) == [
        ("local.clip", "null", "1.0")
    ]
