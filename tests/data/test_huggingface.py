import io
import os
import sys

import numpy as np
import pytest
import torch

from hpcfl.data.encoded_images import pixels
from hpcfl.data.sources.huggingface import Huggingface
from hpcfl.errors import DataError, JobError

datasets = pytest.importorskip("datasets", reason="datasets is absent")
PIL = pytest.importorskip("PIL.Image", reason="pillow is absent")
pyarrow = pytest.importorskip("pyarrow", reason="pyarrow is absent")
pytest.importorskip("pyarrow.parquet")

RANDOM = np.random.default_rng(0)
COLOUR = RANDOM.integers(0, 256, (6, 5, 4, 3), np.uint8)
WRITERS = ["f2", "f0", "f2", "f1", "f0", "f2"]


INTEGER, TEXT = datasets.Value("int64"), datasets.Value("string")
NUMBERS = datasets.List(datasets.Value("float64"))


@pytest.fixture(autouse=True)
def no_bars():
    datasets.disable_progress_bars()


def made(images=COLOUR, **columns):
    """A small data set of images and labels; keywords replace or add columns."""
    label = datasets.ClassLabel(names=["a", "b", "c"])
    given = {
        "image": ([PIL.fromarray(image) for image in images], datasets.Image()),
        "label": (np.arange(len(images)) % 2, label),
        **columns,
    }
    return datasets.Dataset.from_dict(
        {name: list(values) for name, (values, _) in given.items()},
        features=datasets.Features({name: kind for name, (_, kind) in given.items()}),
    )


WRITER = {"writer": (WRITERS, datasets.Value("string"))}


def load(path, **keys):
    return Huggingface(path=str(path), **keys).load(0)


def save_dict(path):
    datasets.DatasetDict(train=made(**WRITER), test=made(COLOUR[:2])).save_to_disk(path)


def save_parquet(path):
    (path / "data").mkdir(parents=True)
    whole = made(**WRITER)
    for k, rows in enumerate((range(4), range(4, 6))):
        whole.select(rows).to_parquet(path / f"data/train-0000{k}-of-00002.parquet")
    made(COLOUR[:2]).to_parquet(path / "data/test-00000-of-00001.parquet")


@pytest.mark.parametrize("save", [save_dict, save_parquet])
def test_images_of_clients(tmp_path, save):
    save(tmp_path / "set")
    dataset = load(tmp_path / "set", client="writer")
    assert dataset.train.inputs.dtype == torch.uint8
    assert np.array_equal(dataset.train.inputs, COLOUR)
    assert dataset.train.labels.tolist() == [0, 1, 0, 1, 0, 1]
    assert np.array_equal(dataset.test.inputs, COLOUR[:2])
    assert [rows.tolist() for rows in dataset.natural] == [[1, 4], [3], [0, 2, 5]]
    assert (dataset.classes, dataset.loss) == (3, "cross_entropy")
    inputs = dataset.transform(dataset.train.inputs, torch.float64, None)
    assert np.array_equal(inputs, COLOUR.transpose(0, 3, 1, 2) / 255)


@pytest.mark.parametrize("parquet", [False, True])
def test_one_split_of_grey_images(tmp_path, parquet):
    grey = made(COLOUR[..., 0])
    path = tmp_path / ("set.parquet" if parquet else "set")
    if parquet:
        grey.to_parquet(path)
    else:
        grey.save_to_disk(path)
    dataset = load(path)
    assert (dataset.test, dataset.natural) == (None, None)
    inputs = dataset.transform(dataset.train.inputs, torch.float32, None)
    assert inputs.shape == (6, 1, 5, 4)


def test_images_with_a_palette_are_in_colour(tmp_path):
    """As image_folder reads them: not the numbers of the colours."""
    palette = [PIL.fromarray(image).convert("P") for image in COLOUR]
    made(image=(palette, datasets.Image())).save_to_disk(tmp_path / "palette")
    found = load(tmp_path / "palette").train.inputs
    assert found.shape == (6, 5, 4, 3)
    expected = np.stack([np.asarray(image.convert("RGB")) for image in palette])
    assert np.array_equal(found, expected)


def encoded(image, form="PNG"):
    out = io.BytesIO()
    image.save(out, form)
    return {"bytes": out.getvalue(), "path": None}


def save_images(path, images, kind=None):
    columns = {"image": (images, kind or datasets.Image()), "label": ([0] * len(images), INTEGER)}
    made(np.zeros((len(images), 1, 1), np.uint8), **columns).save_to_disk(path)


def decoded(path, images, kind=None):
    save_images(path, images, kind)
    return load(path).train.inputs


def test_images_are_decoded_as_those_of_folders(tmp_path):
    half = PIL.new("RGBA", (2, 2), (200, 0, 100, 51))
    inks = PIL.new("CMYK", (2, 2), (255, 0, 255, 0))
    grey = PIL.new("LA", (2, 2), (100, 0))
    files = [encoded(half), encoded(inks, "TIFF"), encoded(grey), encoded(PIL.new("L", (2, 2), 7))]
    files += [encoded(PIL.new("RGB", (2, 2), (1, 2, 3)), "WEBP")]
    found = decoded(tmp_path / "all", files)
    assert found.shape == (5, 2, 2, 3)
    for image, file in zip(found, files, strict=True):
        assert np.array_equal(image, pixels(file["bytes"]))
    assert found[:4, 0, 0].tolist() == [[244, 204, 224], [0, 255, 0], [255] * 3, [7] * 3]


def test_only_grey_images_have_one_channel(tmp_path):
    clear, dark = PIL.new("LA", (2, 2), (100, 0)), PIL.new("1", (2, 2), 0)
    files = [encoded(clear), encoded(dark), encoded(PIL.new("L", (2, 2), 7))]
    assert decoded(tmp_path / "grey", files)[:, 0, 0].tolist() == [[255], [0], [7]]
    colour = decoded(tmp_path / "colour", files, datasets.Image(mode="RGB"))
    assert colour[:, 0, 0].tolist() == [[255] * 3, [0] * 3, [7] * 3]
    red = encoded(PIL.new("RGB", (2, 2), (255, 0, 0)))
    assert decoded(tmp_path / "red", [red], datasets.Image(mode="L")).tolist() == [[[[76]] * 2] * 2]
    with pytest.raises(DataError, match="'image' is of mode RGBA, expected L, RGB or none"):
        decoded(tmp_path / "alpha", [red], datasets.Image(mode="RGBA"))


@pytest.mark.parametrize("where", ["beside", "absolute", "url"])
@pytest.mark.parametrize("parquet", [False, True])
def test_images_outside_of_the_file_are_not_read(tmp_path, monkeypatch, parquet, where):
    """They are not among the files at ``data.path``, and nothing is fetched."""
    monkeypatch.chdir(tmp_path)
    PIL.fromarray(COLOUR[0]).save(tmp_path / "0.png")
    path = {"beside": "0.png", "absolute": str(tmp_path / "0.png")}.get(where, "http://a.example/0")
    kind = pyarrow.struct({"bytes": pyarrow.binary(), "path": pyarrow.string()})
    rows = [{"bytes": encoded(PIL.fromarray(COLOUR[0]))["bytes"], "path": None}]
    rows += [{"bytes": None, "path": path}]
    table = pyarrow.table({"image": pyarrow.array(rows, kind), "label": [0, 1]})
    features = datasets.Features({"image": datasets.Image(), "label": INTEGER})
    table = table.replace_schema_metadata(features.arrow_schema.metadata)
    if parquet:
        pyarrow.parquet.write_table(table, tmp_path / "set")
    else:
        made().save_to_disk(tmp_path / "set")
        arrow = next((tmp_path / "set").glob("*.arrow"))
        with (
            pyarrow.OSFile(str(arrow), "wb") as file,
            pyarrow.ipc.new_stream(file, table.schema) as out,
        ):
            out.write_table(table)
    with pytest.raises(
        DataError, match=f"'image' of row 1 is the path '{path}', expected the imag"
    ):
        load(tmp_path / "set")


@pytest.mark.parametrize("kind", [datasets.Audio(), datasets.List(datasets.Image())], ids=str)
def test_columns_that_would_be_decoded_from_paths(tmp_path, kind):
    image = {"bytes": None, "path": "http://a.example/0"}
    value = [image] if isinstance(kind, datasets.List) else image
    features = datasets.Features({"x": kind, "label": INTEGER})
    table = pyarrow.table({"x": [value], "label": [0]}, features.arrow_schema)
    pyarrow.parquet.write_table(table, tmp_path / "set.parquet")
    with pytest.raises(DataError, match=r"column 'x' holds .*; expected images, numbers or text"):
        load(tmp_path / "set.parquet", inputs="x")


def test_a_state_that_names_files_of_elsewhere(tmp_path):
    made().save_to_disk(tmp_path / "other")
    made().save_to_disk(tmp_path / "set")
    state = tmp_path / "set/state.json"
    arrow = next((tmp_path / "set").glob("*.arrow")).name
    state.write_text(state.read_text().replace(arrow, f"../other/{arrow}"))
    with pytest.raises(
        DataError, match=r"state\.json names .*/other/data.*, no file of this folder"
    ):
        load(tmp_path / "set")


@pytest.mark.parametrize("name", ["set.parquet", "set/state.json", "set/data-00000-of-00001.arrow"])
def test_a_fifo_in_place_of_a_file(tmp_path, name):
    made().save_to_disk(tmp_path / "set")
    (tmp_path / name).unlink(missing_ok=True)
    os.mkfifo(tmp_path / name)
    with pytest.raises(DataError, match=r"not readable: .*it is a FIFO, expected a file"):
        load(tmp_path / name.partition("/")[0])


def test_categorical_columns_are_texts(tmp_path):
    """As pandas writes them."""
    values = pyarrow.array(["b", "a", "b"]).dictionary_encode()
    table = pyarrow.table({"x": [1.0, 2, 3], "y": [0, 1, 0], "who": values})
    pyarrow.parquet.write_table(table, tmp_path / "set.parquet")
    found = load(tmp_path / "set.parquet", inputs="x", labels="y", client="who")
    assert [rows.tolist() for rows in found.natural] == [[1], [0, 2]]
    with pytest.raises(
        DataError, match=r"'who' of row 0 is the text 'b', .*class_encode_column\('who"
    ):
        load(tmp_path / "set.parquet", inputs="x", labels="who")


def test_whole_numbers_that_are_stored_as_floats(tmp_path):
    floats = ([0.0, 4.0, 1.0, 2.0, 0.0, 4.0], datasets.Value("float64"))
    made(y=floats, who=floats).save_to_disk(tmp_path / "set")
    found = load(tmp_path / "set", labels="y", client="who")
    assert found.train.labels.tolist() == [0, 4, 1, 2, 0, 4]
    assert found.train.labels.dtype == torch.int64
    assert [rows.tolist() for rows in found.natural] == [[0, 4], [2], [3], [1, 5]]


def test_files_of_a_split_have_its_name(tmp_path):
    """The hub keeps several data sets in one folder, and splits whose names begin alike."""
    for name in ("train-00000-of-00002", "train-noisy-00000-of-00001", "training", "trains-0"):
        made().to_parquet(tmp_path / f"{name}.parquet")
    (tmp_path / "b").mkdir()
    made().to_parquet(tmp_path / "b/train-00001-of-00002.parquet")
    assert len(load(tmp_path).train.labels) == 12  # the parts of one may be in two folders
    for name in ("train-00000-of-00002", "train-00000-of-00001", "train"):
        other = tmp_path / "c" / f"{name}.parquet"
        other.parent.mkdir(exist_ok=True)
        made().to_parquet(other)
        with pytest.raises(
            DataError, match=r"of train are of several data sets or splits: train.*\.parquet "
        ):
            load(tmp_path)
        other.unlink()


@pytest.mark.parametrize(
    ("names", "message"),
    [
        # Parts of the hub's older names, whose ends differ.
        (["train-00000-of-00002-0f2c", "train-00001-of-00002-9b1d"], None),
        (["train-part-8", "train-part-11"], None),
        (["train-00000-of-00001-0f2c", "train-00000-of-00001-9b1d"], "several data sets or spl"),
        (["train.clean-00000-of-00001", "train.other-00000-of-00001"], "several data sets or spl"),
        (["train-clean", "train-other"], "train-clean.parquet and train-other.parquet, in "),
        (["train-00001-of-00002", "train-00002-of-00002"], None),
        (["train-00000-of-00003"], "has the parquet files of numbers 0, expected 0 to 2; copy"),
        (["train-00001-of-00002"], "has the parquet files of numbers 1, expected 0 to 1; copy"),
        (["train-00000-of-00001", "train-00001-of-00001"], "numbers 0, 1, expected 0 to 0; copy"),
    ],
)
def test_the_parts_of_a_split_are_all_of_one(tmp_path, names, message):
    for name in names:
        made().to_parquet(tmp_path / f"{name}.parquet")
    if message is None:
        assert len(load(tmp_path).train.labels) == 12
        return
    with pytest.raises(DataError, match=message):
        load(tmp_path)


@pytest.mark.parametrize("name", ["train", "train.snappy", "train.00000", "train-part-0"])
def test_other_names_of_parquet_files(tmp_path, name):
    made().to_parquet(tmp_path / f"{name}.parquet")
    assert len(load(tmp_path).train.labels) == 6
    with pytest.raises(
        DataError, match=r"has no split 'val'; found none, expected such as val\.par"
    ):
        load(tmp_path, train="val")


@pytest.mark.parametrize(
    ("values", "kind", "dtype"),
    [
        (RANDOM.standard_normal((6, 3)).astype("f4"), "List(float32)", torch.float32),
        (RANDOM.integers(0, 9, (6, 2, 3)), "Array2D((2, 3), int64)", torch.int64),
        (np.arange(6).astype("u2") * 9000, "uint16", torch.int64),
    ],
)
def test_numbers_are_kept(tmp_path, values, kind, dtype):
    feature = {
        "List(float32)": datasets.List(datasets.Value("float32")),
        "Array2D((2, 3), int64)": datasets.Array2D((2, 3), "int64"),
        "uint16": datasets.Value("uint16"),
    }[kind]
    columns = {
        "x": (values.tolist(), feature),
        "y": ([0, 4, 1, 2, 0, 0], datasets.Value("int16")),
        "who": ([7, 7, -1, 7, 3, 3], datasets.Value("int32")),
    }
    made(**columns).save_to_disk(tmp_path / "set")
    dataset = load(tmp_path / "set", inputs="x", labels="y", client="who")
    assert dataset.train.inputs.dtype == dtype
    assert np.array_equal(dataset.train.inputs, values)
    assert dataset.classes == 5
    assert [rows.tolist() for rows in dataset.natural] == [[2], [4, 5], [0, 1, 3]]
    assert load(tmp_path / "set", inputs="x", labels="y", classes=9).classes == 9


def test_labels_that_count_from_one(tmp_path):
    made(y=([1, 2, 3, 1, 2, 3], datasets.Value("int64"))).save_to_disk(tmp_path / "set")
    said = r"'y' runs from 1 to 3, so .*data\.map\(lambda row: \{'y': row\['y'\] - 1\}\)\), or say"
    with pytest.raises(DataError, match=said):
        load(tmp_path / "set", labels="y")
    notes = load(tmp_path / "set", labels="y", classes=4).notes
    assert notes == ("data: 1 of 4 classes have no training example: 0",)
    notes = load(tmp_path / "set").notes  # its column declares three classes
    assert notes == ("data: 1 of 3 classes have no training example: 2",)


@pytest.mark.parametrize("kind", ["int64", "float32"])
def test_the_job_says_what_labels_are(tmp_path, kind):
    """They are classes unless it says numbers, floats too."""
    made(y=([0, 1, 4, 0, 0, 0], datasets.Value(kind))).save_to_disk(tmp_path / "set")
    found = load(tmp_path / "set", labels="y", label_type="numbers")
    assert (found.classes, found.loss, found.notes) == (None, "squared", ())
    assert found.train.labels.tolist() == [[0], [1], [4], [0], [0], [0]]
    assert found.train.labels.is_floating_point()
    with pytest.raises(JobError, match=r"data\.classes: data\.label_type is numbers"):
        load(tmp_path / "set", labels="y", label_type="numbers", classes=5)
    missing = "data: 2 of 5 classes have no training example: 2, 3"
    for keys in ({"label_type": "classes"}, {"classes": 5}, {}):
        found = load(tmp_path / "set", labels="y", **keys)
        assert (found.classes, found.train.labels.tolist()) == (5, [0, 1, 4, 0, 0, 0])
        assert found.notes[-1:] == (missing,)
        assert len(found.notes) == (1 if keys else 2)
    assert found.notes[0].startswith("warning: data.labels: 5 classes for 6 labels; if these are n")


ROWS = [[0, 2], [1, 0], [2, -100], [0, 1], [1, 1], [0, 0]]


def several(kind, rows=ROWS):
    return {"y": (rows, datasets.List(datasets.Value(kind)))}


@pytest.mark.parametrize(
    ("columns", "keys", "found"),
    [
        (several("int64"), {"padding": -100}, ("tokens", 3, ROWS)),
        (several("int64", [[a, 5] for a, _ in ROWS]), {}, ("tokens", 6, [[a, 5] for a, _ in ROWS])),
        (several("float32"), {}, ("squared", None, ROWS)),
        (several("int64"), {"label_type": "numbers"}, ("squared", None, ROWS)),
        (several("bool", np.array(ROWS) > 0), {}, ("bits", None, (np.array(ROWS) > 0).tolist())),
        (
            several("float32", np.array(ROWS) > 0),
            {"label_type": "bits"},
            ("bits", None, (np.array(ROWS) > 0).tolist()),
        ),
        (
            {"y": ([[0, 1]] * 6, datasets.List(datasets.ClassLabel(names=list("abcd"))))},
            {},
            ("tokens", 4, [[0, 1]] * 6),
        ),
    ],
)
def test_lists_of_labels(tmp_path, columns, keys, found):
    made(**columns).save_to_disk(tmp_path / "set")
    data = load(tmp_path / "set", labels="y", **keys)
    assert (data.loss, data.classes, data.train.labels.tolist()) == found
    assert data.padding == keys.get("padding")


@pytest.mark.parametrize(
    ("columns", "keys", "message"),
    [
        (several("int64"), {}, "'y' of row 2 is -100, expected 0 to 2; if -100 is padding, say"),
        (several("int64"), {"padding": -1}, "'y' of row 2 is -100, expected 0 to 2"),
        (several("int64", [[0, 1]] * 6), {"padding": 7}, "is 7, and it is no class .0 to 1."),
        (several("bool", [[0, 1]] * 6), {"classes": 2}, "data.classes: the labels are bits, which"),
        (several("string", [["a", "b"]] * 6), {}, r"'y' is object of shape \(6, 2\), expected in"),
    ],
)
def test_wrong_lists_of_labels(tmp_path, columns, keys, message):
    made(**columns).save_to_disk(tmp_path / "set")
    with pytest.raises((DataError, JobError), match=message) as caught:
        load(tmp_path / "set", labels="y", **keys)
    assert "\n" not in str(caught.value)


def test_folders_of_a_path_say_nothing_of_columns(tmp_path):
    """pyarrow takes a folder NAME=VALUE for a column NAME, in the place of the file's own."""
    (tmp_path / "label=1" / "writer=me").mkdir(parents=True)
    path = tmp_path / "label=1" / "writer=me" / "train.parquet"
    made(**WRITER).to_parquet(path)
    for place in (path, path.parent):
        found = load(place, client="writer")
        assert found.train.labels.tolist() == [0, 1, 0, 1, 0, 1]
        assert [rows.tolist() for rows in found.natural] == [[1, 4], [3], [0, 2, 5]]


TOKENS = {
    "input_ids": [[5, 6, 7], [8], [9, 5]],
    "attention_mask": [[1, 1, 1], [1], [1, 1]],
    "labels": [[6, 7, -100], [-100], [5, -100]],
    "label": [0, 1, 1],
}


def save_lists(path, test=None, **columns):
    parts = {"train": {**TOKENS, **columns}, **({} if test is None else {"test": test})}
    tables = {name: datasets.Dataset.from_dict(part) for name, part in parts.items()}
    datasets.DatasetDict(tables).save_to_disk(path)
    return path


def test_lists_are_filled_up_to_the_longest_of_both_splits(tmp_path):
    test = {"input_ids": [[3, 3, 3, 3]], "attention_mask": [[1] * 4], "labels": [[3, 3, 3, -100]]}
    path = save_lists(tmp_path / "set", test)
    keys = {"inputs": ("input_ids", "attention_mask"), "labels": "labels", "padding": -100}
    found = load(path, length="longest", **keys)
    inputs = found.named.unpack(found.train.inputs)
    assert inputs["input_ids"].tolist() == [[5, 6, 7, 0], [8, 0, 0, 0], [9, 5, 0, 0]]
    assert inputs["attention_mask"].tolist() == [[1, 1, 1, 0], [1, 0, 0, 0], [1, 1, 0, 0]]
    assert found.train.labels.tolist() == [
        [6, 7, -100, -100],
        [-100, -100, -100, -100],
        [5, -100, -100, -100],
    ]
    assert found.named.unpack(found.test.inputs)["input_ids"].tolist() == [[3, 3, 3, 3]]
    assert (found.classes, found.loss, found.padding) == (8, "tokens", -100)
    given = found.named.given(torch.float32)
    assert {one.dtype for one in given.inputs} == {torch.int64}
    assert [note for note in found.notes if "lists" in note] == [
        "data: 3 of 4 lists of 'input_ids' are filled up to 4 integers by 0",
        "data: 3 of 4 lists of 'attention_mask' are filled up to 4 integers by 0",
        "data: 3 of 4 lists of 'labels' are filled up to 4 integers by -100",
    ]


def test_lists_of_a_given_length(tmp_path):
    """A mask that is no column is made of the lengths; labels may be one an example."""
    bare = {name: TOKENS[name] for name in ("input_ids", "label")}
    datasets.Dataset.from_dict(bare).save_to_disk(tmp_path / "set")
    found = load(tmp_path / "set", inputs=("input_ids", "attention_mask"), length=2)
    inputs = found.named.unpack(found.train.inputs)
    assert inputs["input_ids"].tolist() == [[5, 6], [8, 0], [9, 5]]
    assert inputs["attention_mask"].tolist() == [[1, 1], [1, 0], [1, 1]]
    assert (found.train.labels.tolist(), found.padding) == ([0, 1, 1], None)
    assert found.notes[:2] == (
        "data: 1 of 3 lists of 'input_ids' are filled up to 2 integers by 0",
        "data: 1 of 3 lists of 'input_ids' are cut off after 2 integers",
    )


def test_labels_that_are_the_inputs(tmp_path):
    """As models of transformers want them, which move them: here they would be copied."""
    path = save_lists(tmp_path / "set", labels=TOKENS["input_ids"])
    keys = {"inputs": ("input_ids",), "labels": "labels", "length": 3, "padding": -100}
    said = "data.labels: each label is the input of its own place; to predict the next one"
    assert any(said in note for note in load(path, **keys).notes)
    moved = {"labels": [[*ids[1:], -100] for ids in TOKENS["input_ids"]]}
    path = save_lists(tmp_path / "moved", **moved)
    assert not any(said in note for note in load(path, **keys).notes)


@pytest.mark.parametrize(
    ("columns", "keys", "message"),
    [
        ({}, {}, r"'input_ids' holds lists of 1 to 3 integers; data\.length, a number or longest"),
        (
            {},
            {"length": 4, "inputs": "input_ids"},
            r"an input by name; say data\.inputs: \[input_i",
        ),
        ({}, {"length": 4, "labels": "labels"}, r"'labels' is filled up to 4 .* say data\.padding"),
        (
            {"input_ids": [[1], [], [2]]},
            {"length": 4},
            r"'input_ids' of row 1 is an empty list; rem",
        ),
        (
            {"input_ids": [[1], [None], [2]]},
            {"length": 4},
            r"'input_ids' has an empty \(null\) integer in a list",
        ),
        (
            {},
            {"inputs": ("label",), "length": 4},
            r"data\.length: neither data\.inputs nor data\.la",
        ),
        (
            {},
            {"inputs": ("input_ids", "token_type_ids"), "length": 4},
            "no column 'token_type_ids'",
        ),
    ],
)
def test_lists_that_are_wrong(tmp_path, columns, keys, message):
    path = save_lists(tmp_path / "set", **columns)
    with pytest.raises((DataError, JobError), match=message) as caught:
        load(path, **{"inputs": ("input_ids",), **keys})
    assert "\n" not in str(caught.value)


LANGUAGE_MODEL = """\
from torch import nn


class Model(nn.Module):
    def __init__(self, input_shape, outputs):
        super().__init__()
        (places,) = input_shape["input_ids"]
        self.token, self.out = nn.Embedding(outputs, 8), nn.Linear(8, outputs)

    def forward(self, input_ids, attention_mask):
        return self.out(self.token(input_ids) * attention_mask.unsqueeze(2))
"""


def test_a_run_of_lists(tmp_path, hpcfl, job, monkeypatch):
    (tmp_path / "model_of_lists.py").write_text(LANGUAGE_MODEL)
    monkeypatch.syspath_prepend(tmp_path)
    save_lists(tmp_path / "set", test=TOKENS)
    keys = "inputs: [input_ids, attention_mask], labels: labels, classes: 10, padding: -100"
    path = f"path: {tmp_path}/set, length: longest, clients: 2"
    data = f"data={{kind: huggingface, {path}, {keys}}}"
    model = "model={name: module, of: model_of_lists.Model}"
    done = hpcfl("run", job, data, model, "cohort.size=2", "--out", tmp_path / "run")
    sys.modules.pop("model_of_lists", None)
    assert done.code == 0, done.err
    assert '"test_loss"' in (tmp_path / "run/log.jsonl").read_text()


def test_images_have_no_name(tmp_path):
    made().save_to_disk(tmp_path / "set")
    with pytest.raises(DataError, match=r"column 'image' holds uint8 .*; expected numbers, of one"):
        load(tmp_path / "set", inputs=("image",))


def test_a_run_of_it(tmp_path, hpcfl, job):
    save_dict(tmp_path / "set")
    settings = f"data={{kind: huggingface, path: {tmp_path}/set, client: writer}}"
    done = hpcfl("run", job, settings, "--out", tmp_path / "run")
    assert done.code == 0, done.err


@pytest.mark.parametrize(
    ("columns", "keys", "message"),
    [
        ({}, {"inputs": "img"}, "train: no column 'img'; found image, label"),
        ({}, {"labels": "y"}, "train: no column 'y'; found image, label"),
        ({}, {"client": "who"}, "train: no column 'who'; found image, label"),
        ({}, {"test": "val"}, "has no split 'val'; found train"),
        ({}, {"train": "val"}, "has no split 'val'; found train"),
        ({}, {"classes": 1}, "train: 'label' of row 1 is 1, expected 0 to 0"),
        (
            {"y": ([0, 1, -1, 0, 0, 0], INTEGER)},
            {"labels": "y"},
            r"'y' of row 2 is -1, expected 0 to 1; if -1 hides .*: row\['y'\] >= 0\)",
        ),
        (
            {"y": (list("abcdef"), TEXT)},
            {"labels": "y"},
            r"'y' of row 0 is the text 'a', expected integers.*data\.class_encode_column\('y'\)",
        ),
        (
            {"y": ([0, None, 1, 1, 1, 1], INTEGER)},
            {"labels": "y"},
            r"'y' of row 1 is empty \(null\); remove such rows: .*row\['y'\] is not None",
        ),
        (
            {"y": ([0, 1, 4.5, 0, 0, 0], datasets.Value("float64"))},
            {"labels": "y"},
            r"'y' of row 2 is 4\.5, expected an integer; for a regression say data\.label_type",
        ),
        (
            {"y": (["1.5"] * 6, TEXT)},
            {"labels": "y", "label_type": "numbers"},
            r"'y' of row 0 is the text '1\.5', expected a number",
        ),
        (
            {"y": ([0, 1, float("inf"), 0, 0, 0], datasets.Value("float64"))},
            {"labels": "y", "label_type": "numbers"},
            "'y' is not finite in row 2",
        ),
        (
            {"image": ([None, *map(PIL.fromarray, COLOUR[:5])], datasets.Image())},
            {},
            r"'image' of row 0 is empty",
        ),
        ({"x": (list("abcdef"), TEXT)}, {"inputs": "x"}, "column 'x' holds <U1 of shape"),
        (
            {"x": ([[1.0, 2]] * 5 + [[1.0]], NUMBERS)},
            {"inputs": "x"},
            r"column 'x'(: not readable| holds object)",
        ),
        (
            {"x": ([[1.0]] * 5 + [[float("nan")]], NUMBERS)},
            {"inputs": "x"},
            "'x' is not finite in row 5",
        ),
        (
            {"w": ([0.5] * 6, datasets.Value("float32"))},
            {"client": "w"},
            r"'w' of row 0 is 0\.5, expected an integer",
        ),
        ({"w": ([None, *"abcde"], TEXT)}, {"client": "w"}, "'w' of row 0 is empty"),
    ],
)
def test_wrong_columns(tmp_path, columns, keys, message):
    made(**columns).save_to_disk(tmp_path / "set")
    with pytest.raises(DataError, match=message) as caught:
        load(tmp_path / "set", **keys)
    assert str(tmp_path / "set") in str(caught.value)
    assert "\n" not in str(caught.value)


def test_images_of_several_sizes(tmp_path):
    made([COLOUR[0], COLOUR[1, :3]]).save_to_disk(tmp_path / "set")
    with pytest.raises(
        DataError, match=r"images of sizes \(5, 4\) and \(3, 4\); expected images of"
    ):
        load(tmp_path / "set")
    splits = {"train": made(COLOUR), "test": made(COLOUR[:, :3])}
    datasets.DatasetDict(splits).save_to_disk(tmp_path / "two")
    with pytest.raises(DataError, match=r"shape \(5, 4, 3\) for training, of \(3, 4, 3\) for test"):
        load(tmp_path / "two")


def test_images_of_16_bits(tmp_path):
    made(np.arange(120, dtype=np.uint16).reshape(6, 5, 4) * 500).save_to_disk(tmp_path / "set")
    with pytest.raises(DataError, match=r"'image' of row 0 cannot be read: its pixels are I;16"):
        load(tmp_path / "set")


def test_a_broken_image(tmp_path):
    broken = datasets.Dataset.from_dict(
        {"image": [{"bytes": b"no image", "path": None}], "label": [0]},
        features=datasets.Features({"image": datasets.Image(), "label": INTEGER}),
    )
    broken.save_to_disk(tmp_path / "set")
    with pytest.raises(
        DataError, match="train: the image 'image' of row 0 cannot be read: it is no"
    ):
        load(tmp_path / "set")


def test_missing_and_truncated_files(tmp_path):
    with pytest.raises(DataError, match="none: not readable"):
        load(tmp_path / "none")
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="empty: not readable"):
        load(tmp_path / "empty")
    made().to_parquet(tmp_path / "set.parquet")
    whole = (tmp_path / "set.parquet").read_bytes()
    made().save_to_disk(tmp_path / "set")
    arrow = next((tmp_path / "set").glob("*.arrow"))
    for content in (b"", b"text", whole[: len(whole) // 2]):
        (tmp_path / "set.parquet").write_bytes(content)
        arrow.write_bytes(content)
        for name in ("set.parquet", "set"):
            with pytest.raises(DataError, match=f"{name}: not readable") as caught:
                load(tmp_path / name)
            assert "\n" not in str(caught.value)


def test_the_package_is_asked_for_by_name(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(JobError, match=r"pip install 'hpcfl\[huggingface\]'"):
        load(tmp_path)
