"""A site file is sourced by slurm/run.sh before anything else; Slurm itself is played."""

import os

import pytest

from tests.slurm.conftest import ROOT


def test_a_site_sets_command_options_and_variables(play, tmp_path):
    """Also with words of its own, unset variables and a command that fails on the way."""
    script = '#!/bin/sh\necho "$NCCL_IB_HCA $*" >>wrapped.log\nexec "$@"\n'
    (tmp_path / "wrapped").write_text(script)
    (tmp_path / "wrapped").chmod(0o755)
    (tmp_path / "site.sh").write_text(
        'echo "$# $unset"; false; set -- other\n'
        'export HPCFL_SRUN="--cpu-bind=cores --gpu-bind=closest" HPCFL_MPI=pmix\n'
        'export HPCFL_COMMAND="./wrapped hpcfl" NCCL_IB_HCA=mlx5\n'
    )
    done = play("run.sh", "a/quick.yaml", "seed=3", HPCFL_SITE="site.sh")
    assert done.returncode == 0, done.stderr
    started = "run a/quick.yaml seed=3 --out runs/quick-seed3 --continue"
    assert (tmp_path / "starts").read_text() == f"0/1 {started}\n"
    log = (tmp_path / "wrapped.log").read_text().splitlines()
    assert log == [
        "mlx5 hpcfl batch begin --first 7 a/quick.yaml seed=3",
        f"mlx5 hpcfl {started}",
    ]
    options = (tmp_path / "srun").read_text().split()
    assert {"--cpu-bind=cores", "--gpu-bind=closest", "--mpi=pmix"} <= set(options)


def test_without_a_site_nothing_is_added(play, tmp_path):
    assert play("run.sh", "a/quick.yaml").returncode == 0
    options = (tmp_path / "srun").read_text().split()
    assert options == ["--cpus-per-task=1", "--kill-on-bad-exit=0", "--wait=15", "--mpi=pmi2"]


@pytest.mark.parametrize("site", ["missing.sh", "folder", "sites/none.sh"])
def test_a_site_that_is_missing_is_told_in_one_line(play, tmp_path, site):
    (tmp_path / "folder").mkdir()
    done = play("run.sh", "a/quick.yaml", HPCFL_SITE=site)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"run.sh: HPCFL_SITE: {site} is missing or cannot be read from ")
    assert not (tmp_path / "starts").exists()


def test_a_site_that_fails_ends_the_job(play, tmp_path):
    (tmp_path / "site.sh").write_text("module_of_this_site || return\necho not here\n")
    done = play("run.sh", "a/quick.yaml", HPCFL_SITE="./site.sh")
    assert done.returncode == 2
    assert "not here" not in done.stdout
    assert done.stderr.splitlines()[-1] == (
        "run.sh: HPCFL_SITE: ./site.sh ended with exit code 127; repair what it says above"
    )


def test_the_example_works_as_it_is(play, tmp_path):
    done = play("run.sh", "a/quick.yaml", HPCFL_SITE=str(ROOT / "slurm/sites/example.sh"))
    assert done.returncode == 0, done.stderr
    assert "--cpu-bind=cores" in (tmp_path / "srun").read_text().split()


def test_staged_data_do_not_change_the_name_of_the_run(play, tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "data/x.h5").write_text("images")
    scratch = tmp_path / "scratch"
    done = play(
        "staged.sh", "x.h5", "a/quick.yaml", "seed=3", HPCFL_SCRATCH=str(scratch), SLURM_NODEID="0",
        SLURMD_NODENAME="node1",
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    words = f"a/quick.yaml seed=3 data.root={scratch} store.dir={scratch}"
    started = f"0/1 run {words} --out runs/quick-seed3 --continue"
    assert started in (tmp_path / "starts").read_text()
    assert (scratch / "x.h5").read_text() == "images"


def test_data_that_were_prepared_again_are_copied_again(play, tmp_path):
    """Though their size is the same; data that are the same as before are not copied."""
    data, copy = tmp_path / "data/x.h5", tmp_path / "scratch/x.h5"
    data.parent.mkdir()
    copies = []
    for content, written in (("images", 100), ("photos", 200), ("photos", 200)):
        data.write_text(content)
        os.utime(data, (written, written))
        done = play(
            "staged.sh", "x.h5", "a/quick.yaml", HPCFL_SCRATCH=str(copy.parent), SLURM_NODEID="0",
            SLURMD_NODENAME="node1",
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        (tmp_path / "starts").unlink()
        copies.append((copy.read_text(), copy.stat().st_ino))
    assert [content for content, _ in copies] == ["images", "photos", "photos"]
    assert copies[1] == copies[2]  # the same file


TRES = "cpu=1,gres/gpu=1"  # as since Slurm 23.11


def test_steps_without_gpus_are_not_asked_for_some(play, tmp_path):
    """The copies of the data; the ranks have a GPU each."""
    (tmp_path / "data").mkdir()
    (tmp_path / "data/x.h5").write_text("images")
    done = play(
        "staged.sh", "x.h5", "a/quick.yaml", HPCFL_SCRATCH=str(tmp_path / "scratch"),
        SLURM_NODEID="0", SLURMD_NODENAME="node1", SLURM_TRES_PER_TASK=TRES,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "tres").read_text() == f"\n{TRES}\n"


def test_the_one_task_of_a_sweep_has_all_gpus_of_the_node(play, tmp_path):
    done = play(
        "run.sh", "several.yaml", SLURMD_NODENAME="node1", SLURM_GPUS_ON_NODE="4",
        SLURM_TRES_PER_TASK=TRES,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "--gpus=4" in (tmp_path / "srun").read_text().split()
    assert (tmp_path / "tres").read_text() == "\n"


def test_a_chain_is_cancelled_where_an_argument_is_refused(play, tmp_path):
    done = play("run.sh", "a/quick.yaml", "rounds", HPCFL_CHAIN="links")
    assert done.returncode == 2
    assert "expected key.path=value" in done.stderr
    assert "--name=links" in (tmp_path / "cancelled").read_text()
    assert not (tmp_path / "starts").exists()
