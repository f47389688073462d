"""Tables of a user's own: CSV and parquet."""

import bz2
import gzip
import lzma
import re
import shlex
import shutil
import subprocess
import sys

import numpy as np
import pytest
import torch

from hpcfl.data.sources import table
from hpcfl.data.sources.table import Table
from hpcfl.errors import DataError, JobError
from tests.forked import finish
from tests.parallel.background import write
from tests.parallel.outcome import outcome

CSV = """\
age,dose,smokes,clinic,species,part
61,0.5,True,oslo,versicolor,train
44,1e-1,False,bergen,setosa,train
52,.25,False,oslo,virginica,test
70,2,True,tromso,setosa,train
38,1.5,False,molde,setosa,test
49,3,True,bergen,versicolor,test
"""
X = [[61, 0.5, 1], [44, 0.1, 0], [52, 0.25, 0], [70, 2, 1], [38, 1.5, 0], [49, 3, 1]]
KEYS = {"label": "species", "client": "clinic", "split": "part"}
NAMES = "data.label: in sorted order, setosa is class 0, versicolor 1, virginica 2"


def load(tmp_path, text=CSV, **keys):
    path = tmp_path / "own.csv"
    path.write_text(text)
    return Table(path=str(path), **(keys or KEYS)).load(0)


def labelled(*labels):
    """A CSV of one input and these labels."""
    return "x,y\n" + "".join(f"{k},{label}\n" for k, label in enumerate(labels))


def check_whole(found):
    assert np.array_equal(found.train.inputs, np.array(X)[[0, 1, 3]])
    assert np.array_equal(found.test.inputs, np.array(X)[[2, 4, 5]])
    assert found.train.labels.tolist() == [1, 0, 0]
    assert found.test.labels.tolist() == [2, 0, 1]
    assert found.train.labels.dtype == torch.int64
    assert (found.classes, found.loss) == (3, "cross_entropy")
    assert [rows.tolist() for rows in found.natural] == [[1], [0], [2]]
    # Molde has no training example, so its test is no client's.
    assert [rows.tolist() for rows in found.natural_tests] == [[2], [0], []]
    assert found.notes == (
        NAMES,
        "data: 1 of 3 classes have no training example: 2",
        "data.client: in sorted order, bergen is client 0, oslo 1, tromso 2",
    )


def test_columns_of_a_csv(tmp_path):
    check_whole(load(tmp_path))
    assert load(tmp_path, inputs=("smokes", "age"), **KEYS).train.inputs[0].tolist() == [1, 61]


def test_blanks_at_the_ends_of_names_are_seen(tmp_path):
    """They count, as for pandas: quoted, and a line where names differ in them alone."""
    notes = load(tmp_path, labelled(*["aster", "beech", "aster "] * 2), label="y").notes
    assert notes[0] == "data.label: in sorted order, aster is class 0, 'aster ' 1, beech 2"
    assert notes[1] == (
        "data.label: 'aster ' and 'aster' differ in blanks alone, and count as two; "
        "remove the blanks"
    )
    notes = load(tmp_path, CSV.replace("bergen,setosa", " bergen,setosa"), **KEYS).notes
    assert "data.client: in sorted order, ' bergen' is client 0, oslo 1, tromso 2" in notes
    assert any(note.startswith("data.client: ' bergen' and 'bergen' differ") for note in notes)
    with pytest.raises(DataError, match=r"no column 'part'; found age, .*, species, 'part '$"):
        load(tmp_path, CSV.replace("part\n", "part \n", 1))


@pytest.mark.parametrize("change", [("", "\ufeff"), (",", ";"), (",", "\t"), ("\n", "\r\n")])
def test_csv_as_programs_write_it(tmp_path, change):
    old, new = change
    text = CSV.replace(old, new) if old else new + CSV
    path = tmp_path / "own.csv"
    path.write_bytes(text.encode())
    check_whole(Table(path=str(path), **KEYS).load(0))


def test_columns_of_a_parquet_file(tmp_path):
    pyarrow = pytest.importorskip("pyarrow", reason="pyarrow is absent")
    parquet = pytest.importorskip("pyarrow.parquet")
    rows = [line.split(",") for line in CSV.splitlines()[1:]]
    _, _, smokes, clinic, species, part = zip(*rows, strict=True)
    columns = {
        "age": np.array(X)[:, 0].astype(np.int16),
        "dose": np.array(X)[:, 1],
        "smokes": [text == "True" for text in smokes],
        "clinic": pyarrow.array(clinic).dictionary_encode(),  # as categories of pandas
        "species": species,
        "part": part,
    }
    path = tmp_path / "own.parquet"
    parquet.write_table(pyarrow.table(columns), path)
    check_whole(Table(path=str(path), **KEYS).load(0))
    for name, values, message in [
        ("dose", [1.0, None, 2, 3, 4, 5], r"row 1: column 'dose' is missing \('null'\)"),
        ("dose", [1.0, 2, np.nan, 3, 4, 5], r"row 2: column 'dose' is missing \('null'\)"),
        ("dose", [1.0, np.inf, 2, 3, 4, 5], "row 1: column 'dose' is inf, expected a finite"),
        ("dose", species, r"row 0: column 'dose' is 'versicolor', .* pandas.get_dummies"),
        ("dose", [[1.0]] * 6, "column 'dose' holds list<.*>, expected numbers"),
        ("clinic", [[1.0]] * 6, "column 'clinic' holds list<.*>, expected text or numbers"),
        ("clinic", [*clinic[:4], "", "oslo"], r"row 4: column 'clinic' is missing \(''\)"),
        ("species", [*species[:5], None], r"row 5: column 'species' is missing \('null'\)"),
    ]:
        parquet.write_table(pyarrow.table({**columns, name: values}), path)
        with pytest.raises(DataError, match=message) as caught:
            Table(path=str(path), **KEYS).load(0)
        assert str(caught.value).startswith(str(path))
        assert "\n" not in str(caught.value)
    whole = path.read_bytes()
    for content in (b"", b"text", whole[: len(whole) // 2]):
        path.write_bytes(content)
        with pytest.raises(DataError, match=f"{path}: not a readable parquet file: ") as caught:
            Table(path=str(path), **KEYS).load(0)
        assert "\n" not in str(caught.value)


def test_pyarrow_is_asked_for_by_name(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    (tmp_path / "own.parquet").touch()
    with pytest.raises(JobError, match=r"package pyarrow: .+; pip install pyarrow, or"):
        Table(path=str(tmp_path / "own.parquet"), **KEYS).load(0)


@pytest.mark.parametrize(
    ("labels", "classes", "numbers", "note"),
    [
        ("0 1 2 1", 3, [0, 1, 2, 1], None),
        ("10 9 10 3", 3, [2, 1, 2, 0], "3 is class 0, 9 1, 10 2"),
        ("+10 -9 10 3", 3, [2, 0, 2, 1], "-9 is class 0, 3 1, 10 2"),
        ("007 12 007 1", 3, [0, 2, 0, 1], "007 is class 0, 1 1, 12 2"),
        ("NA DE 1 DE", 3, [2, 1, 0, 1], "1 is class 0, DE 1, NA 2"),
        ("True False True True", 2, [1, 0, 1, 1], "False is class 0, True 1"),
        ("<6 6+ 6+ 7", 3, [2, 0, 0, 1], "6+ is class 0, 7 1, <6 2"),
    ],
)
def test_text_and_integers_are_classes_in_sorted_order(tmp_path, labels, classes, numbers, note):
    found = load(tmp_path, labelled(*labels.split() * 2), label="y")
    assert (found.classes, found.loss) == (classes, "cross_entropy")
    assert found.train.labels.tolist() == numbers * 2
    note = note and f"data.label: in sorted order, {note}"
    assert found.notes[:-1] == ((note,) if note else ())
    assert found.notes[-1].startswith("data: there are no test examples")
    assert (found.test, found.natural, found.natural_tests) == (None, None, None)


def test_numbers_with_a_point_are_targets(tmp_path):
    found = load(tmp_path, labelled("1", "2.5", "-1e-1"), label="y", holdout=0.5)
    assert (found.classes, found.loss, found.notes) == (None, "squared", ())
    assert found.train.labels.tolist() == [[1], [2.5], [-0.1]]
    (note,) = load(tmp_path, labelled("1.0", "2.0"), label="y", holdout=0.5).notes
    assert note == (
        "data.label: all labels are whole numbers, but floats, so they are the targets of a "
        "regression; if they are classes, say data.label_type: classes"
    )


def test_many_integers_are_perhaps_targets(tmp_path):
    (note,) = load(tmp_path, labelled(*[*range(18, 30)] * 2), label="y", holdout=0.5).notes
    assert note.endswith(
        "26 8, 27 9, ... (12 in all); for a regression say data.label_type: numbers"
    )


def test_a_class_for_more_than_every_second_label_is_a_warning(tmp_path):
    warning = (
        "warning: data.label: 3 classes for 5 labels; if these are numbers to predict (a "
        "regression), say data.label_type: numbers, else data.label_type: classes"
    )
    few, many = ["a", "b", "c", "a", "b", "c"], ["a", "b", "c", "a", "b"]
    assert warning in load(tmp_path, labelled(*many), label="y").notes
    for labels, keys in ((few, {}), (many, {"label_type": "classes"})):
        notes = load(tmp_path, labelled(*labels), label="y", **keys).notes
        assert not [note for note in notes if "warning" in note]


FLOATS = ["4.903", "5.01", "6.5", "7.25", "8.125"]


@pytest.mark.parametrize(
    ("cell", "number"),
    [("+1.25", 1.25), ("   4.903", 4.903), ("1.25  ", 1.25), ("007.5", 7.5), ("1.E+01", 10)],
)
def test_what_float_reads_is_a_number(tmp_path, cell, number):
    found = load(tmp_path, labelled(*FLOATS, cell), label="y")
    assert (found.classes, found.loss) == (None, "squared")
    assert found.train.labels[-1].tolist() == [number]
    whole = load(tmp_path, labelled(*["  12", "7", "12", "+7"] * 2), label="y")
    assert whole.train.labels.tolist() == [1, 0, 1, 0] * 2
    named = load(tmp_path, "x,y\n 1,a\n+2,b\n", label="y", inputs={"ward": ("x",)})
    assert named.named.inputs[0].dtype == torch.int64


SPELLINGS = [
    '"12,5"',
    '"10,240"',
    "<6",
    ">=6",
    "1.0D+01",
    "1.0d+01",
    "\u22124.9",
    "10.5%",
    '"1 000"',
    "10'240",
]


@pytest.mark.parametrize("parquet", [False, True])
@pytest.mark.parametrize("cell", [*SPELLINGS, "4.9 kg", "-4.9-"])
def test_numbers_in_other_spellings_are_no_classes(tmp_path, cell, parquet):
    """One among numbers is enough, whatever it is."""
    path, text = tmp_path / "own.csv", cell.strip('"')
    where = f"{path}:7"
    if parquet:
        path, where = write_parquet(tmp_path, x=range(6), y=[*FLOATS, text]), "row 5"
    else:
        path.write_text(labelled(*FLOATS, cell), encoding="utf-8")
    with pytest.raises(DataError) as caught:
        Table(path=str(path), label="y").load(0)
    line = str(caught.value)
    assert f"{where}: column 'y' is {text!r}, but most labels are numbers; write it as" in line
    assert "if the labels are names of classes, say data.label_type: classes" in line
    found = Table(path=str(path), label="y", label_type="classes").load(0)
    assert (found.classes, found.loss) == (6, "cross_entropy")


def test_names_of_ranges_are_classes(tmp_path):
    """Without a plain number among them."""
    found = load(tmp_path, labelled("<50", ">=50", "<50", ">=50"), label="y")
    assert (found.classes, found.train.labels.tolist()) == (2, [0, 1, 0, 1])


@pytest.mark.parametrize("cell", SPELLINGS)
def test_a_column_in_another_spelling_is_no_classes(tmp_path, cell):
    if cell[0] not in "<>":
        with pytest.raises(DataError, match=r":2: column 'y' is .* but most labels are numbers"):
            load(tmp_path, labelled(*[cell] * 3, "unknown"), label="y")
    with pytest.raises(
        DataError, match=r":2: column 'x' is .*; write it as float\(\) of Python re"
    ):
        load(tmp_path, f"x,y\n{cell},1.5\n", label="y")


def test_the_job_says_what_labels_are(tmp_path):
    keys = {"label": "y", "holdout": 0.5}
    integers, floats = labelled(1, 2, 1), labelled(0.5, "1.0", 0.5)
    found = load(tmp_path, integers, label_type="numbers", **keys)
    assert (found.classes, found.loss, found.notes) == (None, "squared", ())
    assert found.train.labels.tolist() == [[1], [2], [1]]
    found = load(tmp_path, floats, label_type="classes", **keys)
    assert (found.classes, found.train.labels.tolist()) == (2, [0, 1, 0])
    assert found.notes == ("data.label: in sorted order, 0.5 is class 0, 1.0 1",)
    found = load(tmp_path, labelled("007", "012"), label_type="numbers", **keys)
    assert found.train.labels.tolist() == [[7], [12]]
    with pytest.raises(DataError, match=r":4: column 'y' is 'b', but data.label_type is numbers"):
        load(tmp_path, labelled(1, 2, "b", "c"), label_type="numbers", **keys)


def test_a_missing_label_among_numbers_in_other_spellings(tmp_path):
    for cell in ("NA", ".", "#N/A", "-"):
        with pytest.raises(DataError, match=rf":3: column 'y' is missing \('{cell}'\)"):
            load(tmp_path, labelled("1.5", cell, "<6", "2.5"), label="y")


def write_parquet(tmp_path, **columns):
    pyarrow = pytest.importorskip("pyarrow", reason="pyarrow is absent")
    parquet = pytest.importorskip("pyarrow.parquet")
    tmp_path.mkdir(exist_ok=True, parents=True)
    parquet.write_table(pyarrow.table(columns), tmp_path / "own.parquet")
    return tmp_path / "own.parquet"


def test_folders_of_a_path_say_nothing_of_columns(tmp_path):
    """pyarrow takes a folder NAME=VALUE for a column NAME, in the place of the file's own."""
    columns = {
        "x": [1.0, 2, 3, 4],
        "y": ["a", "b", "a", "b"],
        "clinic": ["oslo", "bergen", "molde", "oslo"],
        "part": ["train", "train", "train", "test"],
    }
    for folder in ("part=train", "clinic=norway", "x=5", "y=7/part=test"):
        path = write_parquet(tmp_path / folder, **columns)
        found = Table(path=str(path), label="y", client="clinic", split="part").load(0)
        assert found.train.inputs.tolist() == [[1], [2], [3]], folder
        assert found.test.inputs.tolist() == [[4]], folder
        assert [rows.tolist() for rows in found.natural] == [[1], [2], [0]], folder


def test_an_index_of_pandas_is_left_out(tmp_path):
    pandas = pytest.importorskip("pandas", reason="pandas is absent")
    pytest.importorskip("pyarrow.parquet")
    frame = pandas.DataFrame({"age": [61.0, 44, 52], "y": list("aba")})
    path = tmp_path / "own.parquet"
    note = ", in which pandas stored an index; to train on it, name all inputs in data.inputs"
    for index, stored in (
        (pandas.Index([9, 7, 8], name="patient"), "patient"),
        (pandas.Index([9, 7, 8]), "__index_level_0__"),
        (pandas.RangeIndex(3), None),
    ):
        frame.set_axis(index).to_parquet(path)
        found = Table(path=str(path), label="y", holdout=0.5).load(0)
        assert found.train.inputs.tolist() == [[61], [44], [52]]
        assert found.columns == ("age",)
        assert [line for line in found.notes if line.startswith("data.inputs: ")] == (
            [f"data.inputs: without {stored}{note}"] if stored else []
        )
    frame.set_axis(pandas.Index([9, 7, 8], name="patient")).to_parquet(path)
    asked = Table(path=str(path), label="y", inputs=("patient", "age"), holdout=0.5).load(0)
    assert asked.train.inputs.tolist() == [[9, 61], [7, 44], [8, 52]]
    owned = Table(path=str(path), label="y", client="patient", holdout=0.5).load(0)
    assert (len(owned.natural), owned.columns) == (3, ("age",))
    for found in (asked, owned):
        assert not [line for line in found.notes if "stored an index" in line]


@pytest.mark.parametrize("name", ["own.pq", "own.PARQUET", "own.csv", "own"])
def test_parquet_under_any_name(tmp_path, name):
    path = write_parquet(tmp_path, x=[1.0, 2], y=["a", "b"]).rename(tmp_path / name)
    assert Table(path=str(path), label="y").load(0).train.inputs.tolist() == [[1], [2]]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            "x;y\n1;\u00e9\n".encode("latin-1"),
            "decode byte 0xe9 .*`iconv -f WINDOWS-1252 -t UTF-8 ",
        ),
        ("x,y\n1,a\n".encode("utf-16"), "it is text in UTF-16; .*`iconv -f UTF-16 -t UTF-8 "),
        (gzip.compress(b"x,y\n1,a\n"), "it is compressed by gzip; .*`gunzip -c "),
        (bz2.compress(b"x,y\n1,a\n"), "it is compressed by bzip2; .*`bunzip2 -c "),
        (lzma.compress(b"x,y\n1,a\n"), "it is compressed by xz; .*`xz -dc "),
        (b"PK\x03\x04x,y\n1,a\n", "it is an .xlsx or .zip file; save it as CSV UTF-8 from a sp"),
    ],
    ids=["latin-1", "utf-16", "gz", "bz2", "xz", "xlsx"],
)
def test_the_cure_of_a_file_that_is_no_csv(tmp_path, content, message):
    path = tmp_path / "own of Ann.csv"
    path.write_bytes(content)
    with pytest.raises(DataError, match=f"{path}: not a readable csv file: .*{message}") as caught:
        Table(path=str(path), label="y").load(0)
    assert "\n" not in str(caught.value)
    command = re.search("`(.*) > NEW.csv`", str(caught.value))
    if command and shutil.which(command[1].split()[0]):
        made = subprocess.run(shlex.split(command[1]), capture_output=True, check=True).stdout
        path.write_bytes(made)
        assert Table(path=str(path), label="y").load(0).train.inputs.tolist() == [[1]]


def test_a_separator_within_quotes_is_none(tmp_path):
    """As in a table of Excel where the decimal sign is a comma."""
    found = load(tmp_path, '"age, in years";"a, b"\n61;x\n44;y\n', label="a, b")
    assert found.columns == ("age, in years",)
    assert found.train.inputs.tolist() == [[61], [44]]


class Title(str):
    """A name of a column that counts how often it is compared."""

    compared = 0
    __hash__ = str.__hash__

    def __eq__(self, other):
        Title.compared += 1
        return str(self) == str(other)


@pytest.mark.parametrize("named", [False, True])
def test_titles_are_compared_once_for_each_column(tmp_path, monkeypatch, named):
    """Not each with each: a table may have 40 000 columns, such as of genes."""
    count = 200
    titles = [Title(f"c{k}") for k in range(count)]
    monkeypatch.setattr(table, "read_header", lambda path: [*titles, "y"])
    monkeypatch.setattr(Title, "compared", 0)
    text = "\n".join([",".join([*titles, "y"]), ",".join(["1"] * count + ["a"])])
    keys = {"inputs": tuple(titles)} if named else {}
    found = load(tmp_path, text, label="y", **keys)
    assert found.train.inputs.tolist() == [[1] * count]
    assert Title.compared < 20 * count


@pytest.mark.parametrize(
    ("old", "new", "keys", "message"),
    [
        ("", "", {"label": "kind"}, "no column 'kind'; found age, dose, smokes, clinic, species"),
        ("", "", {"inputs": ("size",)}, "no column 'size'; found age"),
        ("", "", {"client": None}, ":2: column 'clinic' is 'oslo', expected a number; leave a"),
        ("61", "", {}, r":2: column 'age' is missing \(''\); fill it in, or leave out such rows"),
        (".25", "NaN", {}, r":4: column 'dose' is missing \('NaN'\)"),
        (".25", "inf", {}, ":4: column 'dose' is 'inf', expected a finite number"),
        (".25", "2_5", {}, ":4: column 'dose' is '2_5', expected a number"),
        ("tromso", "", {}, r":5: column 'clinic' is missing \(''\)"),
        ("virginica", "", {}, r":4: column 'species' is missing \(''\)"),
        ("tromso,setosa,train", "a,b,val", {}, ":5: column 'part' is 'val', expected train or t"),
        ("train", "test", {}, "column 'part' says train in no row"),
        ("age", "dose", {}, "two columns are called 'dose'; rename one"),
        ("age", "part", {}, "two columns are called 'part'; found part, dose"),
        ("age", "", {}, "column 1 has no name, as the index of pandas; name the inputs in data.in"),
        ("dose", "Unnamed: 1", {}, "column 2 has no name, as the index of pandas; name the inp"),
        (",oslo", "", {}, ":2: 5 values, the header has 6"),
        (CSV, "", {}, "no column 'species'; found"),
        (CSV, "clinic,species,part\n", {}, "has no column of inputs beside species, clinic, part"),
        (CSV, CSV.split("\n", 1)[0], {}, "has no row below its header"),
        (CSV, "\0\udcff", {}, "not a readable csv file"),
    ],
)
def test_wrong_tables(tmp_path, old, new, keys, message):
    path = tmp_path / "own.csv"
    path.write_bytes(CSV.replace(old, new).encode("utf-8", "surrogateescape"))
    with pytest.raises(DataError, match=message) as caught:
        Table(path=str(path), **{**KEYS, **keys}).load(0)
    assert str(caught.value).startswith(str(path))
    assert "\n" not in str(caught.value)


def test_a_missing_label_among_numbers(tmp_path):
    with pytest.raises(DataError, match=r"own.csv:3: column 'y' is missing \('NA'\)"):
        load(tmp_path, labelled("1.5", "NA", "2"), label="y")
    with pytest.raises(DataError, match=r"own.csv:3: column 'y' is inf, expected a finite number"):
        load(tmp_path, labelled("1.5", "1e999", "2"), label="y")
    with pytest.raises(DataError, match=r"own.csv:4: column 'y' is missing \(''\)"):
        load(tmp_path, "x,y\n\n1,2\n2,\n", label="y")


@pytest.mark.parametrize("label_type", [None, "classes"])
def test_long_integers_are_classes(tmp_path, label_type):
    found = load(tmp_path, labelled(2**70, 5, 2**64), label="y", label_type=label_type)
    assert found.train.labels.tolist() == [2, 0, 1]
    assert f"5 is class 0, {2**64} 1, {2**70} 2" in found.notes[0]


def test_long_integers_are_targets_if_a_float_holds_them(tmp_path):
    found = load(tmp_path, labelled(2**70, 5, 2**64), label="y", label_type="numbers")
    assert found.train.labels.tolist() == [[2.0**70], [5.0], [2.0**64]]
    for label in ("9" * 309, "0" + "9" * 5000):
        with pytest.raises(DataError, match=r"own.csv:3: column 'y' is inf, expected a finite"):
            load(tmp_path, labelled("7", label, "05"), label="y", label_type="numbers")


def test_long_integers_may_be_clients(tmp_path):
    text = f"x,y,who\n1,0,{2**80}\n2,1,7\n3,1,{2**80}\n"
    found = load(tmp_path, text, label="y", client="who")
    assert [rows.tolist() for rows in found.natural] == [[1], [0, 2]]


SEVERAL = "x,a,b\n1,{},{}\n2,{},{}\n"


@pytest.mark.parametrize(
    ("cells", "label_type", "found"),
    [
        ((0.5, 2, 1, 3), None, ("squared", None, [[0.5, 2], [1, 3]])),
        ((0, 2, 1, 3), "numbers", ("squared", None, [[0, 2], [1, 3]])),
        ((0, 1, 1, 1), "bits", ("bits", None, [[False, True], [True, True]])),
        (("True", "false", 1, "TRUE"), "bits", ("bits", None, [[True, False], [True, True]])),
        (("True", "false", "False", "True"), None, ("bits", None, [[True, False], [False, True]])),
        (("u", "w", "w", "v"), "classes", ("tokens", 3, [[0, 2], [2, 1]])),
        ((3, 7, 7, 5), "classes", ("tokens", 3, [[0, 2], [2, 1]])),
    ],
)
def test_several_columns_of_labels(tmp_path, cells, label_type, found):
    text = SEVERAL.format(*cells)
    data = load(tmp_path, text, label=("a", "b"), label_type=label_type)
    assert (data.loss, data.classes, data.train.labels.tolist()) == found
    assert data.train.inputs.tolist() == [[1], [2]]


def test_one_column_of_bits(tmp_path):
    data = load(tmp_path, labelled(1, 0, 1), label="y", label_type="bits")
    assert (data.loss, data.train.labels.tolist()) == ("bits", [[True], [False], [True]])


@pytest.mark.parametrize(
    ("cells", "label_type", "message"),
    [
        ((0, 2, 1, 3), None, "the columns a, b hold integers; expected numbers of which one is no"),
        (("u", 2, "v", 3), None, "the columns a, b hold integers, text; expected"),
        (("u", 2, "v", 3), "classes", "hold integers, text; .* or classes .of one kind"),
        ((0, 2, 1, 1), "bits", ":2: column 'b' is 2, expected 0 or 1, or true or false"),
        (("true", "x", "true", "true"), "bits", ":2: column 'b' is 'x', expected 0 or 1"),
        (("u", 2, "v", 3), "numbers", "column 'a' is 'u', but data.label_type is numbers"),
    ],
)
def test_wrong_columns_of_labels(tmp_path, cells, label_type, message):
    with pytest.raises(DataError, match=message) as caught:
        load(tmp_path, SEVERAL.format(*cells), label=("a", "b"), label_type=label_type)
    assert "\n" not in str(caught.value)


def job(tmp_path, path, **data):
    return write(
        tmp_path,
        data={"kind": "table", "path": str(path), **data},
        model={"name": "linear"},
        rounds=4,
        checkpoint={"every": 2},
        task=None,
    )


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ("label: y, inputs: []", "data: inputs is empty"),
        (
            "label: y, inputs: [age, y]",
            "data: column 'y' is named 2 times by inputs, label and split",
        ),
        ("label: y, inputs: [age, age]", "data: column 'age' is named 2 times"),
        ("label: y, inputs: age", "data.inputs: "),
        ("label: [y, y]", "data: label is ('y', 'y'); name a column, or several different ones"),
        ("label: []", "data: label is (); name a column"),
    ],
)
def test_wrong_keys(tmp_path, refused, keys, message):
    (tmp_path / "job.yaml").write_text(
        f"data: {{kind: table, path: own.csv, {keys}}}\nmodel: {{name: linear}}\n"
        "cohort: {kind: cyclic, size: 1}\nalgorithm: {name: fedavg}\n"
        "local: {lr: 0.1, steps: 1}\nrounds: 1\n"
    )
    assert message in refused("check", tmp_path / "job.yaml")


def test_runs_of_a_table(tmp_path, refused, hpcfl):
    """The same bits on 1 and 2 ranks, and a resume notices another file."""
    values = np.random.default_rng(0).normal(size=(60, 2))
    rows = [f"{p:.3f},{q:.3f},{'b' if p > q else 'a'},k{k % 6}" for k, (p, q) in enumerate(values)]
    path = tmp_path / "own.csv"
    path.write_text("\n".join(["p,q,y,who", *rows]) + "\n")
    made = job(tmp_path, path, label="y", client="who", holdout=0.2, inputs=["p", "q"])
    for ranks in (1, 2):
        ended = finish(ranks, "run", made, "--out", tmp_path / f"run{ranks}")
        assert ended.returncode == 0, ended.stderr
    assert outcome(tmp_path / "run1") == outcome(tmp_path / "run2")
    checked = hpcfl("check", made, "--data")
    assert any("a is class 0, b 1" in line for line in checked.out)
    shown = hpcfl("data", "show", made)
    assert "| 6 clients" in shown.text
    path.write_text("\n".join(["p,q,y,who", *rows[::-1]]) + "\n")
    line = refused("resume", tmp_path / "run1", "rounds=6")
    assert re.match(f"DataError: {path}: its content changed since ", line)
