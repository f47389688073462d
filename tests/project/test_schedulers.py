"""The scripts for other schedulers are played as the page prints them."""

import fcntl
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.project.pages import blocks
from tests.signals import not_ignored

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/howto/schedulers.md").read_text()
SCRIPTS = {
    re.search(r"^# (\S+): ", text, re.MULTILINE)[1]: text
    for language, text in blocks(PAGE)
    if language == "bash"
}
# Behaves as the line of ./plan for this start: "[signal] CODE [ROUND]", as tests/slurm/fake_hpcfl.
# hpcfl itself says what a start runs, and whether another follows.
HPCFL = (
    f"""[ "$1" != batch ] || exec {sys.executable} -m hpcfl "$@"
words=" $*" out=${{words##* --out }} out=${{out% --continue}}
"""
    """caught=
trap 'caught=USR1' USR1
trap 'caught=TERM' TERM
echo "$*" >>starts
read -ra words <<<"$(sed -n "$(wc -l <starts)p" plan)"
if [ "${words[0]}" = signal ]; then
  echo $$ >pid
  while [ -z "$caught" ]; do sleep 0.02; done
  words=("${words[@]:1}")
fi
if [ -n "${words[1]:-}" ]; then
  mkdir -p "$out/checkpoints/0000000${words[1]}"
  echo "$caught" >"$out/checkpoints/0000000${words[1]}/manifest.json"
fi
exit "${words[0]}"
"""
)
# Start the ranks' command, which follows the number of ranks, or Flux's options, as one rank.
LAUNCH = """while [[ $1 != hpcfl ]]; do shift; done
exec "$@"
"""
COMMANDS = {
    "hpcfl": HPCFL,
    "mpirun": LAUNCH,
    # The variables of -v, and no others, are in the environment of the next job.
    "qsub": 'echo "$@" >>submitted',
    "flux": f"""case $1 in
  run) {LAUNCH} ;;
  getattr) echo f12 ;;
  --parent) [ "$HPCFL_CHAIN" = f12 ] && echo "$@" >>submitted ;;
esac""",
}
JOB = {
    "run.pbs": {"PBS_JOBID": "12.server", "PBS_O_WORKDIR": "."},
    "run.lsf": {"LSB_JOBID": "12", "LS_SUBCWD": "."},
    "run.flux": {},
}


@pytest.fixture
def here(tmp_path):
    """A folder with the scripts of the page."""
    (tmp_path / "bin").mkdir()
    for name, text in COMMANDS.items():
        (tmp_path / "bin" / name).write_text(f"#!/bin/bash\n{text}\n")
    for name, text in SCRIPTS.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "a.yaml").write_text("rounds: 9\n")
    for path in (*(tmp_path / "bin").iterdir(), tmp_path / "once.sh"):
        path.chmod(0o755)
    return tmp_path


def start(here, script, **env):
    """Play a start of the job; what it says and its exit code."""
    path = f"{here / 'bin'}:{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", script], cwd=here, env={"PATH": path, **JOB[script], **env},
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    return done.returncode, done.stdout + done.stderr


def play(here, script, *plan, **env):
    """Play starts as long as the scheduler would; their exit codes and what the last one says."""
    (here / "plan").write_text("\n".join(plan))
    codes = []
    while True:
        submitted = here / "submitted"
        before = submitted.read_text() if submitted.exists() else ""
        code, said = start(here, script, **env)
        codes.append(code)
        after = submitted.read_text() if submitted.exists() else ""
        if script == "run.lsf":
            again = code == 75  # of -Q
            assert not after
        else:
            again = after != before
            if again and script == "run.pbs":
                assert after.splitlines()[-1] == "-v HPCFL_CHAIN=12.server run.pbs"
                env = {"HPCFL_CHAIN": "12.server", "PBS_JOBID": "13.server"}
        assert again == (code == 75), said
        if not again:
            return codes, said


def test_the_page_prints_four_scripts():
    assert sorted(SCRIPTS) == ["once.sh", "run.flux", "run.lsf", "run.pbs"]
    assert '#BSUB -Q "75"' in SCRIPTS["run.lsf"]


@pytest.mark.parametrize("script", JOB)
def test_a_run_is_started_again_as_long_as_it_gets_on(here, script):
    """Stopped, then killed after a checkpoint, then finished."""
    codes, said = play(here, script, "75 7", "1 9", "0")
    assert codes == [75, 75, 0]
    assert "once.sh: not started again: exit code 0: finished" in said
    starts = (here / "starts").read_text().splitlines()
    out = "runs/quickstart-rounds1500"
    run = f"run jobs/quickstart.yaml rounds=1500 --out {out} --continue"
    assert starts == [run] * 3
    assert not list(here.rglob("*.starts"))


@pytest.mark.parametrize("script", JOB)
def test_starts_without_a_checkpoint_are_bounded(here, script):
    codes, said = play(here, script, *["75 0"] * 3)
    assert codes == [75, 75, 1]
    assert "3 starts in a row came to no new checkpoint (HPCFL_MAX_STARTS)" in said
    assert not list(here.rglob("*.starts"))


@pytest.mark.parametrize("code", ["2", "3", "74", "130", "1"])
def test_a_run_that_is_broken_is_not_started_again(here, code):
    codes, said = play(here, "run.pbs", code)
    assert codes == [int(code)]
    assert f"once.sh: not started again: exit code {code}" in said


def test_the_bound_may_be_set_and_progress_resets_it(here):
    codes, _ = play(here, "run.lsf", "75 7", "1", "1 9", "1", "1", HPCFL_MAX_STARTS="2")
    assert codes == [75, 75, 75, 75, 1]


def once(here, *words, **env):
    path = f"{here / 'bin'}:{os.environ['PATH']}"
    with not_ignored():
        return subprocess.Popen(
            ["./once.sh", *words, "mpirun", "-n", "1", "--", "a.yaml"], cwd=here, text=True,
            env={"PATH": path, **env}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip


@pytest.mark.parametrize("name", ["lock", "stores/a-r0001-s0000.h5", "stores/shared/a.h5"])
def test_a_start_waits_for_the_ranks_of_an_earlier_one(here, name):
    (here / "plan").write_text("0")
    held = here / "runs/a" / name
    held.parent.mkdir(parents=True)
    with held.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        job = once(here, "1000", "x")
        assert f"it holds runs/a/{name}; wait up to 900 s" in job.stdout.readline()
        assert not (here / "starts").exists()
    said, _ = job.communicate(timeout=60)
    assert job.returncode == 0, said
    assert (here / "starts").exists()


def test_the_wait_is_bounded(here):
    """hpcfl itself refuses what is still held."""
    (here / "plan").write_text("2")
    (here / "runs/a").mkdir(parents=True)
    with (here / "runs/a/lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        job = once(here, "1000", "x", HPCFL_WAIT_S="1")
        said, _ = job.communicate(timeout=60)
    assert job.returncode == 2, said
    assert "it holds runs/a/lock; wait up to 1 s" in said
    assert (here / "starts").exists()


def test_the_ranks_are_told_before_the_limit(here):
    (here / "plan").write_text("signal 75 7")
    job = once(here, "1", "x")
    said, _ = job.communicate(timeout=60)
    assert job.returncode == 75, said
    assert "once.sh: to be started again: exit code 75" in said


def test_a_job_that_is_cancelled_is_not_started_again(here):
    """The SIGTERM of the scheduler reaches the shell and the rank."""
    (here / "plan").write_text("signal 75 7")
    job = once(here, "0", "x")
    pid = here / "pid"
    while not (pid.exists() and pid.read_text()):
        assert job.poll() is None
    for each in (job.pid, int(pid.read_text())):
        os.kill(each, 15)
    said, _ = job.communicate(timeout=60)
    assert job.returncode == 1
    assert "once.sh: not started again: exit code 75, cancelled" in said


def test_a_site_is_sourced(here):
    """It may use arguments and variables of its own, and of the script's names."""
    (here / "site.sh").write_text(
        "export HPCFL_OUT=mine\nset -- other words\nseconds=x name=y file=z\nfalse\necho $unset\n"
    )
    (here / "plan").write_text("0")
    job = once(here, "0", "x", HPCFL_SITE="site.sh")
    said, _ = job.communicate(timeout=60)
    assert job.returncode == 0, said
    assert (here / "starts").read_text() == "run a.yaml --out mine --continue\n"


@pytest.mark.parametrize(
    ("site", "code"), [("module load nothere || return\necho on\n", 127), ("echo in; false\n", 1)]
)
def test_a_site_that_fails_starts_nothing(here, site, code):
    (here / "site.sh").write_text(site)
    job = once(here, "0", "x", HPCFL_SITE="site.sh")
    said, _ = job.communicate(timeout=60)
    assert job.returncode == 2, said
    last = said.splitlines()[-1]
    assert last == (
        f"once.sh: HPCFL_SITE: site.sh ended with exit code {code}; repair what it says above"
    )
    assert not (here / "starts").exists()


@pytest.mark.parametrize("words", [[], ["0", "x"], ["0", "x", "mpirun", "-n", "1", "a.yaml"]])
def test_other_arguments_than_it_takes_are_told_the_usage(here, words):
    done = subprocess.run(
        ["./once.sh", *words], cwd=here, text=True, capture_output=True, check=False
    )
    assert done.returncode == 2
    usage = "usage: once.sh SECONDS NAME LAUNCHER ... -- JOB.yaml [key=value ...]\n"
    assert (done.stdout, done.stderr) == ("", usage)


def test_a_site_that_is_missing_is_told_in_one_line(here):
    job = once(here, "0", "x", HPCFL_SITE="none.sh")
    said, _ = job.communicate(timeout=60)
    assert job.returncode == 2
    assert said.startswith("once.sh: HPCFL_SITE: none.sh is missing or cannot be read from ")
    assert said.count("\n") == 1


@pytest.mark.parametrize("script", SCRIPTS)
def test_shellcheck_finds_nothing(here, script):
    tool = shutil.which("shellcheck") or ROOT / ".venv/bin/shellcheck"
    if not Path(tool).exists():
        pytest.skip("shellcheck is not installed")
    done = subprocess.run([tool, here / script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
