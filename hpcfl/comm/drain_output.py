"""Wait until the launcher has read this rank's last message, before all ranks are ended."""

import fcntl
import os
import stat
import termios
import time
from array import array

from hpcfl.comm.solo import flush

PATIENCE_S = 5.0  # with a reader that does not read
LOOK_S = 0.001
OUTPUTS = (1, 2)


def wait_until_read() -> None:
    """Wait until what this process said into pipes has been read, or until patience ends."""
    flush()
    deadline = time.monotonic() + PATIENCE_S
    while any(map(_unread, OUTPUTS)) and time.monotonic() < deadline:
        time.sleep(LOOK_S)


def _unread(output: int) -> int:
    """Bytes that lie in a pipe; 0 in anything else, and where the system does not tell."""
    count = array("i", [0])
    try:
        if stat.S_ISFIFO(os.fstat(output).st_mode):
            fcntl.ioctl(output, termios.FIONREAD, count)
    except OSError:  # a closed one, too: whoever ends all ranks must come to it
        return 0
    return count[0]
