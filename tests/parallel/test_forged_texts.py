"""Another user of the node writes into the store of the ranks: no code runs, nothing is believed.

The store is torchrun's, which anybody reaches, and here it holds the stranger's texts before the
ranks come: rank 1 would read them in the place of rank 0's.
"""

import json
import os
import subprocess
import sys
import zlib
from contextlib import ExitStack

import pytest
import torch

from tests.forked import free_ports, program, torchrun
from tests.parallel.background import PATIENCE_S, write
from tests.parallel.harness import environment

# Sets the keys of its first argument, in the store at the port of its second, as another user where
# it may become one.
STRANGER = """
import json, os, sys
from datetime import timedelta
from torch.distributed import TCPStore
if os.geteuid() == 0:
    os.setuid(65534)
store = TCPStore("127.0.0.1", int(sys.argv[2]), timeout=timedelta(seconds=60))
for key, text in json.loads(sys.argv[1]).items():
    store.set(key, bytes.fromhex(text))
"""


class Executed:
    """Makes a file where it is unpickled."""

    def __init__(self, path):
        self._path = path

    def __reduce__(self):
        return os.open, (str(self._path), os.O_CREAT)


@pytest.fixture
def store():
    """A store as torchrun has it, at any free port."""
    return torch.distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)  # noqa: TID251


def forge(keys, port):
    texts = json.dumps({key: value.hex() for key, value in keys.items()})
    done = subprocess.run(
        [sys.executable, "-c", STRANGER, texts, str(port)],
        env=environment(), capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", ["place", "gathered/5/texts"])
def test_a_forged_text_ends_the_run(name, store, tmp_path):
    """The fifth gathering names the folder of the host's data, which is unpickled nowhere."""
    folder, executed = tmp_path / "stranger", tmp_path / "executed"
    folder.mkdir()
    for file in ("data.pt", "data"):
        torch.save({"x": Executed(executed)}, folder / file)
    forged = f"0 {'0' * 32}" if name == "place" else json.dumps([str(folder)] * 2)
    value = forged.encode() if name == "place" else zlib.compress(forged.encode())
    forge({f"hpcfl/0/0/{name}": value}, store.port)
    job = write(tmp_path, comm={"backend": "gloo", "timeout_s": 60.0}, rounds=1)
    words = ["-m", "hpcfl", "run", str(job), "--out", str(tmp_path / "run")]
    agent = {"MASTER_PORT": str(store.port), "TORCHELASTIC_USE_AGENT_STORE": "True"}
    with ExitStack() as stack:
        python = stack.enter_context(program()).command
        # Rank 1 finds the forged place without rank 0, which would replace it.
        for variables in torchrun(2)[1:] if name == "place" else torchrun(2):
            said = tmp_path / f"said-{variables['RANK']}"
            process = subprocess.Popen(
                [*python, *words],
                env=environment(**{**variables, **agent}),
                stderr=stack.enter_context(said.open("w")),
            )
            stack.callback(process.wait)
            stack.callback(process.kill)
        assert process.wait(PATIENCE_S) == 1  # rank 1
        (line,) = said.read_text().splitlines()
        if name == "place":
            assert line.startswith("RankError: the secret of the ranks cannot be read: ")
        else:
            text = f"the text hpcfl/0/0/{name} that this rank received does not carry the code"
            assert line.startswith(f"[rank 1 of 2] RankError: {text}")
    assert not executed.exists()


LISTS = """
import os
from torch.distributed import TCPStore
store = TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
print(*store.list_keys(), flush=True)
"""


def test_torchrun_with_a_port_keeps_no_pickle(tmp_path):
    """With its rendezvous c10d it unpickles what its store holds below torch.rendezvous."""
    program = tmp_path / "lists.py"
    program.write_text(LISTS)
    done = subprocess.run(
        [
            *(sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "1"),
            *("--master-port", str(free_ports(1)), str(program)),
        ],
        env=environment(), capture_output=True, text=True, timeout=PATIENCE_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "torchelastic" in done.stdout
    assert "torch.rendezvous" not in done.stdout
