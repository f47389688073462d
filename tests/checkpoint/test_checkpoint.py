"""Checkpoints: committed by one file, refused when damaged, as many kept as asked for."""

import json
import shutil
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from hpcfl.checkpoint.format import fingerprint, flatten_server, read_checkpoint
from hpcfl.checkpoint.writer import CheckpointContents, begin
from hpcfl.comm.solo import Solo
from hpcfl.errors import StoreError
from hpcfl.io import checksum
from hpcfl.runs.log import LogPosition
from hpcfl.runs.manifest import FORMAT, INITIAL, committed, prune, read
from hpcfl.store.hdf5 import Hdf5Store
from hpcfl.store.reader import Reader
from hpcfl.store.row_table import Table
from hpcfl.store.schema import Field, StateSchema

CPU = torch.device("cpu")


class Server(NamedTuple):
    x: Tensor
    past: tuple[Tensor, ...]


class State(NamedTuple):
    c: Tensor


JOB = "0123456789abcdef"
INPUTS = {"/data/own.npz": "sha256:1a2b"}
SCHEMA = StateSchema(State, (Field("c", (3,), torch.float64),))


def server(k):
    return Server(torch.full((4,), float(k)), tuple(torch.full((2,), float(j)) for j in range(12)))


@pytest.fixture
def commit(tmp_path):
    """Commits a round; the states of two clients hold its number."""
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "stores").mkdir()
    store = Hdf5Store(tmp_path / "stores", 0, "0123abcd", range(2), SCHEMA, 1 << 20)

    def go(round, keep=2):
        for client in range(2):
            store.save(client, State(torch.full((3,), float(10 * round + client)).double()))
        root = tmp_path / "checkpoints"
        contents = CheckpointContents(
            round=round,
            server=server(round),
            job=JOB,
            inputs=INPUTS,
            log=LogPosition(7 * round, 5),
            table_lines=round,
            run_files={INITIAL: 7},
        )
        saving = begin(root, contents, store, Solo(), behind, lambda: synced.append(round))
        kept = saving.commit(store, Solo(), keep, lambda: None)
        assert synced[-1] == round
        return [read(folder) for folder in kept.kept]

    synced: list[int] = []
    with ThreadPoolExecutor(1) as behind:
        yield go


def states(root, checkpoint):
    table = Table.load(checkpoint.folder, root / "stores")
    with Reader(table, SCHEMA) as reader:
        return [float(reader.read(client).c[0]) for client in range(2)]


def test_every_kept_checkpoint_is_whole(tmp_path, commit):
    for round in range(5):
        kept = commit(round, keep=3)
        assert [c.round for c in kept] == list(range(max(0, round - 2), round + 1))
        for c in kept:
            found = read_checkpoint(c, server(0), CPU).server
            assert type(found) is Server
            assert torch.equal(found.x, server(c.round).x)
            assert [float(p[0]) for p in found.past] == list(range(12))  # 10 is after 9
            assert states(tmp_path, c) == [10 * c.round, 10 * c.round + 1]
            assert (c.ranks, c.job, c.log) == (1, JOB, LogPosition(7 * c.round, 5))
            assert c.inputs == INPUTS
            assert c.run_files == {INITIAL: 7}
    assert committed(tmp_path / "checkpoints") == kept


def test_an_uncommitted_folder_does_not_count_and_is_swept(tmp_path, commit):
    commit(1)
    root = tmp_path / "checkpoints"
    shutil.copytree(root / "00000001", root / "00000002")
    (root / "00000002" / "manifest.json").unlink()
    assert [c.round for c in committed(root)] == [1]
    prune(root)
    assert [path.name for path in root.iterdir()] == ["00000001"]
    assert states(tmp_path, committed(root)[0]) == [10, 11]


def test_a_torn_folder_of_the_same_round_is_replaced(tmp_path, commit):
    torn = tmp_path / "checkpoints" / "00000003"
    torn.mkdir()
    (torn / "rows-0007.npz").write_text("left by a killed run of eight ranks")
    (kept,) = commit(3)
    assert sorted(kept.files) == ["rows-0000.npz", "server.safetensors"]


def checked(manifest):
    manifest.pop("crc32")
    return checksum.add_to_json(json.dumps(manifest)).decode()


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text[: len(text) // 2],
        lambda text: "",
        lambda text: "[]",
        lambda text: text.replace('"round": 1', '"round": 3'),
        lambda text: text.replace('"log_bytes"', '"log"'),
        lambda text: text.replace('"inputs"', '"input"'),
        lambda text: checked({**json.loads(text), "round": None}),
        lambda text: checked({**json.loads(text), "round": 3}),
        lambda text: checked({**json.loads(text), "run_files": {}}),
        lambda text: checked({**json.loads(text), "inputs": {"own.npz": 3}}),
        lambda text: checked({k: v for k, v in json.loads(text).items() if k != "inputs"}),
        lambda text: json.dumps({k: v for k, v in json.loads(text).items() if k != "crc32"}),
    ],
)
def test_a_damaged_manifest_says_which(tmp_path, commit, damage):
    commit(1)
    path = tmp_path / "checkpoints" / "00000001" / "manifest.json"
    path.write_text(damage(path.read_text()))
    with pytest.raises(StoreError, match=r"00000001/manifest.json: is damaged: .*older"):
        committed(tmp_path / "checkpoints")


@pytest.mark.parametrize(
    ("number", "others"),
    [(99, {}), (4, {}), (1, {"round": 1, "ranks": 1, "job": "", "log_bytes": 0})],
)
def test_a_manifest_of_another_format(tmp_path, commit, number, others):
    """Format 1 knew no shared states; what keys a later one has, we cannot know."""
    commit(1)
    path = tmp_path / "checkpoints" / "00000001" / "manifest.json"
    path.write_text(json.dumps({"format": number, **others}))
    said = (
        f"found format {number}, expected {FORMAT}: another version of hpcfl wrote it; resume with"
    )
    with pytest.raises(StoreError, match=said):
        committed(tmp_path / "checkpoints")


def test_a_run_of_an_older_version_is_told_so(job, tmp_path, hpcfl, refused):
    """Not that it is damaged: format 4 had no checksums."""
    out = tmp_path / "run"
    assert hpcfl("run", job, "algorithm={name: localghb}", "--out", out).code == 0
    for path in out.glob("checkpoints/*/manifest.json"):
        path.write_text(json.dumps({"format": 4, "round": int(path.parent.name)}))
    job = (out / "job.yaml").read_text().splitlines(keepends=True)
    (out / "job.yaml").write_text("".join(job[:-1]))  # which had no checksum either
    for command in ("resume", "status", "report"):
        said = f"found format 4, expected {FORMAT}: another version of hpcfl wrote it"
        assert said in refused(command, out)


@pytest.mark.parametrize("name", ["server.safetensors", "rows-0000.npz"])
@pytest.mark.parametrize("fault", ["flip", "cut", "gone"])
def test_a_damaged_file_is_found_before_it_is_used(commit, name, fault):
    (checkpoint,) = commit(1)
    path = checkpoint.folder / name
    data = bytearray(path.read_bytes())
    if fault == "flip":
        data[len(data) // 2] ^= 1
    path.write_bytes(data[: -3 if fault == "cut" else None])
    if fault == "gone":
        path.unlink()
    with pytest.raises(StoreError, match=rf"{name}: (checksum|cannot be read).*older"):
        read_checkpoint(checkpoint, server(0), CPU)


def test_a_server_of_another_model(commit):
    (checkpoint,) = commit(1)
    wide = server(0)._replace(x=torch.zeros(5))
    with pytest.raises(StoreError, match=r"x: found \(4,\) torch.float32, expected \(5,\)"):
        read_checkpoint(checkpoint, wide, CPU)

    class Other(NamedTuple):
        x: Tensor
        c: Tensor

    with pytest.raises(StoreError, match=r"c: found nothing, expected \(4,\)"):
        read_checkpoint(checkpoint, Other(torch.zeros(4), torch.zeros(4)), CPU)


def test_tensors_of_a_server_are_named():
    assert list(flatten_server(server(0)))[:3] == ["x", "past.0", "past.1"]


def test_the_fingerprint_sees_a_single_bit():
    one = server(1)
    other = one._replace(x=one.x.clone())
    assert fingerprint(one.x) == fingerprint(other.x)
    other.x.view(torch.int32)[3] ^= 1
    assert fingerprint(one.x) != fingerprint(other.x)


def test_the_fingerprint_is_of_all_tensors():
    one, zero = torch.ones(1), torch.zeros(1)
    assert len({fingerprint(one), fingerprint(one, zero), fingerprint(zero, one)}) == 3
