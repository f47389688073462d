"""A job that does what each line says in turn runs in the end."""

import re
import shlex

import pytest

SETTING = re.compile(r"[a-z_]+\.?[a-z_]+=(?:\{[^}]*\}|[\w.]+)")


def follow(hpcfl, words, tries=6):
    """Run a command with the settings that its errors advise; the settings that it had at last."""
    for _ in range(tries):
        done = hpcfl(*words)
        if done.code == 0:
            return words
        (line,) = done.err
        _, found, advice = line.rpartition("; set ")
        assert found, line
        settings = SETTING.findall(advice)
        assert settings, line
        keys = {setting.partition("=")[0] for setting in settings}
        words = [word for word in words if word.partition("=")[0] not in keys] + settings
    raise AssertionError(done.err)


@pytest.mark.parametrize("job", ["quickstart", "quadratics/fedavg"])
@pytest.mark.parametrize("more", [[], ["cohort={kind: cyclic, size: 1}"], ["local.momentum=0.5"]])
def test_centralized(job, more, hpcfl, tmp_path):
    words = ["run", job, "algorithm={name: centralized}", "rounds=1", *more]
    words = follow(hpcfl, [*words, "--out", str(tmp_path / "run")])
    assert "data.partition={kind: pooled}" in words


@pytest.mark.parametrize("asked", ["algorithm.name=centralized", "algorithm={name: centralized}"])
def test_another_algorithm_than_that_of_a_run(asked, job, hpcfl, refused, tmp_path):
    run, new = tmp_path / "run", tmp_path / "new"
    assert hpcfl("run", job, "--out", run).code == 0
    line = refused("resume", run, asked)
    _, command, *_ = line.split("`")
    _, *words = shlex.split(command.replace("NEW", str(new)))
    follow(hpcfl, words)
    assert (new / "log.jsonl").exists()
