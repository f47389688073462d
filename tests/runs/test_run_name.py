"""The default directory of a run says what the overrides change."""

import re

import pytest

from hpcfl.errors import JobError
from hpcfl.runs.job_file.run_name import LONGEST, run_directory, run_name


@pytest.mark.parametrize(
    ("overrides", "name"),
    [
        ([], "mnist"),
        (["seed=1", "local.lr=0.3", "algorithm={name: fedhbm}"], "mnist-fedhbm-lr0.3-seed1"),
        (["algorithm.name=fedhbm", "algorithm.beta=0.5"], "mnist-fedhbm-beta0.5"),
        (["rounds=20", "rounds=30"], "mnist-rounds30"),
        (["cohort.size=5", "evaluate.every=10"], "mnist-cohort_size5-evaluate_every10"),
        (["model={name: lenet}", "precision=bf16"], "mnist-lenet-bf16"),
        (["local.nesterov=true", "local.clip=null"], "mnist-clip-null-nesterov-true"),
        (["algorithm.b1=0.9"], "mnist-b1-0.9"),
        (["local.lr=1.0e-3"], "mnist-lr0.001"),
        (["diagnostics.betas=[0.5, 0.9]"], "mnist-betas-0.5_0.9"),
        (["data.root=DATA"], "mnist-data_root-DATA"),
    ],
)
def test_a_name_says_what_the_overrides_change(overrides, name):
    assert run_name("jobs/mnist.yaml", overrides) == name
    assert run_name("mnist", overrides) == name


def test_the_order_of_the_overrides_does_not_matter():
    given = ["local.lr=0.3", "seed=1", "algorithm.name=fedavg"]
    assert run_name("a.yaml", given) == run_name("a.yaml", given[::-1]) == "a-fedavg-lr0.3-seed1"


def test_odd_characters_are_replaced_and_told_apart():
    """Two values that look alike then have digests of their own."""
    values = ["/data/x y", "/data/x_y", "../data/x y", "$(rm)", "a\tb", "été", "/", "[]", "{}"]
    names = [run_name("a.yaml", [f'model.init="{value}"']) for value in values]
    names += [run_name("a.yaml", [f"local={value}"]) for value in ("[]", "{}", "null")]
    assert len(set(names)) == len(names)
    assert all(re.fullmatch(r"a-[A-Za-z0-9._+-]+", name) for name in names), names
    assert re.fullmatch(r"a-model_init-_data_x_y-[0-9a-f]{6}", names[0])


def test_a_long_name_is_cut_and_told_apart():
    given = [f"cohort.rounds=[{', '.join(map(str, range(99)))}, {last}]" for last in (1, 2)]
    names = [run_name("a.yaml", [text]) for text in given]
    assert names[0] != names[1]
    assert all(len(name) <= LONGEST + len("a--123456") for name in names)
    assert names[0].startswith("a-rounds-0_1_2_3_")


def test_objects_have_a_digest():
    names = {run_name("a", [], ["data-12.npz"]), run_name("a", [], ["data-13.npz"])}
    assert len(names) == 2
    assert all(re.fullmatch("a-[0-9a-f]{6}", name) for name in names)


def test_a_malformed_override():
    with pytest.raises(JobError, match=r"command line: 'local\.lr': expected key\.path=value"):
        run_name("a.yaml", ["local.lr"])


def test_two_jobs_of_one_name_do_not_share_a_directory(job, tmp_path, monkeypatch, hpcfl, refused):
    monkeypatch.chdir(tmp_path)
    assert hpcfl("run", job, "rounds=2", "seed=1").code == 0
    job.write_text(job.read_text().replace("lr: 0.1", "lr: 0.2"))
    assert run_directory(job, ["seed=1", "rounds=2"]).name == "job-rounds2-seed1"
    assert refused("run", job, "rounds=2", "seed=1") == (
        "JobError: runs/job-rounds2-seed1: holds a run of another job: local.lr is 0.1 there, "
        "0.2 here; choose another directory with --out"
    )


def test_values_that_begin_alike_are_told_whole(job, tmp_path, monkeypatch, refused, hpcfl):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data.npz").rename(tmp_path / "data0.npz")
    (tmp_path / "data1.npz").symlink_to("data0.npz")
    first, second = (f"data.path={tmp_path}/data{number}.npz" for number in (0, 1))
    assert hpcfl("run", job, first, "--out", "run").code == 0
    line = refused("run", job, second, "--out", "run")
    assert f"data.path is {tmp_path}/data0.npz there, {tmp_path}/data1.npz here" in line
