"""docs/tutorials/cluster_run.md: its commands of Slurm print what stands there."""

import re
import shlex
from pathlib import Path

from tests.parallel.outcome import outcome
from tests.project.pages import commands

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/tutorials/cluster_run.md").read_text()
PROGRAM = re.compile(r"(?:[A-Z_]+=\S+ )*(\w+)")


def test_the_killed_job_goes_on(slurm, tmp_path):
    (submit, answer), (kill, _), (show, shown) = [
        found
        for found in commands(PAGE)
        if PROGRAM.match(found[0])[1] in ("sbatch", "until", "cat")
    ]
    id_there = re.fullmatch(r"Submitted batch job (\d+)", answer[0])[1]
    for name in ("jobs", "slurm"):
        (tmp_path / name).symlink_to(ROOT / name)
    # Its first start waits at round 40 until it is killed.
    held = tmp_path / "bin/hpcfl"
    slurm.make_hpcfl(held.parent, str(ROOT / "tests/slurm/held_hpcfl.py"))

    def shell(command):
        """A job that fails before its checkpoint would be waited for without end."""
        words = ("timeout", "300", "bash", "-c", command)
        return slurm.call(*words, cwd=tmp_path, PATH=f"{held.parent}:{slurm.env['PATH']}")

    job = re.fullmatch(r"Submitted batch job (\d+)", shell(submit))[1]
    run = tmp_path / "runs/long"
    shell(kill.replace(id_there, job))
    ended = slurm.wait(job)
    lines = shell(show.replace(id_there, job)).splitlines()
    assert (ended["JobState"], ended["Restarts"]) == ("COMPLETED", "1"), lines
    printed = {plain(line, job) for line in lines}
    for line in shown:
        assert line == "..." or plain(line, id_there) in printed, lines

    words = shlex.split(submit)
    words = words[words.index("slurm/run.sh") + 1 :]
    slurm.call("hpcfl", "run", *words, "--out", "undisturbed", cwd=tmp_path)
    assert outcome(run) == outcome(tmp_path / "undisturbed")


def plain(line, job):
    """The line without its time, the id of the job, and which node it was."""
    return re.sub(r"node\d", "node", line.replace(job, "ID"))[len("2026-11-21 22:36:34") :]
