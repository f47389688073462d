import subprocess
import sys

import pytest

from tests.parallel.background import write
from tests.parallel.outcome import outcome

LEAVES = """
import sys

import torch


class Net(torch.nn.Module):
    def __init__(self, input_shape, outputs):
        super().__init__()
        self.out = torch.nn.Linear(input_shape[0], outputs)

    def forward(self, x):
        if self.training:
            sys.exit(3)
        return self.out(x)
"""

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


def test_sys_exit_of_a_model_is_said(hpcfl, tmp_path, monkeypatch, own_process):
    """Its code is not the program's: 3 would say that the run diverged."""
    (tmp_path / "net_that_leaves.py").write_text(LEAVES)
    monkeypatch.syspath_prepend(tmp_path)
    job = write(
        tmp_path,
        task=None,
        data={"kind": "digits", "clients": 9, "partition": {"kind": "iid"}},
        model={"name": "module", "of": "net_that_leaves.Net"},
    )
    done = hpcfl("run", job, "--out", tmp_path / "run")
    assert done.code == 1
    (line,) = [line for line in done.err if "Error" in line]
    assert line.startswith("HookError: code of the job ended the program in forward (")
    assert line.endswith("): sys.exit(3)")


# With its standard streams as they are: what opens next must get another descriptor.
STREAMS = """
import os, sys
from hpcfl import __main__
code = __main__.main()
sys.stdin.read(), sys.stdout.write("."), sys.stderr.write(".")
with open(os.devnull) as file:
    sys.exit(code if file.fileno() > 2 else 9)
"""


def closing(streams, *command):
    """Run a command in a shell that closes some of its standard streams."""
    return subprocess.run(
        ["sh", "-c", f'exec "$@" {streams}', "sh", sys.executable, *command],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_a_closed_stream_is_dev_null(closed):
    done = closing(closed, "-c", STREAMS, "check", "quickstart", "--kind")
    assert done.returncode == 0
    assert done.stdout == ("" if ">&-" in closed.split() else "job\n.")
    assert done.stderr == ("" if "2>&-" in closed else ".")


@pytest.mark.parametrize("closed", ["2>&-", "<&- >&- 2>&-"])
def test_a_run_needs_no_standard_streams(closed, tmp_path):
    command = ["-m", "hpcfl", "run", "quickstart", "rounds=3", "--out", str(tmp_path / "run")]
    assert closing(closed, *command).returncode == 0
    assert outcome(tmp_path / "run").round == 3


@pytest.mark.parametrize(
    "command", [["run", "quickstart"], ["list"], ["data", "show", "quickstart"]]
)
def test_a_current_directory_that_is_gone_is_told(command, tmp_path):
    """Before torch is imported, whose MKL would end the process with exit code 2."""
    words = ["sh", "-c", 'mkdir gone; cd gone; rmdir ../gone; exec "$@"', "sh", sys.executable]
    done = subprocess.run(
        [*words, "-m", "hpcfl", *command], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 74
    assert done.stderr == (
        "DiskError: the current directory cannot be found (No such file or directory); change to "
        "another\n"
    )
