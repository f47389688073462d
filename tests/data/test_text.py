"""Texts of a user's own: windows by hand, clients, tests, tokenizers, Hugging Face data sets."""

import csv
import json
import math
import sys
import tempfile

import pytest
import torch
from torch.nn.functional import cross_entropy

from hpcfl import load_model
from hpcfl.data import plain_copy, tokenizer
from hpcfl.data import split as splits
from hpcfl.data.fingerprints import digest
from hpcfl.data.sources.text import Text
from hpcfl.errors import DataError, JobError
from hpcfl.job.load import load as load_job
from hpcfl.tools.plan.data import planned_job, read_sizes

POEM = "The cat sat on the mat.\n"  # 24 bytes


def write(path, text=POEM):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def load(path, length=4, **keys):
    return Text(path=f"{path}", length=length, **keys).load(0)


def shown(examples, rows=slice(None)):
    """Inputs and labels of these rows, as texts."""
    pairs = zip(examples.inputs[rows], examples.labels[rows], strict=True)
    return [tuple(bytes(part.tolist()).decode() for part in pair) for pair in pairs]


def test_windows_of_a_file(tmp_path):
    found = load(write(tmp_path / "poem.txt"))
    assert shown(found.train) == [
        ("The ", "he c"),
        ("cat ", "at s"),
        ("sat ", "at o"),
        ("on t", "n th"),
        ("he m", "e ma"),
    ]
    assert (found.classes, found.loss, found.padding) == (256, "tokens", None)
    assert (found.test, found.natural, found.natural_tests) == (None, None, None)
    assert found.notes == (
        "data: 3 of 24 training tokens fill no window and are left out",
        "data: there is no test text (data.test_share, data.test_path): nothing is scored on one",
    )
    # The label of the last place is the 25th token.
    assert len(load(write(tmp_path / "poem.txt", POEM + "A")).train.labels) == 6


def test_tokens_are_kept_in_a_byte_and_given_as_int64(tmp_path):
    found = load(write(tmp_path / "poem.txt"), 8)
    inputs, labels = found.train
    assert inputs.dtype == labels.dtype == torch.uint8
    assert inputs.untyped_storage().data_ptr() == labels.untyped_storage().data_ptr()
    assert inputs.untyped_storage().nbytes() == 2 * 9
    given = found.transform(inputs, torch.float32, None)
    assert given.dtype == torch.int64
    assert torch.equal(given, inputs.long())


def folder(root, texts):
    for name, text in texts.items():
        write(root / name, text)
    return root


@pytest.fixture
def clients(tmp_path):
    """Ann has two files, Bob one, and Cy too little for a window."""
    root = tmp_path / "texts"
    write(root / "ann/2.txt", "fghij")
    write(root / "ann/1.txt", "abcde")
    write(root / "ann/.hidden.txt", "no text")
    write(root / "bob.txt", "0123456789")
    write(root / "cy.txt", "wxyz")
    write(root / "README.md", "no text either")
    write(root / ".git/x.txt", "nor this")
    return root


def test_clients_of_a_folder(clients):
    found = load(clients)
    assert [shown(found.train, rows) for rows in found.natural] == [
        [("abcd", "bcde"), ("e\nfg", "\nfgh")],
        [("0123", "1234"), ("4567", "5678")],
    ]
    assert found.notes[:2] == (
        "data: 1 of 3 clients have no window, and are left out: cy",
        "data: 7 of 25 training tokens fill no window and are left out",
    )
    joined = load(clients, separator="--")
    assert shown(joined.train, joined.natural[0]) == [("abcd", "bcde"), ("e--f", "--fg")]


def test_the_end_of_each_text_is_for_tests(clients):
    """The text is cut, so that no token of a test is in a window of the training."""
    found = load(clients, 3, test_share=0.4)
    # Of 11 tokens of Ann 4 are for tests, of 10 of Bob 4, of 4 of Cy 2.
    assert [shown(found.train, rows) for rows in found.natural] == [
        [("abc", "bcd"), ("de\n", "e\nf")],
        [("012", "123")],
    ]
    assert [shown(found.test, rows) for rows in found.natural_tests] == [
        [("ghi", "hij")],
        [("678", "789")],
    ]
    assert found.notes[1:] == (
        "data: 4 of 15 training tokens fill no window and are left out",
        "data: 2 of 10 test tokens fill no window and are left out",
    )


def test_texts_for_tests_of_a_path(clients, tmp_path):
    tests = folder(
        tmp_path / "tests", {"dan.txt": "ABCDEF", "bob.txt": "GHIJKL", "cy/1.txt": "MNOPQR"}
    )
    found = load(clients, test_path=f"{tests}")
    # In the order of the names; of Dan and Cy nobody trains.
    assert [pair[0] for pair in shown(found.test)] == ["GHIJ", "MNOP", "ABCD"]
    assert [rows.tolist() for rows in found.natural_tests] == [[], [0]]
    one = load(clients, test_path=f"{tests / 'dan.txt'}")
    assert (shown(one.test), one.natural_tests) == ([("ABCD", "BCDE")], None)
    one = load(clients / "bob.txt", test_path=f"{tests}")
    assert (len(one.test.labels), one.natural, one.natural_tests) == (3, None, None)


def test_tests_of_the_clients_that_train(clients):
    config = Text(path=f"{clients}", length=3, test_share=0.4, clients=1)
    found = config.load(0)
    split = splits.split_examples(config, found, 0)
    (rows,), (tests,) = split.rows, splits.tests_of_clients(config, found, split, 0)
    assert {
        bytes(found.train.inputs[rows[0]].tolist()),
        bytes(found.test.inputs[tests[0]].tolist()),
    } in (
        {b"abc", b"ghi"},
        {b"012", b"678"},
    )


def test_a_file_is_dealt_in_pieces(tmp_path):
    """Client k has the k-th piece of the text, if the job does not say otherwise."""
    write(tmp_path / "digits.txt", bytes(range(48, 48 + 33)))
    config = Text(path=f"{tmp_path / 'digits.txt'}", length=4, clients=3)
    found = config.load(0)
    rows = splits.partition_examples(config, found, 0).rows
    assert [own.tolist() for own in rows] == [[0, 1, 2], [3, 4, 5], [6, 7]]
    with pytest.raises(JobError, match="9 clients, but only 8 training examples: client 8 would h"):
        splits.partition_examples(Text(path=config.path, length=4, clients=9), found, 0)


def trained(path, *, words=("the", "cat", "sat", "on", "mat"), unknown="[UNK]"):
    """A tokenizer.json of words; [UNK] is 0, and the others follow."""
    tokenizers = pytest.importorskip("tokenizers", reason="tokenizers is absent")
    vocabulary = {word: k for k, word in enumerate(("[UNK]", *words))}
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token=unknown))
    made.normalizer = tokenizers.normalizers.Lowercase()
    made.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    made.add_special_tokens(["<|end|>"])  # token 6
    made.post_processor = tokenizers.processors.TemplateProcessing(
        single="<|end|> $A", special_tokens=[("<|end|>", 6)]
    )
    made.enable_truncation(3)
    made.enable_padding(length=9)
    made.save(f"{path}")
    return f"{path}"


def test_tokens_of_a_file(tmp_path):
    """Neither cut off, nor filled up, nor with tokens before each text."""
    words = trained(tmp_path / "tokenizer.json")
    folder(tmp_path / "texts", {"ann/1.txt": "The cat sat on", "ann/2.txt": "the mat"})
    found = load(tmp_path / "texts", 3, tokenizer=words, separator=" <|end|> ")
    assert found.train.inputs.tolist() == [[1, 2, 3], [4, 6, 1]]
    assert found.train.labels.tolist() == [[2, 3, 4], [6, 1, 5]]
    assert (found.classes, found.train.inputs.dtype) == (7, torch.uint8)
    write(tmp_path / "dog.txt", "the dog sat")
    assert load(tmp_path / "dog.txt", 2, tokenizer=words).train.labels.tolist() == [[0, 3]]


@pytest.mark.parametrize(
    ("words", "dtype"),
    [(249, torch.uint8), (250, torch.int16), (2**15 - 7, torch.int16), (2**15 - 6, torch.int32)],
)
def test_tokens_are_kept_in_the_smallest_type(tmp_path, words, dtype):
    names = [f"w{k}" for k in range(words)]
    made = trained(tmp_path / "tokenizer.json", words=("the", "cat", "sat", "on", "mat", *names))
    write(tmp_path / "last.txt", f"the cat {names[-1]}")
    found = load(tmp_path / "last.txt", 2, tokenizer=made)
    assert found.train.inputs.dtype == dtype
    assert found.train.labels.tolist() == [[2, words + 5]]


def test_a_long_text_is_read_by_line(tmp_path, monkeypatch):
    """Of a line longer than a piece no word is cut, and of such a word no character."""
    monkeypatch.setattr(tokenizer, "_PIECE", 16)
    text = "the cat\nsat on\nthe cat sat on the mat\n" + "\u00e9\u20ac\U0001f600" * 9 + "\ncat\n"
    pieces = [piece.decode() for piece in tokenizer._pieces(text.encode())]
    assert "".join(pieces) == text
    assert pieces[:4] == [
        "the cat\nsat on\n",
        "the cat sat on",
        " the mat\n",
        "\u00e9\u20ac\U0001f600\u00e9\u20ac",
    ]
    assert max(len(piece.encode()) for piece in pieces) <= 16
    write(tmp_path / "long.txt", "the cat sat on the mat\n" * 40)
    words = trained(tmp_path / "tokenizer.json")
    found = load(tmp_path / "long.txt", 6, tokenizer=words)
    assert found.train.inputs.flatten().tolist() == [1, 2, 3, 4, 1, 5] * 39
    assert load(tmp_path / "long.txt", 22).train.labels.shape == (41, 22)


def rows_of(columns, path, **more):
    datasets = pytest.importorskip("datasets", reason="datasets is absent")
    datasets.disable_progress_bars()
    parts = {
        name: datasets.Dataset.from_dict(part) for name, part in {"train": columns, **more}.items()
    }
    datasets.DatasetDict(parts).save_to_disk(path)
    return path


ROWS = {"text": ["abcde", "012", "fghij", "3456789"], "who": [10, 9, 10, 9]}


def test_rows_of_hugging_face(tmp_path):
    path = rows_of(ROWS, tmp_path / "set", test={"text": ["ABCDE"], "who": [10]})
    found = load(path, client="who")
    assert [shown(found.train, rows)[0][0] for rows in found.natural] == ["012\n", "abcd"]
    assert [rows.tolist() for rows in found.natural_tests] == [[], [0]]
    assert shown(found.test) == [("ABCD", "BCDE")]
    found = load(path)  # all rows are one text
    assert (len(found.train.labels), found.natural, found.natural_tests) == (5, None, None)
    assert shown(found.train, slice(2)) == [("abcd", "bcde"), ("e\n01", "\n012")]
    found = load(path, test_share=0.5, separator="")
    assert shown(found.train) == [("abcd", "bcde"), ("e012", "012f")]
    assert shown(found.test) == [("hij3", "ij34"), ("4567", "5678")]


def test_a_parquet_file_of_texts(tmp_path):
    datasets = pytest.importorskip("datasets", reason="datasets is absent")
    datasets.disable_progress_bars()
    datasets.Dataset.from_dict({"poem": ROWS["text"]}).to_parquet(tmp_path / "poems.parquet")
    assert len(load(tmp_path / "poems.parquet", column="poem").train.labels) == 5
    with pytest.raises(DataError, match="train: no column 'text'; found poem"):
        load(tmp_path / "poems.parquet")


def test_the_test_split_may_name_no_clients(tmp_path):
    path = rows_of(ROWS, tmp_path / "set", test={"text": ["ABCDE"]})
    found = load(path, client="who")
    assert (len(found.test.labels), found.natural_tests) == (1, None)
    with pytest.raises(DataError, match=r"column 'who' holds Value\('int64'\), expected text"):
        load(path, column="who")
    with pytest.raises(DataError, match="has no split 'dev'; found train, test"):
        load(path, test="dev")


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"test_share": 0.1, "test_path": "x"}, "test_share and test_path both say what to test"),
        ({"test_share": 0.1, "test": "x"}, "test_share and test both say what to test on"),
        ({"holdout": 0.1}, r"holdout draws windows .* say test_share: 0\.1, which cuts the end"),
    ],
)
def test_keys_that_do_not_go_together(keys, message):
    with pytest.raises(ValueError, match=message):
        Text(path="x", length=4, **keys)


@pytest.mark.parametrize(
    ("text", "keys", "message"),
    [
        (None, {}, r"own\.txt: cannot be read: No such file or directory"),
        ("", {}, "of 4 needs 5 tokens, but the longest training text has 0; set it lower"),
        ("abcd", {}, "of 4 needs 5 tokens, but the longest training text has 4; set it lower"),
        ("abcdef", {"test_share": 0.1}, "of 4 needs 5 tokens, but the longest test text has 1"),
        (b"ab\xe4cd", {}, r"own\.txt: byte 2, 0xe4, is not of a text in UTF-8 \(inval.*; iconv"),
        (b"abcde\xe2\x82", {}, "byte 5, 0xe2, is not of a text in UTF-8"),
        (
            POEM,
            {"client": "who"},
            r"data\.client: is of a Hugging Face data set, and .*own\.txt is",
        ),
        (POEM, {"column": "poem"}, r"data\.column: is of a Hugging Face data set"),
        (POEM, {"test_path": "no.txt"}, r"no\.txt: cannot be read: No such file"),
        (
            POEM,
            {"tokenizer": "gpt2"},
            "gpt2: cannot be read: No such .*; expected bytes, or the pa",
        ),
        (
            POEM,
            {"tokenizer": "."},
            r"cannot be read: it is a directory, .*; expected bytes, or the",
        ),
        (POEM, {"tokenizer": "bad.json"}, r"bad\.json: .+; expected bytes, or the path of a token"),
        (POEM, {"tokenizer": "two.json"}, r"two\.json: .+; expected bytes, or the path of a token"),
        (POEM, {"tokenizer": "words.json"}, r"own\.txt: .*words\.json cannot read it: .*\[UNK\]"),
    ],
)
def test_what_is_wrong_is_one_line(tmp_path, monkeypatch, text, keys, message):
    monkeypatch.chdir(tmp_path)
    if "tokenizer" in keys:
        trained(tmp_path / "words.json", words=("the",), unknown="absent")
    (tmp_path / "bad.json").write_bytes(b"\xff")
    (tmp_path / "two.json").write_text(json.dumps({"model": 3}))
    if text is not None:
        write(tmp_path / "own.txt", text)
    keys = {
        key: f"{tmp_path / value}" if key in ("tokenizer", "test_path") else value
        for key, value in keys.items()
    }
    with pytest.raises((DataError, JobError), match=message) as caught:
        load(tmp_path / "own.txt", **keys)
    assert "\n" not in str(caught.value)


def test_the_package_of_tokenizers_is_an_extra(tmp_path, monkeypatch):
    words = trained(tmp_path / "tokenizer.json")
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    assert load(write(tmp_path / "poem.txt")).classes == 256
    needed = r"json needs the package tokenizers, which .*; pip install 'hpcfl\[tokenizers\]'$"
    with pytest.raises(JobError, match=needed):
        load(tmp_path / "poem.txt", tokenizer=words)


def test_the_separator_is_shown_in_one_line(hpcfl):
    assert 'separator = "\\n" ' in hpcfl("list", "text").text


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        ({"README": POEM}, r"texts: has no \.txt file and no folder; expected CLIENT\.txt or CLI"),
        ({"ann.txt": POEM, "bob/notes.md": POEM}, r"texts/bob: has no \.txt file; expected texts"),
        ({"ann.txt": POEM, "ann/1.txt": POEM}, r"has a folder ann and a file ann\.txt; expected "),
        (
            {"ann/1.txt": POEM, "ann/2.txt": b"ok\n\xff"},
            r"texts/ann/2\.txt: byte 3, 0xff, is not of a text in UTF-8",
        ),
    ],
)
def test_wrong_folders(tmp_path, texts, message):
    with pytest.raises(DataError, match=message):
        load(folder(tmp_path / "texts", texts))


GPT = """\
import torch
from torch import nn


class Gpt(nn.Module):
    def __init__(self, input_shape, outputs, width=8):
        super().__init__()
        self.token = nn.Embedding(outputs, width)
        self.place = nn.Parameter(torch.zeros(*input_shape, width))
        self.query, self.out = nn.Linear(width, width), nn.Linear(width, outputs)

    def forward(self, tokens):
        seen = self.token(tokens) + self.place
        attended = nn.functional.scaled_dot_product_attention(
            self.query(seen), seen, seen, is_causal=True
        )
        return self.out(seen + attended)
"""
JOB = """\
data: {{kind: text, path: {path}, length: 8, test_share: 0.25}}
model: {{name: module, of: gpt_of_a_test.Gpt}}
cohort: {{kind: uniform, size: 2}}
algorithm: {{name: fedavg}}
local: {{steps: 3, batch_size: 2, lr: 0.5}}
precision: float64
rounds: 4
evaluate: {{every: 1, clients: table}}
checkpoint: {{every: 2}}
"""


@pytest.fixture
def text_job(tmp_path, monkeypatch):
    """A job on the texts of three clients."""
    (tmp_path / "gpt_of_a_test.py").write_text(GPT)
    monkeypatch.syspath_prepend(tmp_path)
    lines = {f"{name}.txt": f"{name} sat on the mat. " * 12 for name in ("Ann", "Bob", "Cy")}
    folder(tmp_path / "texts", lines)
    path = tmp_path / "job.yaml"
    path.write_text(JOB.format(path=tmp_path / "texts"))
    yield path
    sys.modules.pop("gpt_of_a_test", None)


def logged(run):
    return [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]


def test_a_run_learns_a_text(text_job, tmp_path, hpcfl):
    done = hpcfl("run", text_job, "--out", tmp_path / "run")
    assert done.code == 0, done.err
    test = load(tmp_path / "texts", 8, test_share=0.25).test
    outputs = load_model(tmp_path / "run")(test.inputs.long())
    mean = cross_entropy(outputs.flatten(0, 1), test.labels.flatten().long()).item()
    assert logged(tmp_path / "run")[-1]["test_loss"] == pytest.approx(mean, rel=1e-12)
    assert mean < 3 < math.log(256)
    with (tmp_path / "run/clients.csv").open() as file:
        assert {row["data"] for row in csv.DictReader(file)} == {"test"}


def test_token_0_is_no_padding(text_job, tmp_path, hpcfl):
    write(tmp_path / "zeros.txt", bytes(100))
    data = f"data={{kind: text, path: {tmp_path / 'zeros.txt'}, length: 8, clients: 2}}"
    settings = (data, "rounds=1", "evaluate.clients=false")
    done = hpcfl("run", text_job, *settings, "--out", tmp_path / "run")
    assert done.code == 0, done.err
    assert logged(tmp_path / "run")[-1]["train_loss"] > 0


def test_a_resume_gives_the_same_bits(text_job, tmp_path, hpcfl):
    assert hpcfl("run", text_job, "--out", tmp_path / "whole").code == 0
    assert hpcfl("run", text_job, "rounds=2", "--out", tmp_path / "half").code == 0
    (tmp_path / "texts").rename(tmp_path / "moved")  # as on another machine
    done = hpcfl("resume", tmp_path / "half", "rounds=4", f"data.path={tmp_path / 'moved'}")
    assert done.code == 0, done.err
    keys = ("train_loss", "test_loss", "client_accuracy_std")
    whole, half = (
        [[record.get(key) for key in keys] for record in logged(tmp_path / name)]
        for name in ("whole", "half")
    )
    assert half == whole


def test_a_resume_refuses_another_text(text_job, tmp_path, hpcfl, refused):
    assert hpcfl("run", text_job, "rounds=2", "--out", tmp_path / "run").code == 0
    write(tmp_path / "texts/Bob.txt", "Bob sat on the cat. " * 12)
    line = refused("resume", tmp_path / "run", "rounds=4")
    assert "texts: its content changed since" in line
    words = trained(tmp_path / "tokenizer.json")
    line = refused("resume", tmp_path / "run", "rounds=4", f"data.tokenizer={words}")
    assert "texts: its content changed since" in line


def test_a_text_is_planned_before_it_is_there(text_job):
    sizes = read_sizes("train=60,test=6,clients=3,classes=256,words=8")
    planned, _ = planned_job(load_job(text_job), sizes)
    drawn = planned.job.data.load(0)
    assert (drawn.loss, drawn.padding) == ("tokens", None)
    assert drawn.train.labels.shape == drawn.train.inputs.shape == (60, 8)


def test_a_record_asks_for_the_texts_and_the_tokenizer(text_job, tmp_path, hpcfl, refused):
    """Bytes are no file."""
    names = {"bytes": "bytes", "words": trained(tmp_path / "tokenizer.json")}
    for name, of in names.items():
        settings = ("rounds=1", f"data.tokenizer={of}", "data.length=3")
        assert hpcfl("run", text_job, *settings, "--out", tmp_path / name).code == 0
        record = tmp_path / f"{name}_record"
        assert hpcfl("export", tmp_path / name, "--record", record).code == 0
        line = refused("run", record, "--out", tmp_path / "again")
        assert ("data.tokenizer=PATH" in line) == (name == "words")
        places = [
            f"data.path={tmp_path / 'texts'}",
            *([f"data.tokenizer={of}"] * (name == "words")),
        ]
        done = hpcfl("run", record, *places, "--out", tmp_path / f"{name}_again")
        assert done.code == 0, done.err
        whole, again = (logged(tmp_path / run)[-1] for run in (name, f"{name}_again"))
        assert again["test_loss"] == whole["test_loss"]


def test_another_rank_has_the_same_windows(clients):
    """By the copy that the ranks of a host share."""
    found = load(clients, 3, test_share=0.4)
    with tempfile.TemporaryFile(buffering=0) as file:
        plain_copy.write(found, file)
        file.seek(0)
        again = plain_copy.map_file(file)
    assert digest(again) == digest(found)
    assert [rows.tolist() for rows in again.natural] == [rows.tolist() for rows in found.natural]
    assert again.transform is found.transform
