"""Only regular files are opened; nothing waits for another process or reads without end."""

import os
import socket
from pathlib import Path

import pytest

from hpcfl.io import regular


def test_a_file_is_read_also_through_a_link(tmp_path: Path) -> None:
    file, link = tmp_path / "file", tmp_path / "link"
    file.write_bytes(b"content")
    link.symlink_to(file)

    assert regular.read(link) == b"content"
    assert regular.read_text(file) == "content"
    with pytest.raises(OSError, match="is a symbolic link, expected a file") as e:
        regular.read(link, follow=False)
    assert e.value.filename == str(link)


@pytest.mark.parametrize("kind", ["FIFO", "directory", "socket", "device"])
@pytest.mark.parametrize("linked", [False, True])
@pytest.mark.parametrize(
    "opened",
    [
        regular.read,
        regular.open_text,
        regular.open_write,
        regular.open_append,
        regular.check_regular,
    ],
)
def test_other_kinds_are_named_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, linked: bool, opened: object
) -> None:
    monkeypatch.chdir(tmp_path)  # names of sockets are short
    path = Path("other")
    if kind == "FIFO":
        os.mkfifo(path)
    elif kind == "directory":
        path.mkdir()
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(str(path))
    else:
        path = Path("/dev/zero")
    if linked:
        Path("link").symlink_to(path)
        path = Path("link")
    expected = f"is a {kind}, expected a file"
    if linked and opened is regular.open_append:
        expected = "is a symbolic link, expected a file"

    with pytest.raises(OSError, match=expected):
        opened(path)  # type: ignore[operator]


def test_a_missing_file_and_a_link_to_one_are_missing(tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "nothing")

    for path in (tmp_path / "nothing", link):
        with pytest.raises(FileNotFoundError):
            regular.read(path)


def test_a_sparse_file_larger_than_the_memory_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "sparse"
    with path.open("wb") as file:
        file.truncate(1 << 43)

    for opened in (regular.read, regular.open_text):
        with pytest.raises(OSError, match=r"it has 8.8 TB, and .* of memory are free"):
            opened(path)


def test_writing_replaces_the_content(tmp_path: Path) -> None:
    path = tmp_path / "file"
    for content in (b"longer", b"short"):
        with regular.open_write(path) as file:
            file.write(content)

    assert path.read_bytes() == b"short"


def test_appending_keeps_the_content(tmp_path: Path) -> None:
    path = tmp_path / "log"
    for line in (b"1\n", b"2\n"):
        with regular.open_append(path) as file:
            file.write(line)

    assert path.read_bytes() == b"1\n2\n"
