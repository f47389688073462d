"""Python in processes forked from one that has imported torch, which start in 0.1 s.

``python`` and ``finish`` launch several ranks as torchrun does, so they use Gloo; ``program`` gives
mpirun, srun or a script a command to start in place of Python.  What concerns imports or the first
moments of a process starts Python itself.
"""

import atexit
import ctypes
import json
import multiprocessing
import os
import random
import runpy
import selectors
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from multiprocessing import connection, forkserver
from multiprocessing.connection import Connection
from pathlib import Path
from socketserver import StreamRequestHandler, ThreadingUnixStreamServer
from tempfile import TemporaryDirectory
from threading import Lock, Thread
from typing import Any, NamedTuple

import pytest

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["pytest", "tests.forked", "tests.warm"])
PATIENCE_S = 300.0  # only against a hang


def ensure_server() -> None:
    """Start the process that others are forked from."""
    with pytest.MonkeyPatch.context() as patch:
        # Python 3.11 does not give it sys.path, so it would not find the modules to preload.
        patch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
        patch.setenv("OMP_NUM_THREADS", "1")  # the threads of a pool do not survive a fork
        forkserver.ensure_running()


class Ended(NamedTuple):
    """How the ranks of a command ended, and what they printed."""

    returncode: int
    """Minus the number of the signal that killed it."""
    stdout: str
    stderr: str


def finish(
    ranks: int,
    *args: object,
    env: Mapping[str, str] | None = None,
    prepare: Callable[[], None] | None = None,
    folders: Sequence[Path] = (),
) -> Ended:
    """``hpcfl ARGS`` to its end; see :func:`python`."""
    return python(ranks, "-m", "hpcfl", *args, env=env, prepare=prepare, folders=folders)


def python(
    ranks: int,
    *args: object,
    env: Mapping[str, str] | None = None,
    prepare: Callable[[], None] | None = None,
    folders: Sequence[Path] = (),
) -> Ended:
    """``python ARGS`` to its end, on so many ranks.

    Args:
        ranks: processes; several are launched as torchrun does it, so they use Gloo.
        args: "-m" and a module, "-c" and a text, or a script; then its arguments.
        env: variables to set; a ``sitecustomize.py`` of a folder in PYTHONPATH is run.
        prepare: is called in every process before it starts.
        folders: the working directory of every rank, the present one without it.

    Raises:
        AssertionError: the ranks ended with different exit codes, or not at all.
    """
    ensure_server()
    words = [str(word) for word in args]
    launcher = [{} for _ in range(ranks)] if ranks == 1 else torchrun(ranks)
    out, err = (socket.socketpair() for _ in range(2))
    places = [str(folder) for folder in folders] or [str(Path.cwd())] * ranks
    processes = [
        CONTEXT.Process(
            target=become,
            args=(words, {**(env or {}), **variables}, place, out[1], err[1], prepare),
        )
        for variables, place in zip(launcher, places, strict=True)
    ]
    for process in processes:
        process.start()
    for pair in (out, err):
        pair[1].close()
    stdout, stderr = _read([out[0], err[0]])
    deadline = time.monotonic() + PATIENCE_S
    for process in processes:
        process.join(max(0.0, deadline - time.monotonic()))
        process.kill()
        process.join()
    codes = {process.exitcode for process in processes}
    assert len(codes) == 1, (codes, stderr)
    return Ended(codes.pop(), stdout, stderr)


class Program(NamedTuple):
    """A command that stands for Python while its context lasts."""

    command: list[str]
    """Its words, to which those for Python are added."""
    alive: dict[int, int]
    """The rank of each process that has not ended, by the process' id; 0 without a launcher."""


@contextmanager
def program() -> Iterator[Program]:
    """Serve ``forked_program.py``, which becomes a forked process instead of starting Python."""
    alive: dict[int, int] = {}
    # Whatever starts a process or waits for its end looks at all of them, and an end is told once.
    one = Lock()

    class Start(StreamRequestHandler):
        """One process, which is killed where the launcher kills its ``forked_program.py``."""

        def handle(self) -> None:
            _, fds, _, _ = socket.recv_fds(self.request, 1, 3)
            start = json.loads(self.rfile.readline())
            ends = [Connection(fd) for fd in fds]
            process = CONTEXT.Process(target=_program, args=(start, *ends))
            with one:
                process.start()
            for end in ends:
                end.close()
            assert process.pid is not None
            alive[process.pid] = _rank_of(start["env"])
            self._tell(process.pid)
            connection.wait([process.sentinel, self.request])
            with one:
                process.kill()
                process.join()
            del alive[process.pid]
            assert process.exitcode is not None
            self._tell(process.exitcode)

        def _tell(self, number: int) -> None:
            with suppress(BrokenPipeError, ConnectionResetError):  # it was killed
                self.wfile.write(b"%d\n" % number)

    ensure_server()
    with TemporaryDirectory() as folder, ThreadingUnixStreamServer(f"{folder}/s", Start) as server:
        thread = Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            client = Path(__file__).with_name("forked_program.py")
            yield Program([sys.executable, "-IS", str(client), f"{folder}/s"], alive)
        finally:
            server.shutdown()
            thread.join()
            for pid in list(alive):  # of a test that failed: closing the server waits for them
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)


def _rank_of(env: Mapping[str, str]) -> int:
    known = ("PMI_RANK", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID")
    return int(next((env[name] for name in known if name in env), 0))


def _program(
    start: Mapping[str, Any], out: Connection, err: Connection, manager: Connection | None = None
) -> None:
    """Become ``python WORDS``; ``manager`` leads to mpirun's process manager."""
    own = {"PMI_FD": str(manager.fileno())} if manager else {}
    code: object = 0
    try:
        become(start["words"], {**start["env"], **own}, start["folder"], out, err, None)
    except SystemExit as e:
        code = e.code or 0
    except BaseException:  # noqa: BLE001 - a KeyboardInterrupt is shown by the same hook
        sys.excepthook(*sys.exc_info())
        code = 1
    # A forked process skips what an interpreter does at its end, and MPI needs it.
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    ctypes.CDLL(None).exit(code if isinstance(code, int) else 1)


def free_ports(count: int) -> int:
    """The first of so many free ports in a row, below those that Linux gives out by itself.

    Each of pytest's workers has a range of its own: a port is free until its user binds it.
    """
    worker = os.environ.get("PYTEST_XDIST_WORKER", "gw")[2:]
    low = 20_000 + 1000 * (1 + int(worker) % 9 if worker else 0)
    while True:
        first = random.randrange(low, low + 1000 - count)
        with ExitStack() as stack, suppress(OSError):
            for port in range(first, first + count):
                stack.enter_context(socket.create_server(("127.0.0.1", port)))
            return first


def torchrun(ranks: int) -> list[dict[str, str]]:
    """The variables that torchrun sets for each rank, of ranks on this host."""
    port = str(free_ports(1))
    return [
        {
            "RANK": str(rank),
            "WORLD_SIZE": str(ranks),
            "LOCAL_RANK": str(rank),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": port,
        }
        for rank in range(ranks)
    ]


def _read(sockets: list[socket.socket]) -> list[str]:
    """All that is written to the other ends, until every process has closed them."""
    found = dict.fromkeys(sockets, b"")
    with selectors.DefaultSelector() as selector:
        for end in sockets:
            selector.register(end, selectors.EVENT_READ)
        while selector.get_map():
            ready = selector.select(PATIENCE_S)
            assert ready, f"nothing is printed for {PATIENCE_S:g} s: {found}"
            for key, _ in ready:
                content = key.fileobj.recv(65536)
                found[key.fileobj] += content
                if not content:
                    selector.unregister(key.fileobj)
                    key.fileobj.close()
    return [content.decode() for content in found.values()]


def become(
    words: list[str],
    env: Mapping[str, str],
    folder: str,
    out: socket.socket | Connection,
    err: socket.socket | Connection,
    prepare: Callable[[], None] | None,
) -> None:
    """Become ``python WORDS``, in a process forked from the server."""
    # Sockets or pipes and not files, because some tests let every file operation fail.
    for number, end in ((1, out), (2, err)):
        os.dup2(end.fileno(), number)
        end.close()
    # The parent's objects of these names write to pytest's capture.
    sys.stdout, sys.stderr = (os.fdopen(n, "w", buffering=1, closefd=False) for n in (1, 2))
    os.chdir(folder)
    os.environ.update(env)
    for place in env.get("PYTHONPATH", "").split(os.pathsep):
        sys.path.insert(0, place)
        if (changes := Path(place) / "sitecustomize.py").is_file():
            runpy.run_path(str(changes))
    if prepare:
        prepare()
    if words[0] == "-m":
        sys.argv = words[1:]
        runpy.run_module(words[1], run_name="__main__")
    elif words[0] == "-c":
        sys.argv = ["-c", *words[2:]]
        exec(words[1], {"__name__": "__main__"})  # noqa: S102
    else:
        sys.argv = words
        runpy.run_path(words[0], run_name="__main__")
