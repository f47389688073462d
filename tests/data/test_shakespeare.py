from pathlib import Path

import h5py
import numpy as np
import pytest
import torch

from hpcfl.data.partition import File, Iid, Natural, Pooled
from hpcfl.data.sources.shakespeare import ALPHABET, Shakespeare, encode
from hpcfl.data.split import keep_natural_clients, partition_examples
from hpcfl.errors import DataError, JobError
from tests.real_data import real

ROOT = Path(__file__).parents[2]
LINE = b"To be, or not to be: that is the question; whether 'tis nobler in the mind to suffer"
TRAIN = {"HAMLET": [LINE, b"the slings"], "OPHELIA": [b"short"], "GHOST": [LINE + LINE]}
TEST = {"HAMLET": [LINE], "GHOST": [LINE], "YORICK": [LINE + b"!"]}


def write(root, name, roles, dtype=None):
    with h5py.File(root / f"shakespeare_{name}.h5", "w") as file:
        for role, snippets in roles.items():
            file.create_dataset(f"examples/{role}/snippets", data=snippets, dtype=dtype)


@pytest.fixture
def root(tmp_path):
    write(tmp_path, "train", TRAIN)
    write(tmp_path, "test", TEST)
    return tmp_path


def decode(codes):
    return "".join(ALPHABET[code] for code in codes).encode()


def test_the_alphabet_is_leafs():
    assert len(ALPHABET) == len(set(ALPHABET)) == 80
    assert decode(encode(LINE)) == LINE
    assert encode(b"\n }").tolist() == [0, 1, 79]


def test_an_unknown_character_is_the_last_class_and_spaces_collapse():
    assert encode(b"a\xe9#~").tolist() == [ALPHABET.index("a"), 79, 79, 79]
    assert decode(encode(b"a   b  c d")) == b"a b c d"


@pytest.mark.parametrize("dtype", [None, h5py.string_dtype("utf-8")])
def test_windows_by_hand(root, dtype):
    write(root, "train", TRAIN, dtype)
    dataset = Shakespeare(root=str(root)).load(0)
    texts = {role: b"\n".join(lines) for role, lines in TRAIN.items()}
    assert len(dataset.natural) == 2  # OPHELIA has not one window; roles in the order of names
    for rows, role in zip(dataset.natural, ["GHOST", "HAMLET"], strict=True):
        text = texts[role]
        assert len(rows) == len(text) - 80
        for k, row in enumerate(rows):
            assert decode(dataset.train.inputs[row]) == text[k : k + 80]
            assert decode([dataset.train.labels[row]]) == text[k + 80 : k + 81]
    assert (dataset.classes, dataset.loss) == (80, "cross_entropy")
    assert dataset.train.labels.dtype == torch.int64


def test_windows_take_no_memory(root):
    inputs = Shakespeare(root=str(root)).load(0).train.inputs
    assert inputs.dtype == torch.uint8
    assert inputs.stride() == (1, 1)
    assert inputs.untyped_storage().nbytes() < 2 * len(inputs)


def test_the_transform_keeps_characters_integers(root):
    dataset = Shakespeare(root=str(root)).load(0)
    inputs = dataset.transform(dataset.train.inputs[:3], torch.float32, None)
    assert inputs.dtype == torch.int64
    assert torch.equal(inputs, dataset.train.inputs[:3].long())


def test_the_test_text_of_all_roles_or_of_those_chosen(root):
    everyone = Shakespeare(root=str(root)).load(0).test
    assert len(everyone.inputs) == 3 * (len(LINE) - 80) + 1
    chosen = Shakespeare(root=str(root), min_examples=80, max_test_examples=3).load(0)
    assert [len(rows) for rows in chosen.natural] == [88]
    assert len(chosen.test.inputs) == 3
    assert decode(chosen.test.inputs[2]) == LINE[2:82]


def test_max_examples_keeps_the_first(root):
    whole = Shakespeare(root=str(root)).load(0)
    some = Shakespeare(root=str(root), max_examples=5).load(0)
    assert [list(rows) for rows in some.natural] == [list(rows[:5]) for rows in whole.natural]


def texts(examples):
    return [decode(text) for text in examples.inputs]


def test_the_tests_of_each_role(root):
    """In the order of the roles: GHOST's 4 windows follow none of HAMLET's in the test set."""
    dataset = Shakespeare(root=str(root)).load(0)
    assert [len(rows) for rows in dataset.natural_tests] == [4, 4]
    write(root, "test", {"YORICK": [LINE], "HAMLET": [LINE + b"!"]})
    dataset = Shakespeare(root=str(root)).load(0)
    assert [rows.tolist() for rows in dataset.natural_tests] == [[], [0, 1, 2, 3, 4]]


@pytest.mark.parametrize("seed", range(4))
def test_training_and_tests_of_the_drawn_roles_alone(root, seed):
    """GHOST has 88 training and 4 test windows, HAMLET 15 and 5; the test text tells who it is."""
    write(root, "test", {"GHOST": [LINE], "HAMLET": [b"?" + LINE], "YORICK": [LINE]})
    plain = Shakespeare(root=str(root), clients=1)
    (expected,) = partition_examples(plain, plain.load(seed), seed).rows
    mine = Shakespeare(root=str(root), natural_clients=1)
    dataset = keep_natural_clients(mine, mine.load(seed), seed)
    (drawn,) = partition_examples(mine, dataset, seed).rows
    assert np.array_equal(drawn, expected)  # the split's draw
    trained, tested = {88: (88, 4), 15: (15, 5)}[len(drawn)]
    assert len(dataset.test.labels) == tested
    assert texts(dataset.test)[0] == (b"?" + LINE if tested == 5 else LINE)[:80]
    assert [rows.tolist() for rows in dataset.natural_tests] == [list(range(tested))]
    assert dataset.notes == (
        f"1 of 2 natural clients drawn: {trained} training and {tested} test examples are theirs, "
        "the others are not used",
    )
    for partition in (Pooled(), Iid(), Natural()):
        config = Shakespeare(root=str(root), natural_clients=1, partition=partition)
        assert config.population == 1
        found = keep_natural_clients(config, config.load(seed), seed)
        (rows,) = partition_examples(config, found, seed).rows
        assert np.array_equal(rows, expected)  # all of the role's examples, and of no other
        assert texts(found.test) == texts(dataset.test)


def test_both_roles_are_drawn_by_some_seed(root):
    config = Shakespeare(root=str(root), natural_clients=1)
    whole = config.load(0)
    sizes = {len(keep_natural_clients(config, whole, seed).natural[0]) for seed in range(4)}
    assert sizes == {88, 15}


def test_the_seed_of_the_partition_draws_the_roles(root):
    drawn = {}
    for own in range(4):
        for kind in (Natural, Pooled):
            config = Shakespeare(root=str(root), natural_clients=1, partition=kind(seed=own))
            found = keep_natural_clients(config, config.load(9), 9)
            drawn.setdefault(own, []).append(len(found.natural[0]))
    assert {len(set(sizes)) for sizes in drawn.values()} == {1}
    assert {sizes[0] for sizes in drawn.values()} == {88, 15}


def test_natural_clients_that_cannot_be_had(root, tmp_path):
    config = Shakespeare(root=str(root), natural_clients=3)
    with pytest.raises(JobError, match=r"natural_clients is 3, but the data set has 2 clients"):
        keep_natural_clients(config, config.load(0), 0)
    write(root, "test", {"YORICK": [LINE]})
    config = Shakespeare(root=str(root), natural_clients=2)
    with pytest.raises(JobError, match="none of the 2 drawn clients has a test example"):
        keep_natural_clients(config, config.load(0), 0)
    with pytest.raises(ValueError, match="the file of the partition says which examples are used"):
        Shakespeare(root=str(root), natural_clients=2, partition=File(path="split.npz"))


def test_check_and_show_tell_the_drawn_roles(root, tmp_path, hpcfl):
    job = ROOT / "jobs/shakespeare/fedavg_noniid.yaml"
    keys = [f"data.root={root}", "data.min_examples=null", "data.clients=null", "cohort.size=1"]
    keys += ["data.natural_clients=1"]
    said = hpcfl("check", job, *keys, "--data").out
    assert any("1 of 2 natural clients drawn: " in line for line in said)
    (examples,) = (line for line in said if line.startswith("examples"))
    config = Shakespeare(root=str(root), natural_clients=1)
    size = len(keep_natural_clients(config, config.load(0), 0).natural[0])
    assert examples.endswith(f"; {size} in all, 4 for testing")
    said = hpcfl("data", "show", job, *keys, "--plot", tmp_path / "p.png").out
    assert any(line.startswith("note: 1 of 2 natural clients drawn: ") for line in said)


def test_no_role_is_long_enough(root):
    with pytest.raises(JobError, match=r"no role of .* has 1000 examples; the largest has 88"):
        Shakespeare(root=str(root), min_examples=1000).load(0)


def change(root, act):
    with h5py.File(root / "shakespeare_train.h5", "a") as file:
        act(file)


def link_outside(file):
    file["examples/EVIL"] = h5py.ExternalLink("shakespeare_test.h5", "examples/HAMLET")


def keep_outside(file):
    del file["examples/HAMLET/snippets"]
    file["examples/HAMLET"].create_dataset(
        "snippets", (2,), "S4", external=[("/etc/hostname", 0, 8)]
    )


def virtual(file):
    del file["examples/HAMLET/snippets"]
    layout = h5py.VirtualLayout((1,), "S84")
    layout[:] = h5py.VirtualSource("shakespeare_test.h5", "examples/HAMLET/snippets", (1,))
    file["examples/HAMLET"].create_virtual_dataset("snippets", layout)


def numbers(file):
    del file["examples/HAMLET/snippets"]
    file["examples/HAMLET/snippets"] = [1, 2]


def scalar(file):
    del file["examples/HAMLET/snippets"]
    file["examples/HAMLET/snippets"] = b"text"


def group(file):
    del file["examples/HAMLET/snippets"]
    file.create_group("examples/HAMLET/snippets")


def bomb(file):
    del file["examples/HAMLET/snippets"]
    file["examples/HAMLET"].create_dataset("snippets", (1 << 40,), "S84", chunks=(1 << 10,))


def empty(file):
    del file["examples"]
    file.create_group("examples")


@pytest.mark.parametrize(
    ("act", "message"),
    [
        (lambda file: file.pop("examples"), "expected 'examples' in / of the file itself"),
        (lambda file: file.pop("examples/HAMLET/snippets"), "expected 'snippets' in /examples/HAM"),
        (link_outside, "expected 'EVIL' in /examples of the file itself"),
        (keep_outside, "keeps its data in another file"),
        (virtual, "keeps its data in another file"),
        (numbers, r"snippets is int64 of shape \(2,\), expected a list of strings"),
        (scalar, "expected a list of strings"),
        (group, "/examples/HAMLET/snippets is no dataset"),
        (bomb, r"claims 92358976733184 bytes, the file holds 0"),
        (empty, "the group 'examples' holds no role"),
    ],
)
def test_hostile_and_broken_files(root, act, message):
    change(root, act)
    with pytest.raises(DataError, match=message) as caught:
        Shakespeare(root=str(root)).load(0)
    assert str(root / "shakespeare_train.h5") in str(caught.value)
    assert "\n" not in str(caught.value)


def test_missing_truncated_and_scrambled_files(root):
    path = root / "shakespeare_train.h5"
    whole = path.read_bytes()
    for content in (b"", b"text", whole[:600], whole[: len(whole) // 2]):
        path.write_bytes(content)
        with pytest.raises(DataError, match=r"shakespeare_train\.h5: not a readable") as caught:
            Shakespeare(root=str(root)).load(0)
        assert "\n" not in str(caught.value)
    path.unlink()
    with pytest.raises(DataError, match=r"shakespeare_train\.h5: there is no such file"):
        Shakespeare(root=str(root)).load(0)


@pytest.mark.slow
def test_the_fedhbm_papers_recipe_on_real_data():
    root = str(real("shakespeare_train.h5").parent)
    config = Shakespeare(root=root, min_examples=2000, max_examples=2000, clients=100)
    dataset = config.load(0)
    assert len(dataset.natural) == 241
    clients = partition_examples(config, dataset, 0).rows
    assert [len(rows) for rows in clients] == [2000] * 100
    assert all(np.array_equal(rows, np.arange(rows[0], rows[0] + 2000)) for rows in clients)
    iid = Shakespeare(root=root, min_examples=2000, clients=100, partition=Iid(examples=2000))
    mixed = partition_examples(iid, iid.load(0), 0).rows
    assert len(np.unique(np.concatenate(mixed))) == 200_000
