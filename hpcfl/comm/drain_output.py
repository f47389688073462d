"""Wait until the launcher has read this rank's last message, before this rank ends all ranks.

A launcher that is told to end all ranks may drop the output that it has not read yet, and with it
the line that says why the run failed.
"""

import fcntl
import os
import stat
import termios
import time
from array import array

from hpcfl.comm.solo import flush

PATIENCE_S = 5.0  # for a launcher that does not read at all
POLL_S = 0.001
OUTPUTS = (1, 2)  # descriptors of standard output and standard error


def wait_until_read() -> None:
    """Wait until the output of this process has been read, if it is a pipe; at most PATIENCE_S."""
    flush()
    deadline = time.monotonic() + PATIENCE_S
    while any(map(_unread, OUTPUTS)) and time.monotonic() < deadline:
        time.sleep(POLL_S)


def _unread(output: int) -> int:
    """Unread bytes in a pipe; 0 for anything else, and where the system cannot tell."""
    count = array("i", [0])
    try:
        if stat.S_ISFIFO(os.fstat(output).st_mode):
            fcntl.ioctl(output, termios.FIONREAD, count)
    except OSError:  # closed, for instance: this must not keep the rank from ending the others
        return 0
    return count[0]
