"""Words as classes, by hand."""

import numpy as np
import pytest

from hpcfl.data.vocabulary import Vocabulary, last_tokens
from hpcfl.errors import DataError

THREE = Vocabulary(["the", "cat", "."])  # 1, 2, 3; oov 4, begin 5, end 6


def test_sentences_by_hand():
    rows = THREE.encode([["the", "cat"], ["a", "cat", ".", "the", "cat"], ["cat"] * 4, []], 4)
    assert rows.dtype == np.int16
    assert rows.tolist() == [[5, 1, 2, 6, 0], [5, 4, 2, 3, 1], [5, 2, 2, 2, 2], [5, 6, 0, 0, 0]]
    assert last_tokens(rows).tolist() == [6, 1, 2, 6]
    assert THREE.encode([], 4).shape == (0, 5)


def test_special_tokens_are_no_words():
    assert THREE.classes == 7
    assert [*THREE.scored] == [1, 2, 3]


def test_the_most_frequent_words(tmp_path):
    path = tmp_path / "count"
    path.write_text("the 9\n.\t9\n\u00e9t\u00e9 2\ncat 1\n", encoding="utf-8")
    assert Vocabulary.read(path, 3).words == ("the", ".", "\u00e9t\u00e9")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"the 9\ncat\n", "count: line 2 is 'cat', expected a word and its count"),
        (b"the 9\na cat 2\n", "line 2 is 'a cat 2'"),
        (b"the 9\ncat -1\n", "line 2 is 'cat -1'"),
        (b"the 9\nthe 9\n", "line 2: 'the' stands there twice"),
        (b"the 9\ncat 10\n", "line 2: 'cat' .* is more frequent than the word before it"),
        (b"the 9\n", "1 words, but data.vocabulary asks for 2; ask for fewer"),
        (b"the 9\n\xff 3\n", "not a readable file of word counts"),
        (None, "not a readable file of word counts"),
    ],
)
def test_a_file_of_another_kind(tmp_path, content, message):
    path = tmp_path / "count"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(DataError, match=message):
        Vocabulary.read(path, 2)
