"""YAML as users write it: lines, traps, overrides."""

import os
import shlex

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hpcfl.errors import JobError
from hpcfl.job.load import load
from hpcfl.runs.job_file.yaml_file import as_override, as_shell_word, override, plain, read

KEYS = ("data", "kind", "cohort", "size", "algorithm", "name", "local", "lr", "rounds", "task")
VALUES = ("uniform", "fedhbm", "digits", "1e-3", "on", "~", ".nan", "-1", "0.1", "2024-01-01", "'")
FUZZ = settings(
    max_examples=150,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)

scalars = st.one_of(st.sampled_from(VALUES), st.integers().map(str), st.text(max_size=8))
trees = st.recursive(
    scalars,
    lambda below: st.one_of(
        st.lists(below, max_size=3).map(lambda items: f"[{', '.join(items)}]"),
        st.dictionaries(st.sampled_from(KEYS), below, max_size=4).map(
            lambda pairs: "{" + ", ".join(f"{k}: {v}" for k, v in pairs.items()) + "}"
        ),
    ),
    max_leaves=8,
)
paths = st.lists(st.one_of(st.sampled_from(KEYS), st.text(max_size=4)), min_size=1, max_size=3)
overrides = st.builds(lambda path, value: f"{'.'.join(path)}={value}", paths, trees)


def reading(tmp_path, text, *settings_):
    path = tmp_path / "j.yaml"
    path.write_text(text)
    file = read(path)
    override(file, settings_)
    return file


def is_job_or_error(path, *settings_):
    """The law: a checked job or a JobError, never anything else."""
    try:
        load(path, settings_)
    except JobError as e:
        assert str(e)


@FUZZ
@given(text=st.one_of(trees, st.text(max_size=60)))
def test_any_text_is_a_job_or_a_job_error(tmp_path, text):
    path = tmp_path / "any.yaml"
    path.write_text(text, "utf-8", errors="replace")
    is_job_or_error(path)


@FUZZ
@given(setting=st.one_of(overrides, st.text(max_size=20)))
def test_any_override_is_a_job_or_a_job_error(job, setting):
    is_job_or_error(job, setting)


@FUZZ
@given(data=st.data())
def test_a_mutated_job_is_a_job_or_a_job_error(job, tmp_path, data):
    text = job.read_text()
    start = data.draw(st.integers(0, len(text)))
    end = data.draw(st.integers(start, min(len(text), start + 12)))
    path = tmp_path / "mutated.yaml"
    new = data.draw(st.one_of(trees, st.sampled_from(list(":{}[]&*!|>-#%@\t\n\0\x85"))))
    path.write_text(text[:start] + new + text[end:], "utf-8", errors="replace")
    is_job_or_error(path)


def test_lines_are_those_of_the_keys(tmp_path):
    file = reading(tmp_path, "a: 1\nb:\n  c:\n    - 7\n    - 8\n")
    assert file.tree == {"a": 1, "b": {"c": (7, 8)}}
    assert file.where(("b", "c")).endswith("j.yaml:3")
    assert file.where(("b", "c", 1)).endswith("j.yaml:5")
    assert file.where(("b", "absent")).endswith("j.yaml:2")
    assert file.where(("absent",)).endswith("j.yaml")


def test_overrides_are_put_over_the_file_and_named_as_such(tmp_path):
    file = reading(tmp_path, "a: {b: 1, c: 2}\n", "a.b=3", "d.e=[x]", "f=")
    assert file.tree == {"a": {"b": 3, "c": 2}, "d": {"e": ("x",)}, "f": None}
    assert file.where(("a", "b")) == "command line"
    assert file.where(("a", "c")).endswith("j.yaml:1")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1\na: 2\n", "j.yaml:2: the key 'a' stands twice"),
        ("a: {lr:0.1}\n", "j.yaml:1: YAML reads 'lr:0.1' as a key without a value; put a space"),
        ("x:\n  on: 1\n", "j.yaml:2: the key 'on' is read by YAML as True; put it in quotes"),
        ("a: [1\n", "j.yaml:2: is not valid YAML"),
        ("a: !!python/object:os.system 1\n", "is not valid YAML"),
        ("- 1\n", "expected a mapping of sections, found a tuple"),
        ("", "expected a mapping of sections, found nothing"),
    ],
)
def test_traps(tmp_path, text, message):
    with pytest.raises(JobError, match=r"j\.yaml") as caught:
        reading(tmp_path, text)
    assert message in str(caught.value)


def test_aliases_do_not_multiply_without_end(tmp_path):
    lines = ["a0: &a0 [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]"]
    lines += [f"a{k}: &a{k} [{', '.join([f'*a{k - 1}'] * 10)}]" for k in range(1, 9)]
    with pytest.raises(JobError, match="more than 200000 values"):
        reading(tmp_path, "\n".join(lines))


def test_not_text(tmp_path):
    path = tmp_path / "j.yaml"
    path.write_bytes(b"a: \xff")
    with pytest.raises(JobError, match="is not text in UTF-8"):
        read(path)
    path.write_bytes(b" " * (1 << 20) + b"a: 1")
    with pytest.raises(JobError, match="are too many for a job"):
        read(path)
    os.truncate(path, 1 << 43)  # more than can be read
    with pytest.raises(JobError, match="are too many for a job"):
        read(path)


def test_a_job_that_is_no_file(tmp_path):
    os.mkfifo(tmp_path / "j.yaml")
    (tmp_path / "zero.yaml").symlink_to("/dev/zero")
    for name, kind in (("j.yaml", "FIFO"), ("zero.yaml", "device")):
        with pytest.raises(JobError, match=rf"{name}: cannot be read: it is a {kind}, expected a"):
            read(tmp_path / name)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        *(("1e-3", 0.001), ("4E-4", 0.0004), ("1e3", 1000.0), ("-1.5e2", -150.0), (".5e1", 5.0)),
        *((text, text) for text in ("e-3", "1e", "1e-3x", "1e-3.5", "v1e3", "1e-3 1")),
    ],
)
def test_a_number_with_an_exponent(tmp_path, text, value):
    tree = reading(tmp_path, f"a: {text}\nb: [{text}]\n", f"c={text}").tree
    assert tree == {"a": value, "b": (value,), "c": value}
    assert type(tree["a"]) is type(value)
    assert reading(tmp_path, f"a: '{text}'", f"c='{text}'").tree == {"a": text, "c": text}


@pytest.mark.parametrize("setting", ["rounds", "=3", "a..b=3", ".a=3"])
def test_malformed_override(tmp_path, setting):
    with pytest.raises(JobError, match=r"command line: .*: expected key.path=value"):
        reading(tmp_path, "a: 1", setting)


def test_override_below_a_value(tmp_path):
    with pytest.raises(JobError, match=r"command line: a.b is a single value \(1\), not a section"):
        reading(tmp_path, "a: {b: 1}", "a.b.c=3")


def test_a_section_that_would_undo_an_override(tmp_path):
    """The other order changes a key of the new section, and the last of equals counts."""
    with pytest.raises(JobError, match=r"command line: a\.b would undo a\.b\.c, said before it"):
        reading(tmp_path, "a: {b: {d: 1}}", "a.b.c=3", "a.b={d: 2}")
    assert reading(
        tmp_path, "a: {b: {d: 1}}", "a.b={d: 2}", "a.b.c=3", "a.bc=1", "a.b.c=4"
    ).tree == {"a": {"b": {"d": 2, "c": 4}, "bc": 1}}


@pytest.mark.parametrize(
    "value",
    [1e-5, 5e-324, True, None, [0.6, 1e-7], {"name": "fedavg", "of": {"a": [1]}}, "1e-3", ""],
)
def test_what_is_written_is_read_again(tmp_path, value):
    for words in ([as_override("a.b", value)], shlex.split(as_shell_word("a.b", value))):
        assert plain(reading(tmp_path, "a: {}", *words).tree) == {"a": {"b": value}}
