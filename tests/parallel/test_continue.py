"""`hpcfl run --continue` on several ranks: all of them begin, and all of them go on."""

import shutil

from tests.forked import finish
from tests.parallel.background import Going, rounds, write
from tests.parallel.outcome import outcome
from tests.rundirs import text


def test_the_same_command_until_it_is_done(tmp_path):
    """Killed, taken up on another number of ranks, and found finished."""
    run = tmp_path / "run"
    command = ("run", write(tmp_path), "--out", run, "--continue")
    with Going(2, *command) as going:
        going.wait_until(lambda: rounds(run) > 10)
    ended = finish(3, *command)
    assert ended.returncode == 0, ended.stderr
    kept = [run / "stores", run / "checkpoints"]
    before = [text(folder) for folder in kept]
    ended = finish(1, *command)
    assert ended.returncode == 0, ended.stderr
    assert "finished, nothing to do" in ended.stderr
    assert [text(folder) for folder in kept] == before  # no state has moved to its new rank
    found = outcome(run)
    shutil.rmtree(run)
    assert finish(1, *command).returncode == 0
    assert outcome(run) == found


def test_torchrun_starts_the_ranks_again(tmp_path):
    """Its second start goes on; that a run is there already would hide why the first one failed."""
    run, job = tmp_path / "run", write(tmp_path)
    assert finish(2, "run", job, "rounds=6", "--out", run).returncode == 0
    command = ("run", job, "rounds=8", "--out", run)
    assert finish(2, *command, env={"TORCHELASTIC_RESTART_COUNT": "0"}).returncode == 2
    ended = finish(2, *command, env={"TORCHELASTIC_RESTART_COUNT": "1"})
    assert ended.returncode == 0, ended.stderr
    assert outcome(run).round == 8
