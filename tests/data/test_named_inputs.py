"""Several inputs of an example: their row of bytes, and how files name them."""

import numpy as np
import pytest
import torch
from torch.func import vmap

from hpcfl.data.fingerprints import digest
from hpcfl.data.named_inputs import NamedInputs
from hpcfl.data.objects import Data
from hpcfl.data.sources.arrays import Arrays
from hpcfl.data.sources.table import Table
from hpcfl.errors import DataError, JobError

RANDOM = np.random.default_rng(0)
IMAGE = RANDOM.random((7, 1, 3, 5)).astype(np.float32)
CODE = RANDOM.integers(-(2**62), 2**62, 7)  # a number an example, which no float holds
IDS = RANDOM.integers(0, 9, (7, 3)).astype(np.int16)
MASK = RANDOM.random((7, 3)) < 0.5
FINE = RANDOM.random((7, 2)) * 1e-300
ALL = {"image": IMAGE, "mask": MASK, "code": CODE, "ids": IDS, "fine": FINE}
Y = np.array([0, 1, 2, 0, 1, 2, 0])


def load(tmp_path, **arrays):
    path = tmp_path / "data.npz"
    np.savez(path, **arrays)
    return Arrays(path=str(path)).load(0)


def named(part, **inputs):
    return {f"{part}.{name}": array for name, array in inputs.items()}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_model_is_given_every_bit(tmp_path, dtype):
    found = load(tmp_path, **named("x", **ALL), y=Y)
    assert found.train.inputs.dtype == torch.uint8
    given = found.named.given(dtype)
    rows = found.transform(found.train.inputs, dtype, None)
    inputs = given.unpack(rows)
    assert [*inputs] == [*ALL]
    for name, array in ALL.items():
        kind = {"f": dtype, "i": torch.int64, "b": torch.bool}[array.dtype.kind]
        expected = torch.from_numpy(array).to(kind)
        assert inputs[name].dtype == kind
        assert torch.equal(inputs[name], expected)
        assert inputs[name].untyped_storage().data_ptr() == rows.untyped_storage().data_ptr()
        # As for the batches of a block's clients, and for each alone.
        stacked = vmap(lambda own, name=name: given.unpack(own)[name])(rows[:6].view(3, 2, -1))
        assert torch.equal(stacked, expected[:6].unflatten(0, (3, 2)))
        assert torch.equal(given.unpack(rows[3:4])[name], expected[3:4])
    assert f"{given}".startswith(f"image {str(dtype)[6:]}[1, 3, 5], mask bool[3], code int64[], ")


def test_tests_may_be_of_another_width(tmp_path):
    wide = IDS.astype(np.int64) + 2**40
    found = load(
        tmp_path, **named("x", ids=IDS, mask=MASK), y=Y, **named("x_test", mask=MASK, ids=wide),
        y_test=Y,
    )  # fmt: skip
    assert torch.equal(found.named.unpack(found.test.inputs)["ids"], torch.from_numpy(wide))
    assert found.named.unpack(found.train.inputs)["ids"].tolist() == IDS.tolist()


def test_names_are_in_the_digest(tmp_path):
    digests = {
        digest(load(tmp_path, **named("x", **inputs), y=Y))
        for inputs in ({"a": IDS, "b": MASK}, {"b": IDS, "a": MASK}, {"a": IDS, "c": MASK})
    }
    assert len(digests) == 3


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"x": IDS, **named("x", ids=IDS)}, r"found 'x' and 'x\.ids', expected the one or the"),
        (named("x", **{"2d": IDS}), r"an input is called '2d', expected the name of an argument"),
        (named("x", ids=IDS, mask=MASK[:5]), r"have \{'ids': 7, 'mask': 5\} examples"),
        (named("x", ids=IDS[:, :0]), r"an example of ids has the shape \(0,\), which holds no"),
        (named("x", ids=IDS[:5]), r"x has 5 rows but y has shape \(7,\)"),
        (named("x", fine=np.full((7, 2), np.inf)), "x.fine is not finite in row 0"),
        (
            {**named("x", ids=IDS, mask=MASK), "x_test": IDS, "y_test": Y},
            r"x has the inputs ids, mask, x_test has \(one without a name\); expected the same",
        ),
        (
            {**named("x", ids=IDS), **named("x_test", ids=FINE[:, [0, 1, 0]]), "y_test": Y},
            r"x_test\.ids holds floats, x\.ids integers; expected the same",
        ),
        (
            {**named("x", ids=IDS), **named("x_test", ids=IDS[:, :2]), "y_test": Y},
            r"x_test\.ids holds examples of shape \(2,\), x\.ids of shape \(3,\)",
        ),
        (
            {**named("x", ids=IDS), **named("x_test", ids=IDS)},
            "x_test and y_test go together, found only one",
        ),
    ],
)
def test_what_is_wrong_is_one_line(tmp_path, arrays, message):
    with pytest.raises(DataError, match=message) as caught:
        load(tmp_path, **arrays, y=Y)
    assert "\n" not in str(caught.value)


def test_integers_are_what_they_are(tmp_path):
    path = tmp_path / "data.npz"
    np.savez(path, **named("x", ids=IDS), y=Y)
    with pytest.raises(JobError, match=r"data\.integers: is of one input; .+; remove it"):
        Arrays(path=str(path), integers=True).load(0)


class Items:
    def __init__(self, *items):
        self.items = items

    def __len__(self):
        return len(self.items)

    def __getitem__(self, index):
        return self.items[index]


def test_lists_are_filled_up():
    x = {"ids": [[5, 2], [7], [1, 3, 4]], "mask": [[True] * 2, [True], [True] * 3], "n": [2, 1, 3]}
    found = Data(({**x, "mask": [[1] * 2, [1], [1] * 3]}, [0, 1, 0])).arrays()
    assert found["x.ids"].tolist() == [[5, 2, 0], [7, 0, 0], [1, 3, 4]]
    assert found["x.mask"].tolist() == [[1, 1, 0], [1, 0, 0], [1, 1, 1]]
    assert found["x.n"].tolist() == [2, 1, 3]
    with pytest.raises(DataError, match=r"train, x\['mask'\]: list 0 is \[True, True\], expected"):
        Data((x, [0, 1, 0])).arrays()


def test_items_may_be_dicts():
    items = Items(*(({"ids": [1 + k] * (1 + k), "age": 0.5 * k}, k % 2) for k in range(3)))
    found = Data(items, ({"ids": [[4]], "age": [1.5]}, [1])).arrays()
    assert found["x.ids"].tolist() == [[1, 0, 0], [2, 2, 0], [3, 3, 3]]
    assert found["x_test.ids"].tolist() == [[4, 0, 0]]
    assert found["x.age"].tolist() == [0, 0.5, 1]
    for wrong, message in (
        (Items(({"a": 1}, 0), ({"b": 1}, 1)), "item 1 has the inputs b, item 0 a; expected the"),
        (Items(({}, 0)), "x is an empty dict, expected one input at least"),
        (({}, []), "x is an empty dict, expected one input at least"),
    ):
        with pytest.raises(DataError, match=message):
            Data(wrong).arrays()


ROWS = [(61, 0.5, 3, True, "ill"), (44, 2.0, 1, False, "well"), (52, 0.25, 2, True, "well")]
COLUMNS = ("age", "dose", "ward", "smokes", "diagnosis")
GROUPS = {"numbers": ("dose", "age"), "codes": ("ward",), "truth": ("smokes",)}


def of_csv(path):
    lines = [COLUMNS, *ROWS]
    path.write_text("".join(",".join(map(str, line)) + "\n" for line in lines))


def of_parquet(path):
    pyarrow = pytest.importorskip("pyarrow", reason="pyarrow is absent")
    columns = dict(zip(COLUMNS, zip(*ROWS, strict=True), strict=True))
    pytest.importorskip("pyarrow.parquet").write_table(pyarrow.table(columns), path)


@pytest.mark.parametrize(("make", "ending"), [(of_csv, "csv"), (of_parquet, "parquet")])
def test_columns_of_a_table(tmp_path, make, ending):
    path = tmp_path / f"own.{ending}"
    make(path)
    found = Table(path=str(path), label="diagnosis", inputs=GROUPS).load(0)
    given = found.named.given(torch.float32)
    inputs = given.unpack(found.transform(found.train.inputs, torch.float32, None))
    assert f"{given}" == "numbers float32[2], codes int64[1], truth float32[1]"
    assert inputs["numbers"].tolist() == [[0.5, 61], [2, 44], [0.25, 52]]
    assert inputs["codes"].tolist() == [[3], [1], [2]]
    assert inputs["truth"].tolist() == [[1], [0], [1]]


def test_integers_of_a_csv_are_exact(tmp_path):
    path = tmp_path / "own.csv"
    for value, refused in ((2**53 - 1, False), (2**53, True), (2**53 + 1, True)):
        path.write_text(f"code,y\n1,a\n{value},b\n")
        table = Table(path=str(path), label="y", inputs={"codes": ("code",)})
        if refused:
            with pytest.raises(DataError, match=r"data\.inputs\.codes has integers of 2\^53 or"):
                table.load(0)
        else:
            found = table.load(0)
            assert found.named.unpack(found.train.inputs)["codes"].tolist() == [[1], [value]]


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({}, "inputs is empty"),
        ({"a": ()}, "inputs is empty"),
        ({"a": ("age",), "b": ("age",)}, "column 'age' is named 2 times"),
        ({"a": ("diagnosis",)}, "column 'diagnosis' is named 2 times"),
    ],
)
def test_groups_that_cannot_be(inputs, message):
    with pytest.raises(ValueError, match=message):
        Table(path="own.csv", label="diagnosis", inputs=inputs)


def test_a_module_unpacks_its_own_rows_alone():
    tensors = {"ids": torch.tensor([[1, 2]]), "scale": torch.tensor([0.5])}
    given = NamedInputs.of("data", tensors)

    class Net(torch.nn.Module):
        def forward(self, ids, scale):
            return ids.view(-1).sum() * scale

    model = Net()
    given.call_by_name(model)
    assert model(given.pack(tensors)).tolist() == model(**tensors).tolist() == [1.5]
