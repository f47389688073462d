"""Plays several runs in one launch, to save launches: ``runs.py PLAN.json``.

The plan is a list of {"job": FILE or null, "out": DIR, "stop": round or 0, "how": settings};
without a job, DIR is resumed as ``hpcfl.resume`` takes the settings.
"""

import json
import os
import signal
import sys
from pathlib import Path

import hpcfl
from hpcfl.engine import loop
from hpcfl.errors import Stopped
from hpcfl.job.load import load
from hpcfl.start import start


def stop_after(done):
    """Let the last rank alone get SIGUSR1 in the round that makes ``done`` complete."""
    run_round = loop.run_round

    def patched(run, server, t, asked):
        if t == done - 1 and run.comm.rank == run.comm.size - 1:
            os.kill(os.getpid(), signal.SIGUSR1)
        return run_round(run, server, t, asked)

    loop.run_round = patched


def main(plan):
    for entry in plan:
        out = Path(entry["out"])
        whole = loop.run_round
        if entry["stop"]:
            stop_after(entry["stop"])
        try:
            if entry["job"]:
                start.start(load(entry["job"]), out)
            else:
                hpcfl.resume(out, **entry["how"])
        except Stopped as stopped:
            assert f"after round {entry['stop']} of" in str(stopped), stopped
        else:
            assert not entry["stop"], "was not stopped"
        loop.run_round = whole


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text()))
