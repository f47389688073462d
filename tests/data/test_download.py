"""Fetching published files: from a server on this machine, whole, cut off, damaged and absent."""

import errno
import hashlib
import os
import threading
from contextlib import nullcontext
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from hpcfl.data import download
from hpcfl.data.download import PublishedFile, provide, quiet
from hpcfl.errors import DataError, DiskError

CONTENT = bytes(range(256)) * 5000  # 1.28 MB: two blocks


def md5(content):
    return hashlib.md5(content, usedforsecurity=False).hexdigest()


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.server.asked.append(self.headers.get("Range"))
        begin = 0
        if self.headers.get("Range") and self.server.ranges:
            begin = int(self.headers["Range"].removeprefix("bytes=").rstrip("-"))
        if self.path != "/file":
            self.send_error(404)
            return
        if begin >= len(CONTENT):
            self.send_response(416)
            self.send_header("Content-Range", f"bytes */{len(CONTENT)}")
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        self.send_response(206 if begin else 200)
        self.send_header("Content-Length", str(len(CONTENT) - begin))
        self.end_headers()
        self.wfile.write(CONTENT[begin : self.server.cut])

    def log_message(self, *arguments):
        pass


@pytest.fixture
def server():
    made = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    made.asked, made.ranges, made.cut = [], True, None
    made.url = f"http://127.0.0.1:{made.server_address[1]}"
    thread = threading.Thread(target=made.serve_forever, daemon=True)
    thread.start()
    yield made
    made.shutdown()
    thread.join()
    made.server_close()


def file_at(server, path="/file", md5=None):
    return PublishedFile("deep/file.bin", server.url + path, md5)


def test_fetches_what_is_missing_and_nothing_twice(server, tmp_path):
    file = file_at(server, md5=md5(CONTENT))
    for _ in range(2):
        provide(tmp_path, [file], quiet)
        assert (tmp_path / "deep/file.bin").read_bytes() == CONTENT
    assert server.asked == [None]
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["file.bin"]


@pytest.mark.parametrize("ranges", [True, False])
def test_goes_on_where_a_download_ended(server, tmp_path, ranges):
    """Or starts afresh, where the server knows no ranges."""
    server.ranges = ranges
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep/file.bin.part").write_bytes(CONTENT[:1000])
    provide(tmp_path, [file_at(server)], quiet)
    assert server.asked == ["bytes=1000-"]
    assert (tmp_path / "deep/file.bin").read_bytes() == CONTENT


def test_refuses_another_file(server, tmp_path):
    with pytest.raises(DataError, match=r"file\.bin\.part: its md5 is .*, the published is 00ff"):
        provide(tmp_path, [file_at(server, md5="00ff")], quiet)
    assert not (tmp_path / "deep").exists()


def test_says_which_files_belong_where(server, tmp_path):
    there = PublishedFile("here.csv", server.url + "/file")
    (tmp_path / "here.csv").write_text("as it is")
    absent = [file_at(server, "/none"), PublishedFile("other.csv", server.url + "/other")]
    with pytest.raises(DataError) as caught:
        provide(tmp_path, [there, *absent], quiet)
    said = str(caught.value)
    assert f"{server.url}/none as {tmp_path}/deep/file.bin" in said
    assert f"{server.url}/other as {tmp_path}/other.csv" in said
    assert "here.csv" not in said
    assert "404" in said


@pytest.mark.parametrize("digest", [None, md5(CONTENT)])
def test_goes_on_where_the_connection_was_lost(server, tmp_path, digest):
    """Though the server had promised more."""
    file, server.cut = file_at(server, md5=digest), 1000
    with pytest.raises(DataError, match=r"\(the connection ended after 1000 of 1280000 bytes"):
        provide(tmp_path, [file], quiet)
    assert (tmp_path / "deep/file.bin.part").read_bytes() == CONTENT[:1000]
    server.cut = 3000
    with pytest.raises(DataError, match=r"\(the connection ended after 3000 of 1280000 bytes"):
        provide(tmp_path, [file], quiet)
    server.cut = None
    provide(tmp_path, [file], quiet)
    assert (tmp_path / "deep/file.bin").read_bytes() == CONTENT
    assert server.asked == [None, "bytes=1000-", "bytes=3000-"]


@pytest.mark.parametrize("digest", [None, md5(CONTENT)])
def test_a_download_that_ended_just_before_its_name(server, tmp_path, digest):
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep/file.bin.part").write_bytes(CONTENT)
    provide(tmp_path, [file_at(server, md5=digest)], quiet)
    assert (tmp_path / "deep/file.bin").read_bytes() == CONTENT
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["file.bin"]


@pytest.mark.parametrize(
    ("content", "digest", "said"),
    [
        (CONTENT + b"more", None, "1280004 bytes, the published file has 1280000; fetch it again"),
        (CONTENT[:-1] + b"?", md5(CONTENT), "its md5 is .*, the published is"),
        (b"?", md5(CONTENT), "its md5 is .*, the published is"),
    ],
)
def test_what_was_begun_may_be_of_another_file(server, tmp_path, content, digest, said):
    file = file_at(server, md5=digest)
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep/file.bin.part").write_bytes(content)
    with pytest.raises(DataError, match=rf"file\.bin\.part: {said}"):
        provide(tmp_path, [file], quiet)
    provide(tmp_path, [file], quiet)
    assert (tmp_path / "deep/file.bin").read_bytes() == CONTENT


def test_two_at_once_download_once(server, tmp_path, waiting):
    """The second waits for the first, which is in the midst of it, and finds the file."""
    file = file_at(server, md5=md5(CONTENT))
    second = threading.Thread(target=provide, args=(tmp_path, [file], quiet))

    def track(items, what, total=None):
        for item in items:
            if not second.ident:
                second.start()
                waiting.wait()
            yield item

    provide(tmp_path, [file], track)
    second.join()
    assert server.asked == [None]
    assert (tmp_path / "deep/file.bin").read_bytes() == CONTENT
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["file.bin"]


def test_checks_a_file_that_was_put_there(server, tmp_path):
    file = file_at(server, md5=md5(CONTENT))
    (tmp_path / "deep").mkdir()
    path = tmp_path / "deep/file.bin"
    path.write_bytes(b"of another kind")
    with pytest.raises(DataError, match=r"file\.bin: its md5 is .* remove it and fetch it again"):
        provide(tmp_path, [file], quiet)
    path.write_bytes(CONTENT)
    provide(tmp_path, [file], quiet)
    assert server.asked == []


def raising(number, *file):
    def refuse(*arguments, **more):
        raise OSError(number, os.strerror(number), *file)

    return refuse


@pytest.mark.parametrize("name", ["ENOSPC", "EIO", "ETIMEDOUT"])
def test_a_disk_that_fails_while_a_file_is_fetched(server, tmp_path, monkeypatch, name):
    monkeypatch.setattr(download.Path, "replace", raising(getattr(errno, name)))
    with pytest.raises(DiskError, match=r"file\.bin: cannot be fetched: .*; make room or repair"):
        provide(tmp_path, [file_at(server)], quiet)


class Answer(nullcontext):
    """What a server answers before its connection is lost."""

    status, headers = 200, {}
    read = staticmethod(raising(errno.ETIMEDOUT))

    def __enter__(self):
        return self


@pytest.mark.parametrize("urlopen", [raising(errno.ETIMEDOUT), lambda *arguments, **more: Answer()])
def test_a_connection_that_is_lost_is_no_disk(tmp_path, monkeypatch, urlopen):
    """Though it raises what a network file system raises, too."""
    monkeypatch.setattr(download, "urlopen", urlopen)
    said = r"file\.bin is missing and cannot be downloaded \(.*timed out.*\); put there by hand"
    with pytest.raises(DataError, match=said):
        provide(tmp_path, [PublishedFile("file.bin", "http://127.0.0.1/file")], quiet)
