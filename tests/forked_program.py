"""What a launcher starts in place of Python: ``forked_program.py SOCKET ARGS``.

It gives its arguments, environment, working directory, output streams and its connection to the
launcher's process manager to ``tests.forked.program``, which forks the process that becomes
``python ARGS``.  Signals are passed on to that process, and this one ends as that one does.  It
imports little, so it starts in 30 ms.
"""

import json
import os
import signal
import socket
import sys
from contextlib import suppress

PASSED_ON = ("HUP", "INT", "QUIT", "USR1", "USR2", "TERM", "CONT")
pid, early = 0, []


def pass_on(number, _frame):
    if not pid:
        early.append(number)
        return
    with suppress(ProcessLookupError):  # it has just ended
        os.kill(pid, number)


for name in PASSED_ON:
    signal.signal(signal.Signals[f"SIG{name}"], pass_on)
fds = [1, 2]
if "PMI_FD" in os.environ:  # MPICH's manager; Open MPI's is found by its address
    fds.append(int(os.environ["PMI_FD"]))
folder = os.getcwd()  # noqa: PTH109 - pathlib would take longer to import than all the rest
start = {"words": sys.argv[2:], "env": dict(os.environ), "folder": folder}
with socket.socket(socket.AF_UNIX) as server:
    server.connect(sys.argv[1])
    socket.send_fds(server, [b"."], fds)
    server.sendall(json.dumps(start).encode() + b"\n")
    told = server.makefile()
    pid = int(told.readline())
    for number in early:
        pass_on(number, None)
    code = int(told.readline())
if code < 0:
    if -code != signal.SIGKILL:  # which has no handler to be taken away
        signal.signal(-code, signal.SIG_DFL)
    os.kill(os.getpid(), -code)
sys.exit(code)
