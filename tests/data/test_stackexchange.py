"""StackExchange from small files of posts; and the real ones, where they are."""

import gzip
import json
import sys
import tracemalloc
from pathlib import Path

import h5py
import numpy as np
import pytest

from hpcfl.data.download import quiet
from hpcfl.errors import DataError
from hpcfl.job.load import load
from tests.real_data import real

EXAMPLE = Path(__file__).parents[2] / "examples/stackexchange"
sys.path.append(str(EXAMPLE))

from stackexchange import StackExchange, sentences  # noqa: E402

COUNTS = "the 9\ncat 7\nsat 3\n. 2\n"
KEYS = {"vocabulary": 4, "length": 4}


def post(user, text, site="pets"):
    return {"site": site, "user": user, "text": text, "score": 3}


POSTS = [
    post(7, "The cat sat. A cat?\nSat"),
    post(None, "the deleted one"),
    post("7", "the", site="cats"),
    post(12, "  \n"),
    *[post(9, "cat " * k) for k in range(1, 11)],
]


def write(root, posts, name="stackexchange_posts.jsonl"):
    (root / "stackexchange_word_count.txt").write_text(COUNTS)
    text = "".join(json.dumps(one) + "\n" for one in posts)
    opener = gzip.open if name.endswith(".gz") else open
    with opener(root / name, "wt", encoding="utf-8") as file:
        file.write(text)
    return root


def config(root, **changes):
    return StackExchange(root=str(root), **{**KEYS, **changes})


@pytest.mark.parametrize("path", sorted(EXAMPLE.glob("*.yaml")), ids=lambda path: path.stem)
def test_the_jobs_read_it_and_say_how_to_prepare_it(path, tmp_path):
    data = load(str(path), [f"data.root={tmp_path}"]).job.data
    assert isinstance(data, StackExchange)
    command = "hpcfl data prepare stackexchange.StackExchange --root .* vocabulary=2000"
    with pytest.raises(DataError, match=f"not there; make it by: {command}"):
        data.load(0)


def test_sentences_by_hand():
    assert sentences("Isn't it 4.5 (or \u00e9t\u00e9_2)? Yes!  'No'\r\nOh...") == [
        ["isn't", "it", "4", ".", "5", "(", "or", "\u00e9t\u00e9", "_", "2", ")", "?"],
        ["yes", "!"],
        ["'", "no", "'"],
        ["oh", ".", ".", "."],
    ]
    assert sentences(" \n\n ") == []


@pytest.mark.parametrize("name", ["stackexchange_posts.jsonl", "stackexchange_posts.jsonl.gz"])
def test_posts_by_hand(tmp_path, name):
    """Users in the order of cats/7, pets/7, pets/9; only the last has enough posts for a test."""
    config(write(tmp_path, POSTS, name)).prepare(quiet)
    data = config(tmp_path).load(0)
    assert [len(own) for own in data.natural] == [1, 3, 9]
    assert data.train.labels[:4].tolist() == [
        [1, 7, 0, 0], [1, 2, 3, 4], [5, 2, 5, 7], [3, 7, 0, 0]
    ]  # fmt: skip
    assert len(data.test.labels) == 1
    both = [row.tolist() for row in (*data.train.labels[4:], *data.test.labels)]
    assert sorted(both) == sorted(
        [[2] * min(k, 4) + ([7] + [0] * (3 - k) if k < 4 else []) for k in range(1, 11)]
    )


@pytest.mark.parametrize(("share", "tested"), [(0.5, 5), (1.0, 9), (0.25, (2, 3))])
def test_the_share_of_the_test(tmp_path, share, tested):
    write(tmp_path, POSTS)
    config(tmp_path, test_share=share).prepare(quiet)
    data = config(tmp_path, test_share=share).load(0)
    found = 10 - len(data.natural[-1])
    assert found in np.atleast_1d(tested)
    assert [len(own) for own in data.natural][:2] == [1, 3]
    with pytest.raises(DataError, match=r"made of: found .*test_share .*, expected .*0\.9"):
        config(tmp_path, test_share=0.9).load(0)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"site": "a"}', r"line 15 is .*, expected a JSON object with a site"),
        ('{"site": "a", "user": 1.5, "text": "b"}', "line 15 is"),
        ('{"site": 1, "user": 1, "text": "b"}', "line 15 is"),
        (r'{"site": "a", "user": "\ud800", "text": "b"}', "line 15 is"),
        ("[1]", r"line 15 is '\[1\]'"),
        ("{", "line 15 is '{'"),
        ("[" * 100_000, "line 15 is"),
    ],
)
def test_a_line_that_is_no_post(tmp_path, line, message):
    with (write(tmp_path, POSTS) / "stackexchange_posts.jsonl").open("a") as file:
        file.write(line + "\n")
    with pytest.raises(DataError, match=rf"stackexchange_posts\.jsonl: {message}"):
        config(tmp_path).prepare(quiet)


def test_without_word_counts_those_of_the_posts_to_train_on(tmp_path):
    """cat at least 45 times, the 5, . 3; a and sat twice, so in the order of the alphabet."""
    write(tmp_path, [*POSTS, post(8, "\u0007 \ud800 . . the the the a")])
    (tmp_path / "stackexchange_word_count.txt").unlink()
    config(tmp_path).prepare(quiet)
    assert not (tmp_path / "stackexchange_word_count.txt").exists()
    data = config(tmp_path).load(0)
    with h5py.File(config(tmp_path).prepared) as file:
        assert file["words"][()].tolist() == [b"cat", b"the", b".", b"a"]
    # The bell and the half of a character are never words of the vocabulary.
    rows = data.train.labels[data.natural[2]]
    assert rows.tolist() == [[5, 5, 3, 7], [3, 7, 0, 0], [2, 2, 2, 4]]
    with pytest.raises(DataError, match="posts to train on hold 6 different words, but"):
        config(tmp_path, vocabulary=7).prepare(quiet)


def test_wrong_word_counts_are_told_before_posts_are_read(tmp_path):
    write(tmp_path, POSTS)
    (tmp_path / "stackexchange_word_count.txt").write_text("the 1\ncat 2\n")

    def track(items, what, total=None):
        raise AssertionError(what)

    with pytest.raises(DataError, match=r"word_count\.txt: line 2"):
        config(tmp_path).prepare(track)


@pytest.mark.parametrize("name", ["stackexchange_posts.jsonl", "stackexchange_posts.jsonl.gz"])
def test_texts_are_not_kept_in_memory(tmp_path, name):
    """Two posts each of 50 users, of 600 words each, which take 5 MB as lists of strings."""
    text = "the cat sat.\n" * 150
    write(tmp_path, [post(k % 50, text) for k in range(100)], name)
    tracemalloc.start()
    config(tmp_path).prepare(quiet)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2e6


def test_other_posts_are_not_taken_for_the_same(tmp_path):
    write(tmp_path, POSTS)
    config(tmp_path).prepare(quiet)
    config(tmp_path).prepare(quiet)
    write(tmp_path, [*POSTS, post(8, "the cat")])
    with pytest.raises(DataError, match=r"4\.h5: made from other files: remove it and"):
        config(tmp_path).prepare(quiet)
    assert len(config(tmp_path).load(0).natural) == 3
    (tmp_path / "stackexchange_posts.jsonl").unlink()
    config(tmp_path).prepare(quiet)


def test_a_truncated_file(tmp_path):
    posts = [post(k, f"{np.random.default_rng(k).bytes(90).hex()}") for k in range(300)]
    path = write(tmp_path, posts, "stackexchange_posts.jsonl.gz") / "stackexchange_posts.jsonl.gz"
    path.write_bytes(path.read_bytes()[:-5000])
    with pytest.raises(
        DataError, match=r"jsonl\.gz: damaged after line \d+: Compressed file ended"
    ):
        config(tmp_path).prepare(quiet)


def test_no_file_and_nothing_to_test_on(tmp_path):
    with pytest.raises(DataError, match=r"holds neither stackexchange_posts\.jsonl nor"):
        config(tmp_path).prepare(quiet)
    write(tmp_path, POSTS[:3])
    with pytest.raises(DataError, match="too few posts to test on"):
        config(tmp_path).prepare(quiet)


@pytest.mark.slow
def test_the_real_posts(tmp_path):
    for name in ("stackexchange_posts.jsonl.gz", "stackexchange_word_count.txt"):
        (tmp_path / name).symlink_to(real(name))
    made = StackExchange(root=str(tmp_path))
    made.prepare(quiet)
    data = made.load(0)
    assert len(data.natural) == 3190
    total = len(data.train.labels) + len(data.test.labels)
    assert 100_000 < total < 120_000
    assert 0.08 < len(data.test.labels) / total < 0.12
    labels = data.train.labels
    words = ((labels > 0) & (labels < 10_001)).sum()
    unknown = (labels == 10_001).sum()
    assert unknown < 0.05 * words
