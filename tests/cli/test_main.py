import subprocess
import sys

import pytest

LEAVE = """
import os, sys
from hpcfl import __main__
from hpcfl.cli import main as cli
cli.main = lambda: {code}
code = __main__.main()
os.kill(os.getpid(), {signal})
sys.exit(code)
"""


@pytest.mark.parametrize("signal", ["SIGTERM", "SIGUSR1"])
@pytest.mark.parametrize("code", [0, 2, 75])
def test_a_signal_while_leaving_does_not_change_the_exit_code(code, signal):
    """The first rank to leave makes srun signal the others; 143 would not be requeued."""
    script = "from signal import *\n" + LEAVE.format(code=code, signal=signal)
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == code
