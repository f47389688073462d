"""Jobs from anywhere: every one is checked or refused in one line, at once."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcfl.clients.sampling import Replay
from hpcfl.errors import JobError
from hpcfl.job.load import load
from hpcfl.job.resolve import resolve_algorithm
from hpcfl.tools.sweep.grid import read_sweep
from tests.hostile.damage import damaged, ends_well, many

pytestmark = pytest.mark.slow

ALL = sorted((Path(__file__).parents[2] / "jobs").rglob("*.yaml"))
SWEEPS = [path for path in ALL if "\ngrid:" in path.read_text()]
JOBS = [path for path in ALL if path not in SWEEPS] + sorted(
    SWEEPS, key=lambda p: p.stat().st_size
)[:2]
KEYS = (
    *("task", "data", "kind", "root", "path", "clients", "partition", "alpha", "seed", "model"),
    *("name", "init", "cohort", "size", "p", "rounds", "algorithm", "beta", "tau", "local", "lr"),
    *("epochs", "steps", "batch_size", "evaluate", "every", "last", "checkpoint", "keep", "grid"),
)
SCALARS = st.one_of(
    st.sampled_from(["uniform", "fedhbm", "digits", "1e-3", "on", "~", ".nan", ".inf", "-.inf"]),
    st.sampled_from(["9" * 5000, "1:2:3", "2024-02-30", "!!binary aaa", "1e999"]),
    st.sampled_from(
        ['"\\0"', '"\\ud800"', '"\\e[31m\\n"', "!!int ''", "!!bool a", "&a [*a]", "*a"]
    ),
    st.integers().map(str),
    st.floats().map(str),
    st.text(max_size=8),
)
TREES = st.recursive(
    SCALARS,
    lambda below: st.one_of(
        st.lists(below, max_size=3).map(lambda items: f"[{', '.join(items)}]"),
        st.dictionaries(st.one_of(st.sampled_from(KEYS), SCALARS), below, max_size=4).map(
            lambda pairs: "{" + ", ".join(f"{k}: {v}" for k, v in pairs.items()) + "}"
        ),
    ),
    max_leaves=12,
)


def checked(path):
    """What `hpcfl check` and `hpcfl sweep --dry-run` do before they look at any data."""
    if b"grid:" in path.read_bytes():
        return read_sweep(path)
    loaded = load(path)
    return resolve_algorithm(loaded, loaded.job.data.population)


@many(200)
@given(text=TREES)
def test_any_tree(tmp_path, text):
    path = tmp_path / "any.yaml"
    path.write_text(text, "utf-8", errors="replace")
    ends_well(lambda: checked(path))


@many(200)
@given(job=st.sampled_from(JOBS), key=st.lists(st.sampled_from(KEYS), min_size=1), text=TREES)
def test_any_setting_of_a_real_job(job, key, text):
    ends_well(lambda: load(job, [f"{'.'.join(key[:3])}={text}"]))


@many(200)
@given(job=st.sampled_from(JOBS), data=st.data())
def test_any_damage_to_a_real_job(tmp_path, job, data):
    path = tmp_path / "damaged.yaml"
    path.write_bytes(data.draw(damaged(job.read_bytes())))
    ends_well(lambda: checked(path))


def laughs(path, levels=20):
    lines = ["a0: &a0 [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]"]
    lines += [f"a{k}: &a{k} [{', '.join([f'*a{k - 1}'] * 10)}]" for k in range(1, levels)]
    path.write_text("\n".join(lines))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[" * 100_000, "is not valid YAML: maximum recursion depth exceeded"),
        ("- " * 100_000, "is not valid YAML: maximum recursion depth exceeded"),
        ("a: &a [*a]", "is not valid YAML: maximum recursion depth exceeded"),
        ("a: " + "9" * 5000, "is not valid YAML: Exceeds the limit"),
        ("a: !!int ''", "1: is not valid YAML: no tag:yaml.org,2002:int: ''"),
        ("a: !!timestamp x", "no tag:yaml.org,2002:timestamp: 'x'"),
        ('a: "\\ud800"', "half a character"),
        ('"a\\n\\e[31m": 1', "missing"),
    ],
)
def test_traps(tmp_path, text, said):
    path = tmp_path / "trap.yaml"
    path.write_text(text)
    with pytest.raises(JobError, match=said) as caught:
        load(path)
    assert str(caught.value).isprintable()


def test_a_billion_laughs(tmp_path):
    laughs(tmp_path / "job.yaml")
    with pytest.raises(JobError, match="more than 200000 values, aliases counted"):
        load(tmp_path / "job.yaml")


def test_a_sweep_without_end(tmp_path):
    axes = "\n".join(f"  local.a{k}: [{', '.join(map(str, range(10)))}]" for k in range(9))
    job = JOBS[0]
    (tmp_path / "sweep.yaml").write_text(f"job: {job}\ngrid:\n{axes}\n")
    with pytest.raises(JobError, match="grid: 1000000000 runs, expected 10000 at most"):
        read_sweep(tmp_path / "sweep.yaml")


def test_a_path_that_no_file_has():
    with pytest.raises(JobError, match="zero byte"):
        load({"task": "digits", "model": {"name": "linear", "init": "a\0b"}})


def test_replayed_cohorts(tmp_path):
    path = tmp_path / "r.json"
    for text, said in [
        ("[" * 100_000, "cannot be read as JSON: nested too deep"),
        (f"[[{', '.join(map(str, range(300_000)))}, 299999]]", "client 299999 is listed twice"),
        (f"[[{'9' * 5000}]]", "cannot be read as JSON"),
    ]:
        path.write_text(text)
        with pytest.raises(JobError, match=said):
            Replay(path=str(path)).check(10**6, 1)
