"""slurm/run.sh where it is quicker to play Slurm: what it asks, and does when Slurm is away."""

import fcntl
import os
import re
import shutil

import pytest

from tests.slurm.conftest import ROOT


def again(play, plan, **env):
    """A start that is to be followed by another, of a run that has a checkpoint of round 7."""
    return play("run.sh", "a/quick.yaml", plan=plan, **env)


def said(done):
    """What the script said, without times; the last line first."""
    lines = re.findall(r"^[-\d]+ [:\d]+ job 7: (.*)$", done.stdout, re.MULTILINE)
    return lines[::-1]


def counters(folder):
    return [path.name for path in folder.rglob("*.starts")]


def test_a_start_is_followed_by_another(play, tmp_path):
    done = again(play, "75 7")
    assert (done.returncode, said(done)[0]) == (75, "to be requeued: exit code 75")
    assert (tmp_path / "requeued").read_text() == "7\n"
    assert counters(tmp_path) == ["quick.7.starts"]


def test_a_start_is_not_followed_by_another(play, tmp_path):
    done = again(play, "1")
    line = "not requeued: exit code 1 and no checkpoint since the start"
    assert (done.returncode, said(done)[0]) == (1, line)
    assert not (tmp_path / "requeued").exists()
    assert counters(tmp_path) == []


def test_starts_are_counted_also_where_slurm_itself_requeues(play, tmp_path):
    play.commands["squeue"] = "echo PENDING 1"  # before this script has ended
    for restarts in ("0", "1"):
        done = again(play, "137\n137", SLURM_RESTART_COUNT=restarts, HPCFL_MAX_STARTS="2")
        assert done.returncode == 137
    done = again(play, "0", SLURM_RESTART_COUNT="2", HPCFL_MAX_STARTS="2")
    assert done.returncode == 1
    assert "start 3 is not begun: 2 starts in a row came to no new checkpoint" in done.stderr
    assert not (tmp_path / "requeued").exists()
    assert len((tmp_path / "starts").read_text().splitlines()) == 2


@pytest.mark.parametrize(
    ("state", "code", "line"),
    [
        ("CANCELLED 0", "75 7", "not requeued, the job is CANCELLED: exit code 75"),
        ("PENDING 1", "75 7", "requeued already: exit code 75"),
        ("PENDING 1", "0", "requeued already: exit code 0"),  # as srun says of a node that is lost
        ("RUNNING 1", "2", "requeued already: exit code 2: the same command would end so again"),
    ],
)
def test_a_job_that_is_no_longer_this_script_s_is_left_alone(play, tmp_path, state, code, line):
    """As is what its next start counts."""
    play.commands["squeue"] = f"echo {state}"
    assert said(again(play, code))[0] == line
    assert not (tmp_path / "requeued").exists()
    assert counters(tmp_path) == ["quick.7.starts"]


@pytest.mark.parametrize("squeue", ["exit 1", "exit 0", "echo RUNNING 0"])
def test_a_slurm_that_is_away_for_a_while_is_asked_again(play, tmp_path, squeue):
    """Nothing is said to be done before it is."""
    away = 'echo >>tries; [ "$(wc -l <tries)" -gt 3 ] || { echo "no contact" >&2; exit 1; }'
    play.commands |= {
        "squeue": squeue,
        "scontrol": f'[ "$1" = requeue ] || exit; {away}; echo "$2" >>requeued',
    }
    done = again(play, "75 7")
    assert said(done)[:2] == [
        "Slurm does not requeue it: no contact; it is asked again for some minutes",
        "to be requeued: exit code 75",
    ]
    assert (tmp_path / "requeued").read_text() == "7\n"


@pytest.mark.parametrize(("squeue", "tries"), [("exit 1", 13), ("echo RUNNING 0", 4)])
def test_a_slurm_that_does_not_requeue_is_told(play, tmp_path, squeue, tries):
    """One that is away is asked longer than one that answers, and so refuses."""
    play.commands |= {
        "squeue": squeue,
        "scontrol": '[ "$1" = requeue ] || exit; echo >>tries; echo "no way" >&2; exit 1',
    }
    done = again(play, "75 7")
    assert done.returncode == 75
    assert said(done)[0] == (
        "not requeued: exit code 75; Slurm does not requeue it: no way; once it answers, type "
        "scontrol requeue 7, or submit again"
    )
    assert len((tmp_path / "tries").read_text()) == tries


def test_where_hpcfl_does_not_answer_the_next_start_decides(play, tmp_path):
    """As on a node that has lost its file systems."""
    hpcfl = tmp_path / "bin/hpcfl"
    first, rest = hpcfl.read_text().split("\n", 1)
    hpcfl.write_text(f'{first}\n[ "$2" != end ] || exit 1\n{rest}')
    done = again(play, "2")
    assert said(done)[0] == "to be requeued: exit code 2, of which hpcfl batch end can say nothing"


@pytest.mark.parametrize("name", ["lock", "stores/a-r0001-s0000.h5", "stores/shared/a.h5"])
def test_a_run_that_is_alive_elsewhere_for_good_is_given_up(play, tmp_path, name):
    """After a wait that is bounded, and with the bound of all starts."""
    held = tmp_path / "runs/quick" / name
    held.parent.mkdir(parents=True)
    with held.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        done = again(play, "0", HPCFL_WAIT_S="1", HPCFL_MAX_STARTS="1")
    assert done.returncode == 1
    # The second may be over by the time that the script has looked.
    assert re.search(rf"it holds runs/quick/{name}; wait up to [01] s for its end", said(done)[1])
    assert said(done)[0].startswith(
        "not requeued: another start of this run is still alive; 1 starts in a row came to no new"
    )
    assert not (tmp_path / "starts").exists()


def test_a_script_that_is_replaced_meanwhile_does_what_it_would_have_done(play, tmp_path):
    """bash reads a script as it goes on, also what was written over it."""
    script = tmp_path / "run.sh"
    shutil.copy(ROOT / "slurm/run.sh", script)
    size = script.stat().st_size
    other = f"%{size - 9}s\\ntouch replaced\\n"
    play.commands["srun"] = f"printf '{other}' '#' >{script}; exit 75"
    done = play(os.path.relpath(script, ROOT / "slurm"), "a/quick.yaml")
    assert (done.returncode, said(done)[0]) == (75, "to be requeued: exit code 75")
    assert not (tmp_path / "replaced").exists()


def test_a_run_goes_back_once(play, tmp_path):
    """The words of the first start are not those of the second."""
    old = tmp_path / "old"
    (old / "checkpoints/00000007").mkdir(parents=True)
    (old / "checkpoints/00000007/manifest.json").touch()
    (old / "job.yaml").touch()
    ranks = 'echo "${@##--*}" >>starts; echo {} >>old/history.jsonl; exit 75'
    play.commands["srun"] = f'case "$*" in *resume*) {ranks} ;; esac'
    for restarts in ("0", "1"):
        words = ("old", "--round", "7", "rounds=9")
        assert play("run.sh", *words, SLURM_RESTART_COUNT=restarts).returncode == 75
    made = (tmp_path / "starts").read_text().splitlines()
    first, second = (" ".join(line.split()) for line in made)
    assert (first, second) == ("hpcfl resume old 7 rounds=9", "hpcfl resume old")
