import errno
import json
import tempfile
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hpcfl.data.download import quiet
from hpcfl.data.partition import Iid
from hpcfl.data.sources.leaf import Leaf
from hpcfl.data.sources.shakespeare import ALPHABET, encode
from hpcfl.data.split import keep_natural_clients, partition_examples
from hpcfl.errors import DataError, DiskError, JobError

RANDOM = np.random.default_rng(0)
PIXELS = RANDOM.integers(0, 256, (7, 28, 28), np.uint8)
LABELS = [0, 61, 5, 5, 9, 10, 35]
LINE = "To be, or not to be: that is the question; whether 'tis nobler in the mind to suffer"


def content(users):
    """A file of LEAF's, of users and their x and y."""
    return {
        "users": list(users),
        "num_samples": [len(y) for _, y in users.values()],
        "hierarchies": [],
        "user_data": {name: {"x": x, "y": y} for name, (x, y) in users.items()},
    }


def write(root, part, name, users):
    folder = root / part
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(json.dumps(users if "users" in users else content(users)))


def images(rows):
    return (PIXELS[rows].reshape(-1, 784) / 255).tolist(), [LABELS[row] for row in rows]


@pytest.fixture
def femnist(tmp_path):
    write(tmp_path, "train", "all_data_1_keep_0_train_9.json", {"f2_b": images([3])})
    write(
        tmp_path,
        "train",
        "all_data_0_keep_0_train_9.json",
        {"f1_z": images([0, 1]), "f0_a": images([2])},
    )
    write(
        tmp_path, "test", "all_data_0_keep_0_test_9.json", {"f0_a": images([4, 5]), "x": ([], [])}
    )
    return tmp_path


def test_femnist(femnist):
    config = Leaf(root=str(femnist))
    dataset = config.load(0)
    assert dataset.train.inputs.dtype == torch.uint8
    assert np.array_equal(dataset.train.inputs, PIXELS[:4])
    assert dataset.train.labels.tolist() == LABELS[:4]
    assert np.array_equal(dataset.test.inputs, PIXELS[4:6])
    assert dataset.test.labels.tolist() == LABELS[4:6]
    assert [rows.tolist() for rows in dataset.natural] == [[0, 1], [2], [3]]
    assert (dataset.classes, dataset.loss) == (62, "cross_entropy")
    inputs = dataset.transform(dataset.train.inputs, torch.float64, None)
    assert inputs.shape == (4, 1, 28, 28)
    assert inputs[0].flatten().tolist() == images([0])[0][0]
    assert [len(rows) for rows in partition_examples(config, dataset, 0).rows] == [2, 1, 1]
    iid = Leaf(root=str(femnist), partition=Iid(), clients=2)
    assert [len(rows) for rows in partition_examples(iid, dataset, 0).rows] == [2, 2]


def test_flat_images(femnist):
    dataset = Leaf(root=str(femnist), flat=True).load(0)
    assert dataset.transform(dataset.train.inputs, torch.float32, None).shape == (4, 784)


def test_shakespeare(tmp_path):
    windows = [LINE[k : k + 80] for k in range(3)]
    strange = "  \u20ac\ud800" + LINE[:76]
    write(tmp_path, "train", "a.json", {"HAMLET": (windows, list(LINE[80:83]))})
    write(tmp_path, "test", "a.json", {"HAMLET": ([strange], ["~"])})
    dataset = Leaf(root=str(tmp_path), examples="text").load(0)
    assert dataset.train.inputs.dtype == torch.uint8
    assert dataset.train.inputs.tolist() == [encode(w.encode()).tolist() for w in windows]
    assert dataset.train.labels.tolist() == encode(LINE[80:83].encode()).tolist()
    # Runs of spaces stay; what is not in the alphabet is the last class.
    assert dataset.test.inputs[0, :5].tolist() == [1, 1, 79, 79, ALPHABET.index("T")]
    assert dataset.test.labels.tolist() == [79]
    assert dataset.classes == 80
    assert dataset.transform(dataset.train.inputs, torch.float32, None).dtype == torch.int64


def test_vectors(tmp_path):
    write(tmp_path, "train", "a.json", {"a": ([[0.5, -2], [1, 3]], [0, 4]), "b": ([[7, 8]], [1])})
    write(tmp_path, "test", "a.json", {"a": ([[1.5, 1e-9]], [2])})
    dataset = Leaf(root=str(tmp_path), examples="vectors").load(0)
    assert torch.equal(dataset.train.inputs, torch.tensor([[0.5, -2], [1, 3], [7, 8]]))
    assert dataset.test.inputs.tolist() == [[1.5, np.float32(1e-9)]]
    assert dataset.classes == 5
    assert Leaf(root=str(tmp_path), examples="vectors", classes=9).load(0).classes == 9


def test_labels_that_are_written_as_floats(tmp_path):
    """As the published files of LEAF's and FedProx's Synthetic have them."""
    for part in ("train", "test"):
        write(tmp_path, part, "a.json", {"u": ([[0.5], [1.5]], [4.0, 0.0])})
    dataset = Leaf(root=str(tmp_path), examples="vectors").load(0)
    assert (dataset.train.labels.tolist(), dataset.classes) == ([4, 0], 5)
    assert dataset.train.labels.dtype == torch.int64


def test_vectors_whose_labels_count_from_one(tmp_path):
    write(tmp_path, "train", "a.json", {"a": ([[0.5, -2], [1, 3]], [1, 2])})
    write(tmp_path, "test", "a.json", {"a": ([[1.5, 2]], [2])})
    said = r"y runs from 1 to 2, so no .* \(subtract 1 from every y in the JSON\), or .*classes: 3"
    with pytest.raises(DataError, match=said):
        Leaf(root=str(tmp_path), examples="vectors").load(0)
    dataset = Leaf(root=str(tmp_path), examples="vectors", classes=3).load(0)
    assert dataset.notes == ("data: 1 of 3 classes have no training example: 0",)


def same(first, second):
    return (
        all(map(torch.equal, (*first.train, *first.test), (*second.train, *second.test)))
        and all(map(np.array_equal, first.natural, second.natural))
        and first.classes == second.classes
    )


def test_the_tests_of_drawn_users(femnist, hpcfl):
    """Of f1_z, f0_a and f2_b only f0_a has test examples, two; from the JSON and prepared."""
    config = Leaf(root=str(femnist), natural_clients=2)
    for _ in range(2):
        whole = config.load(0)
        assert [rows.tolist() for rows in whole.natural_tests] == [[], [0, 1], []]
        tested = set()
        for seed in range(8):
            try:
                drawn = keep_natural_clients(config, whole, seed)
            except JobError as error:
                assert "none of the 2 drawn clients has a test example" in str(error)
                continue
            tested.add(tuple(map(len, drawn.natural_tests)))
            assert drawn.test.labels.tolist() == LABELS[4:6]
        assert tested == {(0, 2), (2, 0)}
        assert hpcfl("data", "prepare", "leaf", "--root", femnist).code == 0


def test_a_prepared_file_of_an_earlier_version(femnist, hpcfl):
    assert hpcfl("data", "prepare", "leaf", "--root", femnist).code == 0
    path = femnist / "leaf_images.npz"
    with np.load(path) as packed:
        old = {key: packed[key] for key in packed if not key.startswith("test_")}
    np.savez(path, **old)
    with pytest.raises(DataError, match="does not say whose the test examples are; remove it"):
        Leaf(root=str(femnist)).load(0)
    np.savez(path, **old, test_sizes=np.array([2]), test_clients=np.array([3]))
    with pytest.raises(DataError, match="damaged; remove it and prepare it again"):
        Leaf(root=str(femnist)).load(0)


def test_what_is_prepared_is_read_without_the_json(femnist, hpcfl):
    before = Leaf(root=str(femnist)).load(0)
    for _ in range(2):
        done = hpcfl("data", "prepare", "leaf", "--root", femnist)
        assert (done.code, done.err) == (0, [])
        said = "3 clients, 4 training and 2 test examples, 62 classes"
        assert done.out == [f"ready: {femnist}/leaf_images.npz: {said}"]
        for path in femnist.rglob("*.json"):
            path.unlink()
    assert not list(femnist.glob("*.part"))
    assert same(Leaf(root=str(femnist)).load(0), before)
    with np.load(femnist / "leaf_images.npz") as packed:
        assert packed["users"].tolist() == ["f1_z", "f0_a", "f2_b"]


def test_other_json_is_not_taken_for_the_same(femnist, refused):
    config = Leaf(root=str(femnist))
    config.prepare(quiet)
    write(femnist, "train", "all_data_2_keep_0_train_9.json", {"f3_c": images([6])})
    said = refused("data", "prepare", "leaf", "--root", femnist)
    assert said.endswith("leaf_images.npz: made from other files: remove it and prepare again")
    assert len(config.load(0).natural) == 3
    (femnist / "leaf_images.npz").unlink()
    config.prepare(quiet)
    assert len(config.load(0).natural) == 4


@pytest.mark.parametrize("name", ["leaf_images.npz", "leaf_images.npz.part"])
def test_a_folder_in_its_place(femnist, refused, name):
    (femnist / name).mkdir()
    assert "leaf_images.npz: " in refused("data", "prepare", "leaf", "--root", femnist)


def test_there_is_no_room_for_it(femnist, monkeypatch):
    def full(*arrays, **named):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(np, "savez", full)
    with pytest.raises(DiskError, match=r"images\.npz: cannot be made: No space left"):
        Leaf(root=str(femnist)).prepare(quiet)
    assert not (femnist / "leaf_images.npz").exists()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sizes": np.array([2, 1])}, "npz: damaged; remove it and prepare it again"),
        ({"x_test": np.zeros((2, 27, 28), np.uint8)}, "npz: damaged"),
        ({"x_train": np.zeros((), np.uint8)}, "npz: damaged"),
        ({"sizes": np.array([5, -1])}, "npz: damaged"),
        ({"sizes": np.array(4)}, "npz: damaged"),
        ({"y_test": np.array([0])}, "npz: damaged"),
        ({"y_test": np.array([0.5, 1])}, "npz: damaged"),
        ({"y_train": np.array([0, 61, 62, 5])}, "y_train runs from 0 to 62, expected 0 to 61"),
    ],
)
def test_a_prepared_file_that_was_changed(femnist, changes, message):
    config = Leaf(root=str(femnist))
    path = config.prepare(quiet)
    with np.load(path) as packed:
        arrays = dict(packed)
    np.savez(path, **{**arrays, **changes})
    with pytest.raises(DataError, match=message):
        config.load(0)


def test_a_run_of_it(femnist, tmp_path, hpcfl, job):
    settings = f"data={{kind: leaf, root: {femnist}, flat: true}}"
    done = hpcfl("run", job, settings, "--out", tmp_path / "run")
    assert done.code == 0, done.err


GOOD = {"a": images([0, 1]), "b": images([2])}
X, Y = images([0, 1])


def changed(**keys):
    return {**content(GOOD), **keys}


def own(x, y, count=None):
    made = content({"a": (x, y)})
    return {**made, "num_samples": [len(y) if count is None else count]}


@pytest.mark.parametrize(
    ("file", "message"),
    [
        ([], "no list 'users'; expected users, num_samples, user_data"),
        ({"users": ["a"], "num_samples": [1]}, "no dict 'user_data'"),
        (changed(users=["a"]), "1 users, 2 num_samples, 2 in user_data"),
        (changed(users=["a", "c"]), "user 'c': user_data has no lists x and y"),
        (changed(users=["a", ["b"]]), r"user \['b'\]: user_data has no lists"),
        (changed(num_samples=[2, 2]), "user 'b': num_samples is 2, but y holds 1 labels"),
        (changed(user_data={"a": {"x": X}, "b": {"x": X, "y": Y}}), "user 'a': .* no lists x and"),
        (own(X, Y[:1]), "user 'a': 2 examples in x, but 1 labels in y"),
        (own([], []), "user 'a' has no example"),
        (changed(users=[], num_samples=[], user_data={}), "train: no user in its 1 files"),
        (own([row[:783] for row in X], Y), "user 'a': x holds 783 numbers a row, expected 784"),
        (own([X[0], X[1][:5]], Y), "user 'a': row 1 of x holds 5 numbers, row 0 "),
        (own([X[0], [2.0, *X[1][1:]]], Y), r"user 'a': x holds 2.0 in row 1, .* vectors"),
        (own([X[0], [1e308, *X[1][1:]]], Y), r"holds 1e\+308 in row 1"),
        (own(["1.jpg", "2.jpg"], Y), r"x\[0\] is '1.jpg', expected .* other text is not supported"),
        (own([["a b"], ["c"]], Y), r"x\[0\] is \['a b'\], expected a list of numbers"),
        (own(X, [3, 62]), "user 'a': the label of row 1 is 62, expected 0 to 61"),
        (own(X, [3, -1]), "user 'a': the label of row 1 is -1, expected 0 to 61"),
        (own(X, [3, 1.5]), "the label of row 1 is 1.5, expected an integer"),
        (own(X, [float("inf"), 1]), "the label of row 0 is inf, expected an integer"),
        (own(X, [True, 1]), "the label of row 0 is True, expected an integer"),
        (own(X, ["a", 1]), "the label of row 0 is 'a', expected an integer"),
    ],
)
def test_wrong_files(tmp_path, file, message):
    write(tmp_path, "test", "a.json", GOOD)
    (tmp_path / "train").mkdir()
    (tmp_path / "train/a.json").write_text(json.dumps(file))
    with pytest.raises(DataError, match=message) as caught:
        Leaf(root=str(tmp_path)).load(0)
    assert str(tmp_path / "train") in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "not a readable JSON file"),
        ('{"users": [', "not a readable JSON file"),
        ("[" * 100_000, "not a readable JSON file"),
        ('{"users": [], "users": []}', "the key 'users' stands twice"),
        ('{"users": [NaN]}', "no list 'num_samples'"),
        ("\udcff", "can't decode byte"),
    ],
)
def test_what_is_no_json(femnist, text, message):
    (femnist / "train/b.json").write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(DataError, match=message) as caught:
        Leaf(root=str(femnist)).load(0)
    assert "train/b.json" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_texts_of_another_length(tmp_path):
    for part in ("train", "test"):
        write(tmp_path, part, "a.json", {"a": ([LINE[:80], LINE[:79]], ["a", "b"])})
    with pytest.raises(DataError, match=r"user 'a': x\[1\] is .*, expected a text of 80 char"):
        Leaf(root=str(tmp_path), examples="text").load(0)
    write(tmp_path, "train", "a.json", {"a": ([LINE[:80]], [4])})
    with pytest.raises(DataError, match=r"user 'a': y\[0\] is 4, expected a text of 1 char"):
        Leaf(root=str(tmp_path), examples="text").load(0)


def test_vectors_of_another_length_and_too_large(tmp_path):
    write(tmp_path, "test", "a.json", {"a": ([[1.0, 2]], [0])})
    write(tmp_path, "train", "a.json", {"a": ([[1.0]], [0])})
    with pytest.raises(
        DataError, match=r"test/a.json: user 'a': x holds 2 numbers a row, others 1"
    ):
        Leaf(root=str(tmp_path), examples="vectors").load(0)
    write(tmp_path, "train", "a.json", {"a": ([[1.0, 2], [2.0, 1e39]], [0, 0])})
    with pytest.raises(DataError, match="user 'a': x holds a number in row 1 that is not finite"):
        Leaf(root=str(tmp_path), examples="vectors").load(0)


def test_a_user_in_two_files_and_no_files(femnist):
    write(femnist, "train", "b.json", {"f0_a": images([6])})
    with pytest.raises(DataError, match=r"train/b\.json: user 'f0_a' is in another file too"):
        Leaf(root=str(femnist)).load(0)
    (femnist / "train/b.json").unlink()
    write(femnist, "test", "all_data_0_keep_0_test_9.json", {"a": ([], [])})
    with pytest.raises(DataError, match="test: no user has an example"):
        Leaf(root=str(femnist)).load(0)
    with pytest.raises(DataError, match=r"none/train: holds no \.json file"):
        Leaf(root=str(femnist / "none")).load(0)


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ("examples: text, classes: 5", "classes is 5, but text has 80 characters"),
        ("examples: vectors, flat: true", "flat is for images, but examples is vectors"),
        ("examples: tweets", "found 'tweets', expected 'images', 'text' or 'vectors'"),
    ],
)
def test_settings_that_do_not_go_together(keys, said, job, refused):
    assert said in refused("check", job, f"data={{kind: leaf, {keys}}}")


JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner),
    max_leaves=5,
)
SMALL = content({"a": ([[0.0, 1.0], [0.2, 0.4]], [0, 1]), "b": ([[1.0, 1.0]], [2])})


def places(tree, at=()):
    """The paths to every node."""
    yield at
    if isinstance(tree, dict | list):
        keys = tree if isinstance(tree, dict) else range(len(tree))
        for key in keys:
            yield from places(tree[key], (*at, key))


def put(tree, at, value):
    """A copy with another value there."""
    if not at:
        return value
    made = dict(tree) if isinstance(tree, dict) else list(tree)
    made[at[0]] = put(tree[at[0]], at[1:], value)
    return made


def survives(text):
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        write(root, "test", "a.json", SMALL)
        (root / "train").mkdir()
        (root / "train/a.json").write_bytes(text)
        for examples in ("vectors", "images", "text"):
            try:
                Leaf(root=str(root), examples=examples).load(0)
            except DataError as error:
                assert "\n" not in str(error)


@given(st.sampled_from(list(places(SMALL))), JUNK)
def test_any_value_anywhere_ends_well(at, value):
    survives(json.dumps(put(SMALL, at, value)).encode())


@given(st.data())
def test_any_bytes_anywhere_end_well(data):
    text = json.dumps(SMALL).encode()
    begin = data.draw(st.integers(0, len(text)))
    end = data.draw(st.integers(begin, min(begin + 8, len(text))))
    survives(text[:begin] + data.draw(st.binary(max_size=4)) + text[end:])


def test_faults_that_only_python_writes_name_user_and_row(tmp_path):
    for said, y, x in [
        ("'x' stands twice", "[0]", '[[1.0]], "x": [[1.0]]'),
        ("the label of row 1 is nan", "[0, NaN]", "[[1.0], [2.0]]"),
        ("x holds a number in row 1 that is not finite", "[0, 1]", "[[1.0], [Infinity]]"),
    ]:
        user = f'{{"y": {y}, "x": {x}}}'
        text = (
            f'{{"users": ["u"], "num_samples": [{y.count(",") + 1}], "user_data": {{"u": {user}}}}}'
        )
        (tmp_path / "train").mkdir(exist_ok=True)
        (tmp_path / "train/a.json").write_text(text)
        with pytest.raises(DataError, match=rf"a\.json: user 'u': .*{said}"):
            Leaf(root=str(tmp_path), examples="vectors").load(0)
