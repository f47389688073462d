"""`hpcfl data prepare` for data sets that jobs read as their publishers publish them."""

import hashlib
import io
import re
import tarfile
import threading
import zipfile
from dataclasses import replace

import numpy as np
import pytest

from hpcfl.data.archives import Archive, provide_folder, provide_members
from hpcfl.data.download import PublishedFile, quiet
from hpcfl.data.sources import concrete, shakespeare
from hpcfl.data.sources.cifar10 import Cifar10
from hpcfl.data.sources.concrete import Concrete
from hpcfl.data.sources.shakespeare import Shakespeare
from hpcfl.errors import DataError
from hpcfl.io.lock import locked
from tests.data import test_cifar, test_shakespeare
from tests.real_data import real

FILES = {"box/a.bin": b"a" * 5000, "box/b.bin": b"b", "../escaped": b"evil", "box/c.bin": b"c"}
WANTED = {"box/a.bin": "deep/a", "box/b.bin": "b"}


def pack(path, files):
    """A tar or a zip of these files, and its md5."""
    if path.suffix == ".zip":
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as bag:
            for name, content in files.items():
                bag.writestr(name, content)
    else:
        with tarfile.open(path, f"w:{path.suffix[1:]}") as tar:
            for name, content in files.items():
                info = tarfile.TarInfo(name)
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))
    return hashlib.md5(path.read_bytes(), usedforsecurity=False).hexdigest()


def pack_folder(path, folder):
    files = [file for file in sorted(folder.rglob("*")) if file.is_file()]
    return pack(path, {str(f.relative_to(folder)): f.read_bytes() for f in files})


def names(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


@pytest.mark.parametrize("name", ["set.tar.gz", "set.tar.bz2", "set.zip"])
def test_only_what_is_wanted_is_unpacked(served, tmp_path, name):
    md5 = pack(served.folder / name, FILES)
    archive = Archive(name=name, url=f"{served.url}/{name}", md5=md5, members=WANTED)
    root = tmp_path / "root"
    provide_members(root, archive, quiet)
    assert names(root) == sorted(["b", "deep/a", name])
    assert (root / "deep/a").read_bytes() == FILES["box/a.bin"]
    # What is there is neither fetched nor unpacked again.
    (served.folder / name).unlink()
    (root / "b").write_bytes(b"mine")
    provide_members(root, archive, quiet)
    (root / "deep/a").unlink()
    provide_members(root, archive, quiet)
    assert (root / "deep/a").read_bytes() == FILES["box/a.bin"]
    assert (root / "b").read_bytes() == b"mine"


def test_names_that_begin_with_a_dot(tmp_path):
    pack(tmp_path / "set.tar.gz", {"./box/b.bin": b"b"})
    archive = Archive(name="set.tar.gz", url="", members={"box/b.bin": "b"})
    provide_members(tmp_path, archive, quiet)
    assert (tmp_path / "b").read_bytes() == b"b"


def test_a_link_is_no_member(tmp_path):
    with tarfile.open(tmp_path / "set.tar.gz", "w:gz") as tar:
        info = tarfile.TarInfo("box/b.bin")
        info.type, info.linkname = tarfile.SYMTYPE, "/etc/hostname"
        tar.addfile(info)
    archive = Archive(name="set.tar.gz", url="", members={"box/b.bin": "b"})
    with pytest.raises(DataError, match=r"set\.tar\.gz: holds no file box/b\.bin"):
        provide_members(tmp_path, archive, quiet)


@pytest.mark.parametrize("name", ["set.tar.gz", "set.tar.bz2", "set.zip"])
def test_a_damaged_archive(tmp_path, name):
    md5 = pack(tmp_path / name, FILES)
    whole = (tmp_path / name).read_bytes()
    checked = Archive(name=name, url="", md5=md5, members=WANTED)
    for content in (b"", b"text", whole[: len(whole) // 2], whole[:40] + b"!" * 8 + whole[48:]):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(DataError, match=r"its md5 is .* remove it and fetch it again"):
            provide_members(tmp_path, checked, quiet)
        with pytest.raises(DataError, match=r"cannot be unpacked|holds no file") as caught:
            provide_members(tmp_path, replace(checked, md5=None), quiet)
        assert "\n" not in str(caught.value)
        assert not (tmp_path / "deep/a").exists()


def test_another_process_unpacks_what_is_waited_for(tmp_path, waiting):
    pack(tmp_path / "set.zip", FILES)
    archive = Archive(name="set.zip", url="", members=WANTED)
    second = threading.Thread(target=provide_members, args=(tmp_path, archive, quiet))
    with locked(tmp_path / "set.zip"):
        second.start()
        waiting.wait()
        (tmp_path / "deep").mkdir()
        for name in WANTED.values():
            (tmp_path / name).write_text("of the first")
    second.join()
    assert {(tmp_path / name).read_text() for name in WANTED.values()} == {"of the first"}
    assert names(tmp_path) == ["b", "deep/a", "set.zip"]


@pytest.mark.parametrize("name", ["set.tar.gz", "set.zip"])
def test_of_a_folder_only_what_is_wanted_is_unpacked(tmp_path, name):
    md5 = pack(tmp_path / name, {**FILES, "box/../../escaped.bin": b"evil", "box/run.sh": b"evil"})
    archive = PublishedFile(name, "", md5)
    (tmp_path / "box.part").mkdir()
    (tmp_path / "box.part/old").touch()
    provide_folder(tmp_path, archive, "box", re.compile(r"[ab]\.bin"), quiet)
    assert names(tmp_path) == ["box/a.bin", "box/b.bin", name]
    assert (tmp_path / "box/a.bin").read_bytes() == FILES["box/a.bin"]
    with pytest.raises(DataError, match=rf"{name}: holds none of the files of box/"):
        provide_folder(tmp_path, archive, "box", re.compile(r"z\.bin"), quiet)
    with pytest.raises(DataError, match="box: cannot be replaced: Directory not empty; remove it"):
        provide_folder(tmp_path, archive, "box", re.compile(r"[ab]\.bin"), quiet)


@pytest.fixture
def cifar(tmp_path, served):
    """Cifar10 whose owners publish a miniature here, and an empty root."""
    folder = test_cifar.write_batches(served.folder)
    md5 = pack_folder(served.folder / "cifar.tar.gz", served.folder)
    mini = test_cifar.listing(folder, Cifar10.layout)._replace(
        url=f"{served.url}/cifar.tar.gz", md5=md5, counts=(10, 4)
    )

    class Mini(Cifar10):
        layout = mini

    return Mini, tmp_path / "root"


def test_cifar_is_fetched_unpacked_and_counted(cifar):
    kind, root = cifar
    config = kind(root=str(root))
    assert config.prepare(quiet) == root / "cifar-10-batches-py"
    test_cifar.check(config.load(0))
    assert config.prepare(quiet) == root / "cifar-10-batches-py"
    kind.layout = kind.layout._replace(counts=(50_000, 10_000))
    with pytest.raises(DataError, match="found 10 training examples, the published data has 50000"):
        config.prepare(quiet)


def test_cifar_as_an_npz_is_counted(cifar):
    kind, root = cifar
    root.mkdir()
    pixels, labels = test_cifar.PIXELS, test_cifar.LABELS
    np.savez(
        root / "cifar10.npz",
        x_train=pixels[:10],
        y_train=labels[:10],
        x_test=pixels[:3],
        y_test=labels[:3],
    )
    with pytest.raises(DataError, match=r"npz: found 3 test examples, the published data has 4"):
        kind(root=str(root)).prepare(quiet)
    assert names(root) == ["cifar10.npz"]


def test_only_fetch_downloads(cifar):
    """Every rank loads; one alone fetches."""
    kind, root = cifar
    kind(root=str(root)).fetch()
    with pytest.raises(DataError, match="found neither"):
        kind(root=str(root), download=True).load(0)
    kind(root=str(root), download=True).fetch()
    test_cifar.check(kind(root=str(root)).load(0))


@pytest.fixture
def no_internet(monkeypatch):
    def refuse(*arguments, **more):
        raise OSError("no route to host")

    monkeypatch.setattr("hpcfl.data.download.urlopen", refuse)


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("cifar10", "cifar-10-python.tar.gz"),
        ("cifar100", "cifar-100-python.tar.gz"),
        ("shakespeare", "shakespeare.tar.bz2"),
        ("concrete", "Concrete_Data.csv"),
    ],
)
def test_without_internet_it_says_what_belongs_where(kind, said, no_internet, tmp_path, hpcfl):
    done = hpcfl("data", "prepare", kind, "--root", tmp_path)
    assert (done.code, done.out) == (2, [])
    (line,) = done.err
    assert "cannot be downloaded (no route to host); put there by hand: https://" in line
    assert line.endswith(f" as {tmp_path}/{said}")
    assert not list(tmp_path.iterdir())
    assert hpcfl("data", "prepare", kind, "--root", tmp_path / "a" / "typo").code == 2
    assert not list(tmp_path.iterdir())


def test_shakespeare_is_unpacked_and_counted(tmp_path, served, monkeypatch):
    test_shakespeare.write(served.folder, "train", test_shakespeare.TRAIN)
    test_shakespeare.write(served.folder, "test", test_shakespeare.TEST)
    pack_folder(served.folder / "s.tar.bz2", served.folder)
    mini = replace(shakespeare.ARCHIVE, url=f"{served.url}/s.tar.bz2", sha256=None)
    monkeypatch.setattr(shakespeare, "ARCHIVE", mini)
    monkeypatch.setattr(shakespeare, "_ROLES", 3)
    monkeypatch.setattr(shakespeare, "_SNIPPETS", {"train": 4, "test": 3})
    config = Shakespeare(root=str(tmp_path / "root"))
    assert config.prepare(quiet) == tmp_path / "root"
    assert len(config.load(0).natural) == 2
    monkeypatch.setattr(shakespeare, "_SNIPPETS", {"train": 4, "test": 4})
    with pytest.raises(DataError, match=r"shakespeare_test\.h5: found 3 snippets, .* has 4"):
        config.prepare(quiet)


def write_concrete(root, monkeypatch):
    """Two mixtures, as if those were all."""
    rows = [[k * j % 11 + 1 for j in range(1, 10)] for k in (1, 2)]
    lines = ["a,b,c,d,e,f,g,h,i", *(",".join(map(str, row)) for row in rows)]
    (root / "Concrete_Data.csv").write_text("\n".join(lines))
    monkeypatch.setattr(concrete, "_ROWS", 2)
    monkeypatch.setattr(concrete, "_MEANS", tuple(np.mean(rows, axis=0)))


def test_concrete_is_fetched_and_counted(tmp_path, served, monkeypatch):
    write_concrete(served.folder, monkeypatch)
    content = (served.folder / "Concrete_Data.csv").read_bytes()
    url, digest = f"{served.url}/Concrete_Data.csv", hashlib.sha256(content).hexdigest()
    table = replace(concrete.TABLE, url=url, sha256=digest)
    monkeypatch.setattr(concrete, "TABLE", table)
    path = Concrete(root=str(tmp_path / "root")).prepare(quiet)
    assert path.read_bytes() == content
    monkeypatch.setattr(concrete, "_ROWS", 1030)
    with pytest.raises(DataError, match="found 2 rows, the published data has 1030"):
        Concrete(root=str(tmp_path / "root")).prepare(quiet)
    monkeypatch.setattr(concrete, "TABLE", replace(table, sha256="00ff"))
    with pytest.raises(DataError, match=r"its sha256 is .*, the published is 00ff"):
        Concrete(root=str(tmp_path / "other")).prepare(quiet)


def test_a_concrete_that_was_put_there_is_compared(tmp_path, monkeypatch):
    """By its numbers, as UCI publishes the table in several forms."""
    write_concrete(tmp_path, monkeypatch)
    path = Concrete(root=str(tmp_path)).prepare(quiet)
    lines = path.read_text().splitlines()
    path.write_text("\n".join([lines[0], *(line.replace(",", " ,") for line in lines[1:])]))
    Concrete(root=str(tmp_path)).prepare(quiet)
    first, second, *others = lines[1].split(",")
    path.write_text("\n".join([lines[0], ",".join([first, second + "1", *others]), lines[2]]))
    with pytest.raises(
        DataError, match=r"Data\.csv: the mean of column 2 is 18, the published is 4"
    ):
        Concrete(root=str(tmp_path)).prepare(quiet)


@pytest.mark.parametrize("kind", ["shakespeare", "concrete"])
def test_the_real_files_pass(kind, hpcfl):
    root = real("Concrete_Data.csv").parent
    done = hpcfl("data", "prepare", kind, "--root", root)
    assert (done.code, done.err) == (0, [])
    assert done.out[0].startswith(f"ready: {root}")
