"""StackOverflow from miniature files in its publisher's layout: tokens, users, damage, a kill."""

import os
import signal
import tarfile
from dataclasses import replace

import h5py
import numpy as np
import pytest
import torch

from hpcfl.data.download import quiet
from hpcfl.data.sources import stackoverflow
from hpcfl.data.sources.stackoverflow import StackOverflow
from hpcfl.data.split import partition_examples
from hpcfl.errors import DataError, DiskError, JobError
from tests.forked import python

COUNTS = "the 9\ncat 7\nsat 3\n. 2\nunused 1\n"
TRAIN = {
    "00000123": [b"the cat sat .", b"the dog sat"],
    "00000042": [b"cat"],
    "00000777": [b"sat sat sat sat sat", b". .", b"the the cat"],
}
TEST = {"00000042": [b"the cat .", b"dog"], "00009999": [b"the sat the sat the"]}
# Classes: padding 0, the 1, cat 2, sat 3, . 4, oov 5, begin 6, end 7.  Users in the order of names.
ROWS = [
    [6, 2, 7, 0, 0],
    [6, 1, 2, 3, 4], [6, 1, 5, 3, 7],
    [6, 3, 3, 3, 3], [6, 4, 4, 7, 0], [6, 1, 1, 2, 7],
]  # fmt: skip
TEST_ROWS = [[6, 1, 2, 4, 7], [6, 5, 7, 0, 0], [6, 1, 3, 1, 3]]
KEYS = {"vocabulary": 4, "length": 4, "subset": True, "test_examples": None}
NAME = "stackoverflow_4_words_4.h5"


def write(root, name, users):
    with h5py.File(root / f"stackoverflow_{name}.h5", "w") as file:
        for user, texts in users.items():
            group = file.create_group(f"examples/{user}")
            kind = h5py.string_dtype()
            for field in ("tokens", "title", "tags"):
                group.create_dataset(field, data=np.array(texts, dtype=object), dtype=kind)
            group["score"] = np.zeros(len(texts), dtype=np.int64)


@pytest.fixture
def root(tmp_path):
    write(tmp_path, "train", TRAIN)
    write(tmp_path, "test", TEST)
    (tmp_path / "stackoverflow.word_count").write_text(COUNTS)
    return tmp_path


def config(root, **changes):
    return StackOverflow(root=str(root), **{**KEYS, **changes})


@pytest.fixture
def ready(root):
    assert config(root).prepare(quiet) == root / NAME
    return root


def test_every_word_by_hand(ready):
    data = config(ready).load(0)
    rows = torch.tensor(ROWS, dtype=torch.int16)
    assert torch.equal(data.train.inputs, rows)
    assert torch.equal(data.train.labels, rows[:, 1:])
    assert [own.tolist() for own in data.natural] == [[0], [1, 2], [3, 4, 5]]
    assert torch.equal(data.test.labels, torch.tensor(TEST_ROWS, dtype=torch.int16)[:, 1:])
    assert (data.classes, data.loss, data.mapped) == (8, "tokens", True)
    inputs = data.transform(data.train.inputs[:2], torch.float32, None)
    assert inputs.dtype == torch.int64
    assert inputs.tolist() == [[6, 2, 7, 0], [6, 1, 2, 3]]


def test_the_last_token_by_hand(ready):
    """The end of a sentence is the label, so it is no input."""
    data = config(ready, predict="last").load(0)
    inputs = data.transform(data.train.inputs, torch.float32, None)
    assert inputs.tolist() == [
        [6, 2, 0, 0], [6, 1, 2, 3], [6, 1, 5, 3], [6, 3, 3, 3], [6, 4, 4, 0], [6, 1, 1, 2]
    ]  # fmt: skip
    assert data.train.labels.tolist() == [7, 4, 7, 3, 7, 7]
    assert data.test.labels.tolist() == [7, 7, 3]


def test_the_rows_are_the_files_pages(ready):
    data = config(ready).load(0)
    before = (ready / NAME).stat()
    assert data.train.inputs.data_ptr() == data.train.labels.data_ptr() - 2
    assert data.train.inputs.stride() == (5, 1)
    assert (ready / NAME).stat() == before


def test_users_with_enough_sentences_and_no_more_than_asked(ready):
    some = config(ready, min_examples=2, max_examples=2).load(0)
    assert [own.tolist() for own in some.natural] == [[1, 2], [3, 4]]
    assert [own.tolist() for own in some.natural[1:]] == [[3, 4]]
    with pytest.raises(JobError, match=r"no user of .* has 4 training sentences; .* most has 3"):
        config(ready, min_examples=4).load(0)


def test_users_are_drawn_by_the_seed(ready):
    asked = config(ready, clients=2)
    data = asked.load(0)
    splits = [partition_examples(asked, data, seed).rows for seed in range(20)]
    drawn = {tuple(int(own[0]) for own in split) for split in splits}
    assert drawn == {(0, 1), (0, 3), (1, 3)}


def test_test_sentences_are_drawn_by_the_seed(ready):
    asked = config(ready, test_examples=2)
    drawn = {tuple(map(tuple, asked.load(seed).test.labels.tolist())) for seed in range(20)}
    assert len(drawn) == 3
    assert asked.load(7).test.labels.tolist() == asked.load(7).test.labels.tolist()
    with pytest.raises(JobError, match="test_examples: 4, but there are 3 test sentences"):
        config(ready, test_examples=4).load(0)


def test_prepared_once(ready, monkeypatch):
    monkeypatch.setattr("hpcfl.data.text.pack", None)
    before = (ready / NAME).stat()
    (ready / "stackoverflow_train.h5").unlink()
    assert config(ready).prepare(quiet) == ready / NAME
    assert (ready / NAME).stat() == before


KILLED = """
import os, signal, sys
from hpcfl.data.sources.stackoverflow import StackOverflow

done = 0

def track(items, what, total=None):
    global done
    for item in items:
        if what.startswith("writing"):
            if done == int(sys.argv[2]):
                os.kill(os.getpid(), signal.SIGKILL)
            done += 1
        yield item

keys = dict(vocabulary=4, length=4, subset=True, test_examples=None)
StackOverflow(root=sys.argv[1], **keys).prepare(track)
"""


@pytest.mark.slow
def test_a_killed_preparation_leaves_nothing_that_looks_finished(root, tmp_path):
    config(root).prepare(quiet)
    whole = (root / NAME).read_bytes()
    (root / NAME).unlink()
    script = tmp_path / "killed.py"
    script.write_text(KILLED)
    assert python(1, script, root, 2).returncode == -signal.SIGKILL
    assert (root / (NAME + ".part")).exists()
    with pytest.raises(DataError, match="not there; make it by: hpcfl data prepare stackoverflow"):
        config(root).load(0)
    config(root).prepare(quiet)
    assert (root / NAME).read_bytes() == whole
    assert not (root / (NAME + ".part")).exists()


def test_no_room(root, monkeypatch):
    def full(*arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("hpcfl.io.new_hdf5.os.posix_fallocate", full)
    with pytest.raises(DiskError, match=r"h5: cannot be made: No space left on device"):
        config(root).prepare(quiet)
    assert not list(root.glob("*.part*"))


@pytest.fixture
def archives(monkeypatch):
    """Let whatever lies there be the publisher's."""
    for name in ("TEXTS", "COUNTS"):
        archive = getattr(stackoverflow, name)
        monkeypatch.setattr(stackoverflow, name, replace(archive, sha256=None))


def test_out_of_the_owners_archives(root, archives):
    names = {"stackoverflow": ("train.h5", "test.h5"), "stackoverflow.word_count": ()}
    config(root).prepare(quiet)
    before = config(root).load(0)
    (root / NAME).unlink()
    for archive, ends in names.items():
        with tarfile.open(root / f"{archive}.tar.bz2", "w:bz2") as tar:
            for name in [f"stackoverflow_{end}" for end in ends] or [archive]:
                tar.add(root / name, arcname=name)
                (root / name).unlink()
    config(root).prepare(quiet)
    after = config(root).load(0)
    assert torch.equal(after.train.inputs, before.train.inputs)
    assert torch.equal(after.test.inputs, before.test.inputs)
    config(root).prepare(quiet)  # whose origin is what was unpacked


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"none", "cannot be unpacked"), (None, r"bz2: holds no file stackoverflow\.word_count$")],
)
def test_archives_that_are_none(root, content, message, archives):
    (root / "stackoverflow.word_count").unlink()
    path = root / "stackoverflow.word_count.tar.bz2"
    if content is None:
        with tarfile.open(path, "w:bz2") as tar:
            tar.add(root / "stackoverflow_test.h5", arcname="else")
    else:
        path.write_bytes(content)
    with pytest.raises(DataError, match=message):
        config(root).prepare(quiet)


@pytest.mark.parametrize(
    ("name", "within"),
    [("stackoverflow", "stackoverflow_train.h5"), ("stackoverflow.word_count",) * 2],
)
def test_archives_are_compared_with_the_owners(root, name, within):
    (root / within).unlink()
    (root / f"{name}.tar.bz2").write_bytes(b"of others")
    with pytest.raises(DataError, match=r"bz2: its sha256 is .*, the published is"):
        config(root).prepare(quiet)


def test_published_numbers(root, monkeypatch):
    with pytest.raises(
        DataError, match=r"train.h5: 3 users with 6 train sentences, the published.*"
    ):
        config(root, subset=False).prepare(quiet)
    monkeypatch.setattr(stackoverflow, "PUBLISHED", {"train": (3, 6), "test": (2, 3)})
    config(root, subset=False).prepare(quiet)
    assert len(config(root, subset=False).load(0).natural) == 3
    monkeypatch.undo()
    with pytest.raises(DataError, match="for a part of it, say subset: true"):
        config(root, subset=False).load(0)


def change(path, act):
    with h5py.File(path, "a") as file:
        act(file)


def bytes_for_text(file):
    del file["examples/00000042/tokens"]
    file["examples/00000042/tokens"] = np.zeros(3)


def nobody(file):
    del file["examples"]
    file.create_group("examples")


def silent(file):
    del file["examples/00000042/tokens"]
    file["examples/00000042"].create_dataset("tokens", (0,), dtype=h5py.string_dtype())


def not_utf8(file):
    file["examples/00000042/tokens"][0] = b"\xff"


@pytest.mark.parametrize(
    ("act", "message"),
    [
        (lambda file: file.pop("examples"), "expected 'examples' in / of the file itself"),
        (lambda file: file.pop("examples/00000042/tokens"), "expected 'tokens' in /examples/0000"),
        (bytes_for_text, "tokens is float64 of shape .*, expected a list of strings"),
        (nobody, "holds no user"),
        (silent, "user '00000042' has no sentence"),
        (not_utf8, "a text of user '00000042': 'utf-8'"),
    ],
)
def test_damaged_owners_files(root, act, message):
    change(root / "stackoverflow_train.h5", act)
    with pytest.raises(DataError, match=rf"stackoverflow_train\.h5: .*{message}|{message}"):
        config(root).prepare(quiet)


def short(file):
    del file["train/last"]
    file["train/last"] = np.zeros(5, dtype=np.int16)


def wide(file):
    del file["train/tokens"]
    file["train/tokens"] = np.zeros((6, 5), dtype=np.int64)


def falling(file):
    file["train/offsets"][1] = 5


def outside(file):
    del file["train/tokens"]
    file["train"].create_dataset("tokens", (6, 5), np.int16, external=[("/etc/hostname", 0, 60)])


@pytest.mark.parametrize(
    ("act", "message"),
    [
        (lambda file: file.pop("test"), "expected 'test' in / of the file itself"),
        (short, r"the shape of /train/last: found \(5,\), expected \(6,\); remove it"),
        (wide, "the type of /train/tokens: found int64, expected int16"),
        (falling, "/train/offsets do not rise from 0"),
        (outside, "keeps its data in another file"),
        (lambda file: file.attrs.pop("format"), "its format: found None"),
    ],
)
def test_damaged_prepared_files(ready, act, message):
    change(ready / NAME, act)
    with pytest.raises(DataError, match=message):
        config(ready).load(0)


@pytest.mark.parametrize("wrong", [8, -1, 2**15 - 1])
@pytest.mark.parametrize("column", [1, 4])
def test_a_flipped_token(ready, wrong, column):
    """The last column is no input, but a label."""

    def flip(file):
        file["train/tokens"][3, column] = wrong

    change(ready / NAME, flip)
    data = config(ready).load(0)
    data.transform(data.train.inputs[:3], torch.float32, None)
    message = rf"{NAME}: found token {wrong}, expected 0 to 7: the file is damaged; remove it"
    with pytest.raises(DataError, match=message):
        data.transform(data.train.inputs[2:4], torch.float32, None)


def test_a_flipped_last_token(ready):
    def flip(file):
        file["test/last"][1] = 9

    change(ready / NAME, flip)
    config(ready).load(0)
    with pytest.raises(DataError, match="found token 9, expected 0 to 7"):
        config(ready, predict="last").load(0)


def test_truncated_prepared_file(ready):
    os.truncate(ready / NAME, (ready / NAME).stat().st_size - 100)
    with pytest.raises(DataError, match=NAME):
        config(ready).load(0)


def test_another_vocabulary(ready):
    (ready / "stackoverflow.word_count").write_text(COUNTS.replace("cat", "dog"))
    with pytest.raises(DataError, match=r"its words are not the first 4 of .*word_count"):
        config(ready).load(0)
    (ready / "stackoverflow.word_count").unlink()
    assert len(config(ready).load(0).natural) == 3


def test_a_file_made_from_other_files(ready):
    config(ready).prepare(quiet)
    path = ready / "stackoverflow_test.h5"
    os.utime(path, (1e9, 1e9))
    with pytest.raises(DataError, match=rf"{NAME}: made from other files: remove it and prepare"):
        config(ready).prepare(quiet)
    path.unlink()  # they are not needed any more
    config(ready).prepare(quiet)


def test_the_command(root, hpcfl, refused):
    said = refused("data", "prepare", "stackoverflow", "--root", root, "vocabulary=4", "length=4")
    assert "say subset: true" in said
    keys = ["vocabulary=4", "length=4", "subset=true", "test_examples=null"]
    done = hpcfl("data", "prepare", "stackoverflow", "--root", root, *keys)
    said = "3 clients, 6 training and 3 test examples, 8 classes"
    assert done.out == [f"ready: {root / NAME}: {said}"]
    with pytest.raises(DataError) as error:
        config(root, length=3).load(0)
    assert f"--root {root} vocabulary=4 length=3 subset=true" in str(error.value)
