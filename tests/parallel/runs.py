"""Plays several runs in one launch, to save launches: ``runs.py PLAN.json``.

The plan is a list of {"job": FILE or null, "out": DIR, "stop": round or 0, "how": settings};
without a job, DIR is resumed as ``hpcfl.resume`` takes the settings.  MPI cannot start twice in a
process, so the runs share one group of ranks.
"""

import json
import os
import signal
import sys
from pathlib import Path

import hpcfl
from hpcfl import engine, session
from hpcfl.comm.launch import connect
from hpcfl.errors import Stopped
from hpcfl.job import load


class Lasting:
    """A group that is left only at the end of the process."""

    def __init__(self, comm):
        self._comm = comm

    def __getattr__(self, name):
        return getattr(self._comm, name)

    def close(self):
        self._comm.barrier()


def stop_after(done, comm):
    """Let the last rank alone get SIGUSR1 in the round that makes ``done`` complete."""
    play_round = engine.play_round

    def patched(run, server, t, asked):
        if t == done - 1 and comm.rank == comm.size - 1:
            os.kill(os.getpid(), signal.SIGUSR1)
        return play_round(run, server, t, asked)

    engine.play_round = patched
    return play_round


def main(plan):
    groups = []

    def once(*args):
        if not groups:
            groups.append(Lasting(connect(*args)))
        return groups[0]

    session.connect = once
    for entry in plan:
        out = Path(entry["out"])
        whole = engine.play_round
        if entry["stop"]:
            loaded = load(entry["job"] or out / "job.yaml")
            comm = once(loaded.job.comm.backend, "cpu", loaded.job.comm.timeout_s)
            stop_after(entry["stop"], comm)
        try:
            if entry["job"]:
                session.start(load(entry["job"]), out)
            else:
                hpcfl.resume(out, **entry["how"])
        except Stopped as stopped:
            assert f"after round {entry['stop']} of" in str(stopped), stopped
        else:
            assert not entry["stop"], "was not stopped"
        engine.play_round = whole
    groups[0]._comm.close()


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text()))
