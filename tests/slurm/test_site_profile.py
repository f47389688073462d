"""A site file is sourced by slurm/run.sh before anything else; Slurm itself is played."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

HERE = Path(__file__).parent
SLURM = HERE.parents[1] / "slurm"
# Notes its options and what newer versions read besides, then starts what follows as one rank.
SRUN = """echo "${SLURM_TRES_PER_TASK:-}" >>tres
while [[ $1 == --* ]]; do echo "$1" >>srun; shift; done
SLURM_PROCID=0 SLURM_NTASKS=1 exec "$@"
"""


@pytest.fixture
def play(tmp_path):
    """Start run.sh, or another script that starts it, as the batch script of a job."""

    def start(script, *words, **env):
        commands = {"srun": SRUN, "scontrol": "exit 1", "squeue": "echo RUNNING 0"}
        commands["scancel"] = 'echo "$@" >cancelled'
        folder = tmp_path / "bin"
        folder.mkdir(exist_ok=True)
        for name, text in commands.items():
            (folder / name).write_text(f"#!/bin/bash\n{text}\n")
            (folder / name).chmod(0o755)
        shutil.copy(HERE / "fake_hpcfl", folder / "hpcfl")
        (tmp_path / "plan").write_text("0")
        job = {"SLURM_JOB_ID": "7", "SLURM_NNODES": "1", "SLURM_JOB_NODELIST": "node1"}
        own = {"PATH": f"{folder}:{os.environ['PATH']}", "HOME": str(tmp_path)}
        return subprocess.run(
            [SLURM / script, *words], cwd=tmp_path, env={**own, **job, **env},
            capture_output=True, text=True, check=False, timeout=60,
        )  # fmt: skip

    return start


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
    done = play("run.sh", "a.yaml", "seed=3", HPCFL_SITE="site.sh")
    assert done.returncode == 0, done.stderr
    started = "run a.yaml seed=3 --out runs/quick --continue"
    assert (tmp_path / "starts").read_text() == f"0/1 {started}\n"
    log = (tmp_path / "wrapped.log").read_text().splitlines()
    assert log == [
        "mlx5 hpcfl check a.yaml --kind",
        "mlx5 hpcfl check a.yaml seed=3 --where",
        f"mlx5 hpcfl {started}",
    ]
    options = (tmp_path / "srun").read_text().split()
    assert {"--cpu-bind=cores", "--gpu-bind=closest", "--mpi=pmix"} <= set(options)


def test_without_a_site_nothing_is_added(play, tmp_path):
    assert play("run.sh", "a.yaml").returncode == 0
    options = (tmp_path / "srun").read_text().split()
    assert options == ["--cpus-per-task=1", "--kill-on-bad-exit=0", "--wait=15", "--mpi=pmi2"]


@pytest.mark.parametrize("site", ["missing.sh", "folder", "sites/none.sh"])
def test_a_site_that_is_missing_is_told_in_one_line(play, tmp_path, site):
    (tmp_path / "folder").mkdir()
    done = play("run.sh", "a.yaml", HPCFL_SITE=site)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"run.sh: HPCFL_SITE: {site} is missing or cannot be read from ")
    assert not (tmp_path / "starts").exists()


def test_a_site_that_fails_ends_the_job(play, tmp_path):
    (tmp_path / "site.sh").write_text("module_of_this_site || return\necho not here\n")
    done = play("run.sh", "a.yaml", HPCFL_SITE="./site.sh")
    assert done.returncode == 2
    assert "not here" not in done.stdout
    assert done.stderr.splitlines()[-1] == (
        "run.sh: HPCFL_SITE: ./site.sh ended with exit code 127; repair what it says above"
    )


def test_the_example_works_as_it_is(play, tmp_path):
    done = play("run.sh", "a.yaml", HPCFL_SITE=str(SLURM / "sites/example.sh"))
    assert done.returncode == 0, done.stderr
    assert "--cpu-bind=cores" in (tmp_path / "srun").read_text().split()


def test_a_seed_of_an_array_has_a_folder_of_its_own(play, tmp_path):
    assert play("run.sh", "a.yaml", "mu=1", HPCFL_SEED="5").returncode == 0
    assert (tmp_path / "starts").read_text() == (
        "0/1 run a.yaml mu=1 seed=5 --out runs/quick-seeds/seed5 --continue\n"
    )


def test_staged_data_do_not_change_the_name_of_the_run(play, tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "data/x.h5").write_text("images")
    scratch = tmp_path / "scratch"
    done = play(
        "staged.sh", "x.h5", "a.yaml", "seed=3", HPCFL_SCRATCH=str(scratch), SLURM_NODEID="0",
        SLURMD_NODENAME="node1",
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    words = f"a.yaml seed=3 data.root={scratch} store.dir={scratch}"
    assert f"0/1 run {words} --out runs/quick --continue" in (tmp_path / "starts").read_text()
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
            "staged.sh", "x.h5", "a.yaml", HPCFL_SCRATCH=str(copy.parent), SLURM_NODEID="0",
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
        "staged.sh", "x.h5", "a.yaml", HPCFL_SCRATCH=str(tmp_path / "scratch"), SLURM_NODEID="0",
        SLURMD_NODENAME="node1", SLURM_TRES_PER_TASK=TRES,
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


def test_a_sweep_takes_no_staged_data(play, tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "data/x.h5").write_text("images")
    scratch = str(tmp_path / "scratch")
    done = play("staged.sh", "x.h5", "a.yaml", HPCFL_TASK="sweep", HPCFL_SCRATCH=scratch)
    assert done.returncode == 2
    assert done.stderr.startswith("run.sh: a.yaml is a sweep; HPCFL_STAGE and HPCFL_SEED are for ")
    assert not (tmp_path / "starts").exists()


@pytest.mark.parametrize("env", [{}, {"HPCFL_SEED": "3"}])
def test_a_chain_is_cancelled_where_an_argument_is_refused(play, tmp_path, env):
    done = play("run.sh", "a.yaml", "rounds", HPCFL_CHAIN="links", **env)
    assert done.returncode == 1  # as the command's
    assert "expected key.path=value" in done.stderr
    assert "--name=links" in (tmp_path / "cancelled").read_text()
    assert not (tmp_path / "starts").exists()


@pytest.mark.parametrize("states", ["store.dir=/states", "store={dir: /states}"])
def test_the_users_settings_stand_before_those_of_staging(play, tmp_path, states):
    """They may be whole sections; and a folder for the states that is named is kept."""
    (tmp_path / "data").mkdir()
    (tmp_path / "data/x.h5").write_text("images")
    done = play(
        "staged.sh", "x.h5", "a.yaml", "data={kind: own}", states,
        HPCFL_SCRATCH=str(tmp_path / "scratch"), SLURM_NODEID="0", SLURMD_NODENAME="node1",
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    words = f"a.yaml data={{kind: own}} {states} data.root={tmp_path}/scratch"
    assert f"0/1 run {words} --out runs/quick --continue" in (tmp_path / "starts").read_text()


def test_a_folder_of_data_that_staging_would_replace_is_refused(play, tmp_path):
    done = play("staged.sh", "x.h5", "a.yaml", "data.root=/mine", HPCFL_SCRATCH=str(tmp_path))
    assert done.returncode == 2
    assert "data.root=/mine: staged data are read from the nodes" in done.stderr
    assert not (tmp_path / "starts").exists()
