"""Fetching owners' files: from a server on this machine, whole, cut off, damaged and absent."""

import hashlib
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from hpcfl.data.owners import Published, check_md5, provide
from hpcfl.errors import DataError

CONTENT = bytes(range(256)) * 5000  # 1.28 MB: two blocks


def md5(content):
    return hashlib.md5(content, usedforsecurity=False).hexdigest()


def quiet(items, what, total=None):
    return items


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.server.asked.append(self.headers.get("Range"))
        begin = 0
        if self.headers.get("Range") and self.server.ranges:
            begin = int(self.headers["Range"].removeprefix("bytes=").rstrip("-"))
        if self.path != "/file":
            self.send_error(404)
            return
        self.send_response(206 if begin else 200)
        self.send_header("Content-Length", str(len(CONTENT) - begin))
        self.end_headers()
        self.wfile.write(CONTENT[begin:])

    def log_message(self, *arguments):
        pass


@pytest.fixture
def server():
    made = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    made.asked, made.ranges = [], True
    made.url = f"http://127.0.0.1:{made.server_address[1]}"
    thread = threading.Thread(target=made.serve_forever, daemon=True)
    thread.start()
    yield made
    made.shutdown()
    thread.join()
    made.server_close()


def published(server, path="/file", md5=None):
    return Published("deep/file.bin", server.url + path, md5)


def test_fetches_what_is_missing_and_nothing_twice(server, tmp_path):
    file = published(server, md5=md5(CONTENT))
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
    provide(tmp_path, [published(server)], quiet)
    assert server.asked == ["bytes=1000-"]
    assert (tmp_path / "deep/file.bin").read_bytes() == CONTENT


def test_refuses_another_file(server, tmp_path):
    with pytest.raises(DataError, match=r"file\.bin\.part: its md5 is .*, the owners' is 00ff"):
        provide(tmp_path, [published(server, md5="00ff")], quiet)
    assert list((tmp_path / "deep").iterdir()) == []


def test_says_which_files_belong_where(server, tmp_path):
    there = Published("here.csv", server.url + "/file")
    (tmp_path / "here.csv").write_text("as it is")
    absent = [published(server, "/none"), Published("other.csv", server.url + "/other")]
    with pytest.raises(DataError) as caught:
        provide(tmp_path, [there, *absent], quiet)
    said = str(caught.value)
    assert f"{server.url}/none as {tmp_path}/deep/file.bin" in said
    assert f"{server.url}/other as {tmp_path}/other.csv" in said
    assert "here.csv" not in said
    assert "404" in said


def test_checks_a_file_that_was_put_there(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(CONTENT)
    check_md5(path, md5(CONTENT), quiet)
    with pytest.raises(DataError, match="remove it and fetch it again"):
        check_md5(path, md5(b""), quiet)
