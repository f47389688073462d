"""A server on this machine, and miniature data sets."""

import fcntl
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace

import pytest


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *arguments):
        pass


@pytest.fixture
def served(tmp_path):
    """A folder, and the URL that serves its files."""
    folder = tmp_path / "served"
    folder.mkdir()
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=folder))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield SimpleNamespace(folder=folder, url=f"http://127.0.0.1:{server.server_address[1]}")
    server.shutdown()
    thread.join()
    server.server_close()


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
