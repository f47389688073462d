import zipfile

import numpy as np
import pytest
import torch

from hpcfl.data.sources.arrays import Arrays
from hpcfl.errors import DataError, JobError

X = np.arange(12).reshape(6, 2)
Y = np.array([0, 1, 2, 0, 1, 2])
TESTED = {"x": X, "y": Y, "x_test": X, "y_test": Y}
NO_TEST = "data: there are no test examples (x_test, y_test), so nothing is scored on them"


def load(tmp_path, config=None, **arrays):
    path = tmp_path / "data.npz"
    np.savez(path, **arrays)
    return Arrays(path=str(path), **(config or {})).load(0)


@pytest.mark.parametrize("kind", ["u1", "u2", "<i4", ">i8", "f2", "<f4", ">f8", "?"])
def test_inputs_are_cast_and_never_rescaled(tmp_path, kind):
    x = X.astype(kind)
    dataset = load(tmp_path, x=x, y=Y)
    assert torch.equal(
        dataset.transform(dataset.train.inputs, torch.float64, None),
        torch.from_numpy(x.astype(np.float64)),
    )


@pytest.mark.parametrize("kind", ["u1", "u8", "i4", ">i2"])
def test_integers_are_classes(tmp_path, kind):
    dataset = load(tmp_path, x=X, y=Y.astype(kind))
    assert (dataset.classes, dataset.loss) == (3, "cross_entropy")
    assert dataset.train.labels.dtype == torch.int64
    assert dataset.train.labels.tolist() == Y.tolist()
    assert dataset.test is None
    assert dataset.natural is None
    assert load(tmp_path, {"classes": 7}, x=X, y=Y).classes == 7


def test_floats_are_targets(tmp_path):
    dataset = load(tmp_path, x=X, y=Y / 3, x_test=X[:2], y_test=Y[:2] / 3)
    assert (dataset.classes, dataset.loss) == (None, "squared")
    assert dataset.train.labels.shape == (6, 1)
    assert dataset.train.labels.dtype == torch.float64
    assert len(dataset.test.labels) == 2
    assert dataset.notes == ()


def test_whole_floats_are_perhaps_classes(tmp_path):
    dataset = load(tmp_path, x=X, y=Y.astype(np.float32))
    assert dataset.loss == "squared"
    assert dataset.notes == (
        "data: y: all labels are whole numbers, but floats, so they are the targets of a "
        "regression; if they are classes, say data.label_type: classes",
        NO_TEST,
    )


def test_the_job_says_what_labels_are(tmp_path):
    tested = {"x_test": X, "y_test": Y}
    found = load(tmp_path, {"label_type": "numbers"}, x=X, y=Y, **tested)
    assert (found.classes, found.loss, found.notes) == (None, "squared", ())
    for part in (found.train, found.test):
        assert part.labels.tolist() == [[float(y)] for y in Y]
    tested["y_test"] = Y.astype(np.float32)
    found = load(tmp_path, {"label_type": "classes"}, x=X, y=Y.astype(float), **tested)
    assert (found.classes, found.loss, found.notes) == (3, "cross_entropy", ())
    for part in (found.train, found.test):
        assert part.labels.tolist() == Y.tolist()
    with pytest.raises(DataError, match=r"y of row 1 is 0.5, expected an integer; for a regres"):
        load(tmp_path, {"label_type": "classes"}, x=X, y=Y / 2)
    with pytest.raises(JobError, match=r"data\.classes: .* float targets"):
        load(tmp_path, {"label_type": "numbers", "classes": 3}, x=X, y=Y)


WARNING = (
    "warning: data: y: {} classes for 6 labels; if these are numbers to predict (a regression), "
    "say data.label_type: numbers, else data.label_type: classes"
)


def test_a_class_for_more_than_every_second_label_is_a_warning(tmp_path):
    ages = np.array([0, 18, 21, 18, 19, 3])
    assert WARNING.format(22) in load(tmp_path, x=X, y=ages).notes
    for keys in ({"classes": 22}, {"label_type": "classes"}, {"label_type": "numbers"}):
        notes = load(tmp_path, keys, x=X, y=ages).notes
        assert not [note for note in notes if note.startswith("warning")]


@pytest.mark.parametrize("tests", [{}, {"x_test": X[:0], "y_test": Y[:0]}])
def test_data_without_tests_say_so(tmp_path, tests):
    assert load(tmp_path, x=X, y=Y, **tests).notes == (NO_TEST,)


GREY = np.arange(6 * 8 * 8, dtype=np.uint8).reshape(6, 8, 8)
AS_THEY_ARE = (
    "data: x holds integers up to 255, which the model gets as they are; if they are grey levels, "
    "store them as floats, x / 255"
)
LAST = (
    "data: x has examples of shape (8, 8, 3); if these are images with the channels last, store "
    "np.moveaxis(x, -1, 1): layers of torch take the channels first"
)


@pytest.mark.parametrize(
    ("x", "notes"),
    [
        (GREY, [AS_THEY_ARE]),
        (np.stack([GREY] * 3, axis=-1), [AS_THEY_ARE, LAST]),
        (np.stack([GREY] * 3, axis=-1) / 255, [LAST]),
        (np.stack([GREY] * 3, axis=1) / 255, []),
        (GREY.astype(np.int64), []),  # perhaps of a table
        (GREY // 2, []),
        (np.zeros((6, 3, 5, 3)), []),
    ],
)
def test_inputs_that_look_like_images_as_files_have_them(tmp_path, x, notes):
    assert load(tmp_path, x=x, y=Y, x_test=x, y_test=Y).notes == tuple(notes)


def test_clients_own_their_rows(tmp_path):
    dataset = load(tmp_path, x=X, y=Y, client=np.array([1, 0, 2, 1, 1, 0], np.uint8))
    assert [list(rows) for rows in dataset.natural] == [[1, 5], [0, 3, 4], [2]]
    floats = load(tmp_path, x=X, y=Y, client=np.array([1.0, 0, 2, 1, 1, 0]))
    assert [list(rows) for rows in floats.natural] == [[1, 5], [0, 3, 4], [2]]
    with pytest.raises(JobError, match=r"data\.clients: not allowed"):
        load(tmp_path, {"clients": 2}, x=X, y=Y, client=Y)


def test_clients_with_tests_of_their_own(tmp_path):
    found = load(tmp_path, **TESTED, client=Y, client_test=np.array([2, 0, -1, 2, -1, 0]))
    assert [rows.tolist() for rows in found.natural_tests] == [[1, 5], [], [0, 3]]
    assert load(tmp_path, **TESTED, client=Y).natural_tests is None


SEVERAL = np.array([[0, 2], [1, 0], [2, 2], [0, 1], [1, 1], [0, 0]])


@pytest.mark.parametrize(
    ("y", "config", "found"),
    [
        (SEVERAL, {}, ("tokens", 3, None, SEVERAL)),
        (SEVERAL + 4, {}, ("tokens", 7, None, SEVERAL + 4)),
        (SEVERAL[:, :, None], {"classes": 9}, ("tokens", 9, None, SEVERAL[:, :, None])),
        (SEVERAL, {"padding": 2}, ("tokens", 2, 2, SEVERAL)),
        (SEVERAL - 1, {"padding": -1}, ("tokens", 2, -1, SEVERAL - 1)),
        (SEVERAL.astype("u1"), {"padding": 0}, ("tokens", 3, 0, SEVERAL)),
        (SEVERAL / 1, {"label_type": "classes"}, ("tokens", 3, None, SEVERAL)),
        (SEVERAL / 2, {}, ("squared", None, None, SEVERAL / 2)),
        (SEVERAL, {"label_type": "numbers"}, ("squared", None, None, SEVERAL / 1)),
        (SEVERAL > 0, {}, ("bits", None, None, SEVERAL > 0)),
        (SEVERAL > 0, {"label_type": "classes"}, ("tokens", 2, None, SEVERAL > 0)),
        (SEVERAL > 0, {"label_type": "numbers"}, ("squared", None, None, 1.0 * (SEVERAL > 0))),
        (SEVERAL // 2, {"label_type": "bits"}, ("bits", None, None, SEVERAL > 1)),
        (Y // 2, {"label_type": "bits"}, ("bits", None, None, Y[:, None] > 1)),
        (Y > 0, {}, ("cross_entropy", 2, None, Y > 0)),
    ],
)
def test_labels_of_any_shape(tmp_path, y, config, found):
    dataset = load(tmp_path, config, x=X, y=y, x_test=X[:2], y_test=y[:2])
    labels = found[-1]
    assert (dataset.loss, dataset.classes, dataset.padding) == found[:-1]
    assert np.array_equal(dataset.train.labels, labels)
    assert np.array_equal(dataset.test.labels, labels[:2])
    assert (dataset.train.labels.dtype == torch.bool) == (dataset.loss == "bits")


@pytest.mark.parametrize(
    ("kind", "padding", "stored"),
    [
        ("u1", -100, torch.int16),
        ("u1", None, torch.int16),
        ("i2", 0, torch.int16),
        ("u2", -100, torch.int32),
        ("i2", 40_000, torch.int32),
        ("u8", -1, torch.int64),
    ],
)
def test_tokens_take_the_memory_that_they_need(tmp_path, kind, padding, stored):
    """And are of a signed type that holds the padding, so that comparisons do not wrap around."""
    config = {"classes": 50_000, "padding": padding}
    assert load(tmp_path, config, x=X, y=SEVERAL.astype(kind)).train.labels.dtype == stored


@pytest.mark.parametrize(
    ("y", "config", "message"),
    [
        (SEVERAL - 1, {}, r"y runs from -1 to 1 .* 0 to 1; if -1 is padding, say data.padding: -1"),
        (SEVERAL, {"padding": 9}, "no label of y is 9, and it is no class .0 to 2.; expected the"),
        (SEVERAL / 2, {"label_type": "classes"}, "y of row 1 is 0.5, expected an integer; for a"),
        (SEVERAL, {"label_type": "bits"}, "y of row 0 holds 2, expected bits, 0 or 1"),
        (SEVERAL > 0, {"classes": 2}, "data.classes: .* has bits, which are no classes"),
        (SEVERAL > 0, {"padding": 0}, "padding is of several classes an example, and y is bool of"),
    ],
)
def test_wrong_labels_of_several(tmp_path, y, config, message):
    with pytest.raises((DataError, JobError), match=message) as caught:
        load(tmp_path, config, x=X, y=y)
    assert "\n" not in str(caught.value)


def test_classes_of_two_are_perhaps_bits(tmp_path):
    (note, _) = load(tmp_path, x=X, y=SEVERAL // 2).notes
    assert note == (
        "data: y: 2 classes of two an example; if they are bits, which the model answers by 2 "
        "numbers, say data.label_type: bits, else data.label_type: classes"
    )
    (note, _) = load(tmp_path, x=X, y=SEVERAL // 2 / 1).notes
    assert note.endswith("if they are classes, say data.label_type: classes, or bits")
    (note, _) = load(tmp_path, {"padding": -1}, x=X, y=SEVERAL).notes
    assert note == "data.padding: -1: no label of y is -1, so every label counts"


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"x": X}, "found x, expected an array 'y'"),
        ({"x": X, "y": Y[:4]}, r"x has 6 rows but y has shape \(4,\)"),
        ({"x": X, "y": X[:4]}, r"y has shape \(4, 2\), expected \(6, 2\)"),
        ({"x": X, "y": X[:, :0]}, r"y has the shape \(6, 0\): no label an example"),
        ({**TESTED, "y_test": X}, r"y_test holds labels of shape \(2,\), y of shape \(\)"),
        ({"x": X[:0], "y": Y[:0]}, "x has no example"),
        ({"x": np.array(3), "y": Y}, "x is int64 of shape"),
        ({"x": X.astype(complex), "y": Y}, "x is complex128"),
        ({"x": X.astype(str), "y": Y}, "x is <U"),
        ({"x": X / np.array([1.0, np.nan]), "y": Y}, "x is not finite in row 0"),
        ({"x": X, "y": Y + np.array([0, 0, 0, np.inf, 0, 0])}, "y is not finite in row 3"),
        ({"x": X, "y": Y - 1}, r"y runs from -1 to 1 .*, expected integers from 0 to 1$"),
        ({"x": X, "y": Y, "x_test": X}, "x_test and y_test go together"),
        ({"x": X, "y": Y, "x_test": X, "y_test": Y + 1}, "y_test runs from 1 to 3 .* 0 to 2, as y"),
        ({"x": X, "y": Y, "x_test": X, "y_test": Y / 2}, "y_test runs .* expected integers"),
        ({"x": X, "y": Y, "x_test": X[:, :1], "y_test": Y}, r"x_test holds examples of shape \(1"),
        ({"x": X, "y": Y, "clients": Y}, "holds an array 'clients', .* expected 'client'"),
        ({"x": X, "y": Y, "X_test": X}, "holds an array 'X_test', .* expected 'x_test'"),
        ({"x": X, "y": Y, "test_x": X}, "holds an array 'test_x', .* expected 'x_test'"),
        ({"x": X, "y": Y, "client_ids": Y}, "holds an array 'client_ids', .* expected 'client'"),
        ({"x": X, "y": Y, "client": Y[:3]}, "client is int64 of shape"),
        ({"x": X, "y": Y, "client": Y / 2}, "client of row 1 is 0.5, expected an integer"),
        ({"x": X, "y": Y, "client": Y - 1}, "client holds -1"),
        ({"x": X, "y": Y, "client": Y * 2}, "no example is of client 1, exp"),
        ({"x": X, "y": Y, "client": Y * 10**9}, "client holds 2000000000"),
        ({**TESTED, "client": Y, "client_test": Y[:3]}, "client_test is int64 of shape"),
        (
            {**TESTED, "client": Y, "client_test": Y + 1},
            "client_test holds 1 to 3, expected",
        ),
        (
            {**TESTED, "client": Y, "client_test": Y - 2},
            "client_test holds -2 to 0, expected",
        ),
        (
            {**TESTED, "client": Y, "client_test": Y / 2},
            "client_test of row 1 is 0.5, exp",
        ),
        (
            {**TESTED, "client_test": Y},
            "client_test says whose .*; expected client, x_t",
        ),
        ({"x": X, "y": Y, "client": Y, "client_test": Y}, "client_test says whose"),
    ],
)
def test_wrong_arrays(tmp_path, arrays, message):
    with pytest.raises(DataError, match=message) as caught:
        load(tmp_path, **arrays)
    assert "data.npz" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_other_arrays_are_left_alone(tmp_path):
    found = load(tmp_path, x=X, y=Y, client=Y, clients=Y, names=Y, x_train=X)
    assert len(found.train.labels) == len(Y)


ONE = "so no example is of class 0, the first one; let classes count from 0"


def test_labels_that_count_from_one_are_refused(tmp_path):
    """1 to 3 would silently make a class more; whoever means that says so."""
    with pytest.raises(DataError) as caught:
        load(tmp_path, x=X, y=Y + 1)
    assert str(caught.value) == (
        f"{tmp_path}/data.npz: y runs from 1 to 3, {ONE} (in numpy y - 1), or say data.classes: 4 "
        "if class 0 is meant to have no example"
    )
    with pytest.raises(DataError, match=r"y runs from 5 to 7, .* \(in numpy y - 5, y_test - 5\)"):
        load(tmp_path, x=X, y=Y + 5, x_test=X, y_test=Y + 5)
    dataset = load(tmp_path, {"classes": 4}, x=X, y=Y + 1)
    assert dataset.classes == 4
    assert dataset.notes == ("data: 1 of 4 classes have no training example: 0", NO_TEST)
    # The first class has examples to test on.
    dataset = load(tmp_path, x=X, y=Y + 1, x_test=X, y_test=Y)
    assert dataset.classes == 4
    missing = "data: 1 of 4 classes have no training example: 0"
    assert dataset.notes == (WARNING.format(4), missing)


def test_classes_without_an_example_are_told(tmp_path):
    assert load(tmp_path, x=X, y=Y).notes == (NO_TEST,)
    assert load(tmp_path, x=X, y=Y / 2).notes == (NO_TEST,)
    assert load(tmp_path, x=X, y=Y * 2).notes == (
        WARNING.format(5),
        "data: 2 of 5 classes have no training example: 1, 3",
        NO_TEST,
    )
    assert load(tmp_path, {"classes": 10**9}, x=X, y=Y).notes == (
        "data: 999999997 of 1000000000 classes have no training example: 3, 4, 5, 6, 7, ...",
        NO_TEST,
    )


def test_no_label_at_all(tmp_path):
    with pytest.raises(DataError, match=r"x has 6 rows but y has shape \(0,\)"):
        load(tmp_path, x=X, y=Y[:0])


def test_classes_too_few_or_of_targets(tmp_path):
    with pytest.raises(DataError, match=r"y runs from 0 to 2 .* expected integers from 0 to 1"):
        load(tmp_path, {"classes": 2}, x=X, y=Y)
    with pytest.raises(JobError, match=r"data\.classes: .* float targets"):
        load(tmp_path, {"classes": 2}, x=X, y=Y / 2)


def test_broken_files(tmp_path):
    path = tmp_path / "data.npz"
    with pytest.raises(DataError, match="there is no such file"):
        Arrays(path=str(path)).load(0)
    np.savez(path, x=X, y=Y)
    whole = path.read_bytes()
    for broken in (b"", b"PK\x03\x04", whole[:100], whole[:-30], whole[:200] + b"!" + whole[201:]):
        path.write_bytes(broken)
        with pytest.raises(DataError, match=r"data\.npz") as caught:
            Arrays(path=str(path)).load(0)
        assert "\n" not in str(caught.value)
    with path.open("wb") as file:
        np.save(file, X)
    with pytest.raises(DataError, match="found a single array, expected an"):
        Arrays(path=str(path)).load(0)


def test_an_archive_of_something_else(tmp_path):
    with zipfile.ZipFile(tmp_path / "data.npz", "w") as archive:
        archive.writestr("x", "text")
        archive.writestr("y", "text")
    with pytest.raises(DataError, match="a member of the archive is no array"):
        Arrays(path=str(tmp_path / "data.npz")).load(0)


def test_nothing_is_unpickled(tmp_path):
    objects = np.array([{}, {}], dtype=object)
    np.savez(tmp_path / "data.npz", x=objects, y=Y)
    with pytest.raises(DataError, match=r"of another kind \(.*\), or holds Python objects"):
        Arrays(path=str(tmp_path / "data.npz")).load(0)
