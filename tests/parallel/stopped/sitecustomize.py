"""A rank that is lost where HPCFL_TEST_STOP says: "RANK PHASE SIGNAL FOLDER".

Each of the two ranks writes its process id to FOLDER/RANK and waits for the other, so that none is
late because it was started later.
"""

import os
import signal
import time
from pathlib import Path

VICTIM, PHASE, FAULT, FOLDER = os.environ["HPCFL_TEST_STOP"].split(" ", 3)
RANK = os.environ.get("RANK")


def places():
    """Phase -> the function in which it is lost, and in which of its calls."""
    from hpcfl.comm import exact, meeting, reduction, secret, torch_distributed, watched
    from hpcfl.data import host_copy
    from hpcfl.start import checkpointer, prepare, resume, session, start
    from hpcfl.start.components import load_data

    first = RANK == "0"
    return {
        "connecting": (meeting, "connect_to_store"),
        "meeting": (meeting._Meeting, "wait_for_all"),
        "sharing": (secret.secrets, "token_hex") if first else (secret, "read"),
        "grouping": (torch_distributed.dist, "init_process_group"),
        "agreeing": (prepare, "discover_ranks"),
        "fetching": (start, "fetch_files"),
        "loading": (load_data, "load_data") if first else (host_copy, "_wait"),
        "building": (prepare, "build_components"),
        "beginning": (session.RankSession, "open_store"),
        "heartbeats": (watched.Watchdog, "watch_files"),
        "verifying": (resume, "verify_states"),
        "training": (session.RankSession, "begin_round", 3),
        # A round of SCAFFOLD sums three fields.
        "maximum": (reduction, "find_peaks", 2),
        "sum": (exact.ExactReduction, "accumulate", 4),
        "sending": (watched.WatchedComm, "exchange", 2),
        "evaluating": (session.RankSession, "evaluate", 2),
        "saving": (checkpointer.Checkpointer, "begin", 2),
        "committing": (checkpointer.Checkpointer, "commit", 4),
        "finishing": (start, "Result"),
        "ending": (watched.WatchedComm, "close"),
    }


def lose_in(place, name, calls=1):
    """Let this process get the signal in the given call of a function."""
    function, made = getattr(place, name), [0]

    def losing(*args, **kwargs):
        made[0] += 1
        if made[0] == calls:
            os.kill(os.getpid(), signal.Signals[f"SIG{FAULT}"])
        return function(*args, **kwargs)

    setattr(place, name, losing)


if RANK is not None:  # not in torchrun itself
    found = places()
    Path(FOLDER, RANK).write_text(str(os.getpid()))
    while len(os.listdir(FOLDER)) < 2:  # noqa: PTH208 - the test ends those that wait in vain
        time.sleep(0.02)
    if RANK == VICTIM:
        lose_in(*found[PHASE])
