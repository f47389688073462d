"""The command line in this process, and a small job for it."""

import errno
import fcntl
import gc
import os
import shlex
import signal
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, settings

from hpcfl.cli.main import main
from hpcfl.io.lock import warn_of_no_locks
from hpcfl.io.signals import SAVE, STOP
from tests.forked import program

torch.set_num_threads(1)
# The same examples in every run, however slow the machine is.
settings.register_profile(
    "same", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("same")


def pytest_collection_finish():
    """Spare the collector of garbage the modules and thousands of tests, which stay to the end."""
    gc.freeze()


def pytest_unconfigure():
    """At its end Python collects all of it, or Triton tells what has leaked."""
    gc.unfreeze()


JOB = """\
data: {{kind: arrays, path: {path}, clients: 4, partition: {{kind: iid}}}}
model: {{name: linear}}
cohort: {{kind: uniform, size: 2}}
algorithm: {{name: fedhbm}}
local: {{lr: 0.1, batch_size: 4}}
rounds: 4
evaluate: {{every: 2}}
checkpoint: {{every: 2}}
"""


@pytest.fixture
def own_process():
    """What runs in this process change for all of it: signals and torch's determinism.

    ``torch.use_deterministic_algorithms`` would import torch's compiler, which takes seconds.
    """
    before = {number: signal.getsignal(number) for number in (*STOP, SAVE)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)
    torch.set_deterministic_debug_mode("default")


@pytest.fixture
def forked_python(tmp_path_factory, monkeypatch):
    """``sys.executable`` starts in 0.1 s, for tests in which hpcfl or a page starts processes."""
    with program() as python:
        path = tmp_path_factory.mktemp("python") / "python"
        path.write_text(f'#!/bin/sh\nexec {shlex.join(python.command)} "$@"\n')
        path.chmod(0o755)
        # mpirun is looked for beside Python, then there.
        own = Path(sys.executable).parent
        monkeypatch.setenv("PATH", f"{own}{os.pathsep}{os.environ.get('PATH', os.defpath)}")
        monkeypatch.setattr(sys, "executable", str(path))
        yield


@pytest.fixture
def determinism():
    """torch's global switch as it was."""
    before = torch.get_deterministic_debug_mode()
    yield
    torch.set_deterministic_debug_mode(before)


@pytest.fixture
def hpcfl(capsys, determinism):
    """Run a command: its exit code and the lines of its two streams."""

    def run(*arguments):
        capsys.readouterr()
        code = main([str(argument) for argument in arguments])
        said = capsys.readouterr()
        return SimpleNamespace(
            code=code, out=said.out.splitlines(), err=said.err.splitlines(), text=said.out
        )

    return run


@pytest.fixture
def refused(hpcfl):
    """Run a command that must fail with exit code 2, or another, and one line; return the line."""

    def run(*arguments, code=2):
        done = hpcfl(*arguments)
        assert done.code == code, done.err
        assert len(done.err) == 1, done.err
        assert not done.out
        return done.err[0]

    return run


@pytest.fixture
def arrays(tmp_path):
    """Make an .npz of 40 examples of 3 features and 4 classes; keywords replace arrays."""

    def make(name="data.npz", **changes):
        random = np.random.default_rng(0)
        y = np.arange(40) % 4
        x = random.standard_normal((40, 3)) + y[:, None]
        given = {"x": x, "y": y, "x_test": x[:12], "y_test": y[:12], **changes}
        path = tmp_path / name
        np.savez(path, **{key: value for key, value in given.items() if value is not None})
        return path

    return make


@pytest.fixture
def job(tmp_path, arrays):
    """A job file of four short rounds of FedHBM with 4 clients."""
    path = tmp_path / "job.yaml"
    path.write_text(JOB.format(path=arrays()))
    return path


@pytest.fixture
def waiting(monkeypatch):
    """Is set as soon as another thread than this one is about to wait for a lock."""
    event, flock, here = threading.Event(), fcntl.flock, threading.get_ident()

    def told(fd, how):
        if threading.get_ident() != here:
            event.set()
        flock(fd, how)

    monkeypatch.setattr("hpcfl.io.lock.fcntl.flock", told)
    return event


# ENOLCK: NFS without its daemon; ENOSYS: Lustre mounted so; 524, the kernel's ENOTSUPP: Cray DVS.
@pytest.fixture(params=[errno.ENOLCK, errno.ENOSYS, errno.EINVAL, 524], ids=errno.errorcode.get)
def no_locks(request, monkeypatch):
    """All file systems are without locks, until it is called with False."""
    flock = fcntl.flock

    def refuse(*arguments):
        raise OSError(request.param, os.strerror(request.param))

    def switch(without):
        monkeypatch.setattr("fcntl.flock", refuse if without else flock)

    warn_of_no_locks.cache_clear()
    switch(True)
    yield switch
    warn_of_no_locks.cache_clear()
