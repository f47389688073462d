"""Runs taken up again: with other settings, at an older checkpoint, on another machine."""

import json
import shutil
import subprocess
from pathlib import Path
from zlib import crc32

import pytest
import torch
import yaml
from safetensors.torch import load_file

import hpcfl
from hpcfl.clients.client_pool import ClientPool
from hpcfl.io import checksum
from hpcfl.runs.layout import RunDir
from hpcfl.runs.manifest import rounds
from hpcfl.start import environment
from hpcfl.start import resume as resuming
from hpcfl.start.components import population
from hpcfl.store.row_table import Table
from tests.forked import finish
from tests.parallel.outcome import outcome
from tests.rundirs import damage_a_row, flip, log_of, resolved, segment, starts, text

JOBS = Path(__file__).parents[2] / "jobs"


@pytest.fixture
def run(job, tmp_path, hpcfl):
    """A run of four rounds, of which 2 and 4 are kept."""
    out = tmp_path / "run"
    assert hpcfl("run", job, "--out", out).code == 0
    return out


@pytest.fixture
def long(job, tmp_path, hpcfl):
    """The same job with nine rounds and other free settings from the start."""
    out = tmp_path / "long"
    settings = ("rounds=9", "evaluate.every=1", "checkpoint.every=3")
    assert hpcfl("run", job, *settings, "--out", out).code == 0
    return out


def same(found, expected):
    """But for what only some rounds of one of the two have evaluated."""
    assert found.round == expected.round
    assert found.server == expected.server
    assert found.clients == expected.clients
    for one, other in zip(found.log[-4:], expected.log[-4:], strict=True):
        assert one == other


# A run of an earlier version


def test_a_split_of_an_earlier_version_is_not_dealt_in_another_order(job, tmp_path, hpcfl):
    """Before ``order`` was a key, ``form: symmetric`` dealt as ``order: clients`` does."""
    run, split = tmp_path / "run", "data.partition={kind: dirichlet, form: symmetric, alpha: 0.5}"
    assert hpcfl("run", job, split, "--out", run).code == 0
    assert hpcfl("resume", run, "rounds=5").code == 0
    now, lines = RunDir(run).job_fingerprint, (run / "job.yaml").read_text().splitlines(True)
    before = [line for line in lines[:-1] if line.strip() != "order: null"]
    assert len(before) == len(lines) - 2
    (run / "job.yaml").write_bytes(resolved("".join(before)))
    for path in (run / "checkpoints").glob("*/manifest.json"):
        manifest = checksum.remove_from_json(path.read_bytes()).decode()
        then = manifest.replace(now, RunDir(run).job_fingerprint)
        path.write_bytes(checksum.add_to_json(then))
    done = hpcfl("resume", run, "rounds=6")
    assert done.code == 2
    assert "has no order: an earlier version dealt its examples as order: clients" in done.err[0]


# Other settings


def test_more_rounds_after_the_end(run, long, hpcfl):
    """As if they had been asked for from the start; what was logged stays as it was."""
    before = (run / "log.jsonl").read_bytes()
    done = hpcfl("resume", run, "rounds=9", "evaluate.every=1", "checkpoint.every=3")
    assert done.code == 0, done.err
    assert "rounds was 4, is 9 after round 4" in done.err
    log = list(map(json.loads, before.splitlines()))
    kept = [line for line in done.err if "  kept  " in line]
    assert [line.partition("  kept  ")[0] for line in kept] == [
        f"{run.name} round {t}/9" for t in (2, 3, 4)
    ]
    assert f"test_loss {log[4]['test_loss']:.4g}" in kept[-1]
    assert not any("None" in line for line in done.err)
    same(outcome(run), outcome(long))
    assert (run / "log.jsonl").read_bytes().startswith(before)
    assert rounds(run / "checkpoints") == [6, 9]
    changed = yaml.safe_load((run / "job.yaml").read_text())
    assert (changed["rounds"], changed["evaluate"]["every"]) == (9, 1)
    assert [start["round"] for start in starts(run)] == [0, 4]
    assert starts(run)[0]["changes"] == []
    assert starts(run)[1]["changes"] == [
        {"key": "rounds", "before": 4, "after": 9},
        {"key": "evaluate.every", "before": 2, "after": 1},
        {"key": "checkpoint.every", "before": 2, "after": 3},
    ]


def test_the_last_rounds_count_from_the_new_end(run, hpcfl):
    assert hpcfl("resume", run, "rounds=8", "evaluate={last: 2}").code == 0
    log = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    assert [r["round"] for r in log if "test_loss" in r] == [0, 2, 4, 7, 8]


@pytest.mark.parametrize("command", ["resume", "status", "report"])
def test_a_change_by_hand_is_refused(run, refused, command):
    """It could be damage: 4 and 6 differ in one bit."""
    path = run / "job.yaml"
    path.write_text(path.read_text().replace("rounds: 4", "rounds: 6"))
    said = refused(command, run)
    assert f"StoreError: {path}: checksum " in said
    assert said.endswith("put it back; a setting is changed by `hpcfl resume DIR key=value`")


def test_the_same_value_is_no_change(run, hpcfl):
    before = (run / "job.yaml").stat().st_mtime_ns
    assert hpcfl("resume", run, "seed=0", "rounds=4", "local.lr=0.1").code == 0
    assert (run / "job.yaml").stat().st_mtime_ns == before
    assert starts(run)[-1]["changes"] == []


def test_the_older_rounds_that_are_kept_are_named(job, tmp_path, hpcfl, refused):
    run = tmp_path / "kept"
    assert hpcfl("run", job, "checkpoint={every: 1, keep: 9}", "--out", run).code == 0
    line = refused("resume", run, "rounds=2")
    assert line.endswith(
        f"4 are done; give rounds=4 or more, or go back by `hpcfl resume {run} rounds=2 "
        "--round 2`; rounds 0, 1 are kept too"
    )


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("local.lr=0.2", "command line: local.lr: is 0.1 in {run}, asked for is 0.2, which would"),
        ("algorithm={name: fedavg}", "algorithm.name: is fedhbm in {run}, asked for is fedavg"),
        ("algorithm.name=fedavg", "algorithm.name: is fedhbm in {run}, asked for is fedavg"),
        ("evaluate.batch_size=7", "(full-batch gradients are summed in batches of this size)"),
        ("seed=1", "`hpcfl run {run}/job.yaml seed=1 --out NEW`, with model.init=F.safetensors of"),
        ("rounds=1", "rounds: 1 are asked for, but 4 are done; give rounds=4 or more"),
        ("rounds=3", "4 or more, or go back by `hpcfl resume {run} rounds=3 --round 2`"),
        ("local.lrr=0.1", 'command line: local.lrr: local has no "lrr"'),
        ("local.lr=abc", "command line: local.lr: found 'abc', expected a number"),
        ("algorithm.name=fedhmb", "; did you mean fedhbm?"),
        ("evaluate.evry=1", 'command line: evaluate.evry: evaluate has no "evry"'),
        ("rounds=many", "command line: rounds: found 'many', expected"),
        ("rounds", "command line: 'rounds': expected key.path=value"),
    ],
)
def test_what_is_refused_changes_nothing(run, refused, override, said):
    before = text(run)
    assert said.format(run=run) in refused("resume", run, override)
    after = text(run)
    assert after == before


def test_a_run_in_blocks_stays_one(job, tmp_path, refused, hpcfl):
    """What was changed is named, not what it goes ill with; the advice can be followed."""
    run = tmp_path / "blocks"
    assert hpcfl("run", job, "executor=block", "block_size=2", "--out", run).code == 0
    said = refused("resume", run, "executor=sequential")
    assert f"command line: executor: is block in {run}, asked for is sequential, which" in said
    assert "block_size: found" not in said
    advice = f"`hpcfl run {run}/job.yaml executor=sequential block_size=null --out NEW`"
    assert advice in said
    words = advice.strip("`").replace("NEW", str(tmp_path / "new")).split()[1:]
    assert hpcfl(*words).code == 0
    assert f"block_size: is 2 in {run}, asked for is 3" in refused("resume", run, "block_size=3")


def test_blocks_of_a_run_that_has_none(run, refused):
    said = refused("resume", run, "block_size=2")
    assert f"block_size: is null in {run}, asked for is 2, which would change past rounds" in said
    branch, new = said.split("; or start a new run: ")
    assert branch.count("block_size=") == new.count("block_size=") == 1


@pytest.mark.parametrize("line", ["{", "[1]", '{"settings": 5}', '{"round": "1"}', "\xff"])
def test_a_damaged_history_is_refused_before_anything_changes(run, refused, hpcfl, line):
    """Even a later checkpoint, which this start is to give up, stays."""
    whole = (run / "history.jsonl").read_bytes()
    body = line.encode("latin1").removesuffix(b"}")
    content = body + b', "crc32": %d}\n' % crc32(body)
    (run / "history.jsonl").write_bytes(whole + content)
    before = text(run)
    said = refused("resume", run, "--round", "2", "rounds=5")
    assert f"{run}/history.jsonl:2: is damaged: " in said
    assert said.endswith("or the file, and try again: nothing in it is needed to resume")
    assert text(run) == before
    (run / "history.jsonl").unlink()
    assert hpcfl("resume", run).code == 0


def test_what_does_not_fit_the_data_is_refused_before_anything_is_written(run, refused):
    before = text(run)
    refused("resume", run, "rounds=6", "comm.backend=nccl")
    assert text(run) == before


def test_the_rounds_of_a_cosine_stay(job, tmp_path, hpcfl, refused):
    out = tmp_path / "run"
    assert hpcfl("run", job, "local.schedule=cosine", "--out", out).code == 0
    assert "local.schedule cosine spans all rounds" in refused("resume", out, "rounds=6")


def test_more_rounds_than_replayed_cohorts(job, tmp_path, hpcfl, refused):
    out, lists = tmp_path / "run", "cohort={kind: replay, rounds: [[0], [1], [2], [3]]}"
    assert hpcfl("run", job, lists, "--out", out).code == 0
    before = text(out)
    assert "4 cohorts are given for 6 rounds" in refused("resume", out, "rounds=6")
    assert text(out) == before


def test_a_kill_after_the_job_was_rewritten(run, long, monkeypatch, hpcfl):
    """The next start goes on with the new job, and records the change."""
    args = ("rounds=9", "evaluate.every=1", "checkpoint.every=3")

    class Kill(BaseException):
        """Nothing handles it."""

    def killed(*_):
        raise Kill

    with monkeypatch.context() as patch:
        patch.setattr(resuming, "truncate_log", killed)
        with pytest.raises(Kill):
            hpcfl("resume", run, *args)
    assert "opened" in starts(run)[-1]  # it has begun no round
    assert hpcfl("resume", run).code == 0
    assert [change["key"] for change in starts(run)[-1]["changes"]] == [
        "rounds",
        "evaluate.every",
        "checkpoint.every",
    ]
    same(outcome(run), outcome(long))


def test_a_job_that_changes_while_a_start_reads_it(run, monkeypatch, refused):
    lock = RunDir.lock

    def late(folder, *args):
        lock(folder, *args)
        with (run / "job.yaml").open("a") as file:
            file.write("# another start was here\n")

    monkeypatch.setattr(RunDir, "lock", late)
    assert "job.yaml: was changed while it was read" in refused("resume", run)


# An older checkpoint


def test_from_an_older_checkpoint(run, hpcfl):
    whole = outcome(run)
    (run / "checkpoints" / "00000004" / "manifest.json").write_text("{")  # whatever is in it
    done = hpcfl("resume", run, "--round", 2)
    assert done.code == 0, done.err
    assert outcome(run) == whole
    assert starts(run)[-1]["round"] == 2


def test_a_finished_run_keeps_as_many_checkpoints_as_it_is_told(job, run, long, hpcfl):
    """And goes on from the last one."""
    assert hpcfl("resume", run, "rounds=8", "checkpoint.keep=9").code == 0
    # A job that leaves the key out does not tell.
    assert hpcfl("run", job, "rounds=8", "--out", run, "--continue").code == 0
    assert rounds(run / "checkpoints") == [2, 4, 6, 8]
    done = hpcfl("resume", run, "checkpoint.keep=1")
    assert (done.code, f"{run}: finished, nothing to do" in done.err) == (0, True)
    assert rounds(run / "checkpoints") == [8]
    assert hpcfl("resume", run, "rounds=9", "checkpoint.keep=2").code == 0
    found, expected = outcome(run), outcome(long)
    assert (found.server, found.clients) == (expected.server, expected.clients)


def test_states_that_only_deleted_checkpoints_need_are_deleted(run, hpcfl):
    """Those of an earlier number of ranks."""
    assert finish(2, "resume", run, "rounds=6").returncode == 0
    stores = run / "stores"
    before = {path.name for path in stores.iterdir()}
    assert hpcfl("resume", run, "checkpoint.keep=1").code == 0
    after = {path.name for path in stores.iterdir()}
    assert after < before
    table = Table.load(run / "checkpoints/00000006", stores)
    assert after == {path.name for path in table.paths}


def test_the_same_command_goes_back_once(run, refused, hpcfl, monkeypatch):
    """Given again it would throw away what was done since, also after further starts."""
    back = ("resume", run, "--round", 2, "rounds=6", "checkpoint.keep=9")
    assert hpcfl(*back).code == 0
    assert hpcfl("resume", run, "rounds=8").code == 0
    before = text(run)
    line = refused(*back)
    assert f"{run}: the same command went back to round 2 before, and round 8 is done" in line
    assert f"to go on: `hpcfl resume {run}`" in line
    assert text(run) == before
    # A batch script goes on.
    words = ("--first", "7", str(run), "--round", "2", "rounds=6", "checkpoint.keep=9")
    asked = hpcfl("batch", "begin", *words)
    assert (asked.code, f"words=(resume {run})" in asked.out) == (0, True)
    assert asked.err == [
        f"batch begin: {run}: the same command began this before; it goes on from round 8"
    ]
    command = line.partition("checkpoints first: `")[2].removesuffix("`")
    subprocess.run(["/bin/sh", "-c", command], check=True)
    assert hpcfl(*back).code == 0
    assert (rounds(run / "checkpoints"), starts(run)[-1]["round"]) == ([2, 4, 6], 2)


@pytest.mark.parametrize("other", [("--round", 4, "rounds=6"), ("--round", 2, "rounds=5")])
def test_another_command_goes_back(run, hpcfl, other):
    keep = "checkpoint.keep=9"
    assert hpcfl("resume", run, "--round", 2, "rounds=6", keep).code == 0
    assert hpcfl("resume", run, *other, keep).code == 0
    assert starts(run)[-1]["round"] == other[1]


def test_going_back_to_where_the_last_start_began(run, hpcfl):
    """No start was asked for that round before."""
    assert hpcfl("resume", run, "rounds=6").code == 0
    back = ("resume", run, "--round", 4)
    assert hpcfl(*back).code == 0
    assert [start["round"] for start in starts(run)] == [0, 4, 4]


def test_a_round_that_is_not_kept(run, refused):
    assert "round 3 is not kept; give --round 2 or 4" in refused("resume", run, "--round", 3)
    assert rounds(run / "checkpoints") == [2, 4]


def test_newer_checkpoints_stay_until_the_older_one_is_verified(run, refused):
    flip(run / "checkpoints" / "00000002" / "server.safetensors", -1)
    before = text(run)
    line = refused("resume", run, "--round", 2)
    assert "00000002/server.safetensors: checksum" in line
    assert line.endswith("no older one is kept: run the job again into another directory")
    assert text(run) == before


def test_fewer_rounds_than_before_from_an_older_one(run, hpcfl):
    assert hpcfl("resume", run, "--round", 2, "rounds=3").code == 0
    assert outcome(run).round == 3
    assert rounds(run / "checkpoints") == [2, 3]


# Checksums


def test_a_flipped_byte_in_a_row_is_named_and_the_one_before_offered(run, refused, hpcfl):
    whole = outcome(run)
    row, client = damage_a_row(run)
    before = text(run)
    line = refused("resume", run, "rounds=6")
    assert f"{segment(run)}: row {row} (client {client}): found checksum" in line
    assert line.endswith(f"; the one before: `hpcfl resume {run} --round 2`")
    assert text(run) == before
    assert hpcfl("resume", run, "--round", 2).code == 0
    assert outcome(run) == whole


def test_rows_may_be_left_to_their_first_use(run, refused, hpcfl):
    row, client = damage_a_row(run)
    assert hpcfl("resume", run, "--no-verify").code == 0  # finished: nothing uses them
    done = hpcfl("resume", run, "--no-verify", "rounds=20")
    assert done.code == 1
    assert f"row {row} (client {client}): found checksum" in done.err[-1]


def test_a_missing_segment_is_missed_without_verifying_rows(run, refused):
    segment(run).unlink()
    line = refused("resume", run, "--no-verify")
    assert ".h5: the file is missing" in line
    assert line.endswith(f"`hpcfl resume {run} --round 2`")


def test_a_damaged_older_checkpoint_is_named(run, refused, hpcfl):
    older = run / "checkpoints" / "00000002"
    flip(older / "rows-0000.npz", -1)
    line = refused("resume", run, "rounds=6")
    assert "00000002/rows-0000.npz: checksum" in line
    assert line.endswith("or remove this one's folder to resume from round 4")
    shutil.rmtree(older)
    assert hpcfl("resume", run, "rounds=6").code == 0


# What the bits depend on besides


@pytest.mark.parametrize("key", ["torch", "processor", "simd", "gpu", "device"])
def test_another_machine_is_told(run, hpcfl, key):
    lines = starts(run)
    lines[-1][key] = "another"
    lines[-1].pop("crc32")
    (run / "history.jsonl").write_bytes(log_of(lines))
    done = hpcfl("resume", run)
    told = [line for line in done.err if "the bits may differ" in line]
    if key == "gpu":  # not used by the run in this test, on a CPU
        assert not told
    else:
        assert len(told) == 1
        assert told[0].startswith(f"{key} was another, is ")


def test_ranks_matter_to_the_fast_sum_alone():
    before, now = {"ranks": 2, "summed_by": "gloo"}, {"ranks": 3, "summed_by": "MPICH 4"}
    assert not environment.change_warnings(before, now, environment.KEYS_OF_BITS)
    assert environment.change_warnings(before, now, environment.KEYS_OF_FAST_BITS) == [
        "ranks was 2, is 3: the bits may differ from those of an uninterrupted run",
        "summed_by was gloo, is MPICH 4: the bits may differ from those of an uninterrupted run",
    ]


def test_a_gpu_is_named(monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "H200")
    assert environment.versions(torch.device("cuda"))["gpu"] == "H200"
    assert "gpu" not in environment.versions(torch.device("cpu"))


def test_from_python(run, tmp_path):
    result = hpcfl.resume(run, ["rounds=6"], out=tmp_path / "copy", round=2, verify=False)
    assert (result.directory, result.rounds) == (tmp_path / "copy", 6)
    assert [record["round"] for record in result.log] == list(range(7))


@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "adam"])
def test_a_server_only_run_has_the_files_of_earlier_versions(job, tmp_path, hpcfl, optimizer):
    """What mvr keeps besides is in no checkpoint of the others, or old runs could not go on."""
    algorithm = f"algorithm={{name: server_only, optimizer: {optimizer}}}"
    assert hpcfl("run", job, algorithm, "--out", tmp_path / "run").code == 0
    (server,) = (tmp_path / "run/checkpoints/00000004").glob("server.safetensors")
    assert set(load_file(server)) == {"x", "m", "v"}


@pytest.mark.parametrize(
    ("setting", "error"),
    [
        ("comm.timeout_s=100000000", "command line: comm.timeout_s: found 100000000.0, expected"),
        ("store.cache_gib=1.0e+300", "command line: store.cache_gib: found 1e+300, expected a "),
        ("checkpoint.keep=2000000", "command line: checkpoint.keep: found 2000000, expected a "),
        ("rounds=100000", "local.lr_decay: found 0.9, which leaves a rate of 0.0e+00 in round 10"),
    ],
)
@pytest.mark.parametrize("branch", [False, True])
def test_a_resume_is_checked_like_a_start(job, tmp_path, hpcfl, refused, setting, error, branch):
    """Else the run plays rounds with a rate of zero, or has a job that no command takes."""
    run, copy = tmp_path / "run", tmp_path / "copy"
    assert hpcfl("run", job, "local.lr_decay=0.9", "--out", run).code == 0
    before = text(run)
    more = ("--out", copy, "local.clip=1.0", "--round", 2) if branch else ()
    assert error in refused("resume", run, setting, *more)
    assert text(run) == before
    assert not copy.exists()
    assert hpcfl("resume", run, "rounds=5").code == 0


@pytest.mark.parametrize("command", ["run", "resume"])
def test_the_data_are_copied_to_the_device_once(job, tmp_path, hpcfl, monkeypatch, command):
    """Trials before round 1, the chosen executor and the rounds have one pool of clients."""
    run, pools = tmp_path / "run", []
    if command == "resume":
        assert hpcfl("run", job, "--out", run).code == 0

    class Counted(ClientPool):
        def __init__(self, *args, **settings):
            super().__init__(*args, **settings)
            pools.append(self)

    monkeypatch.setattr(population, "ClientPool", Counted)
    arguments = [job, "executor=auto", "--out", run] if command == "run" else [run, "rounds=6"]
    assert hpcfl(command, *arguments).code == 0
    assert len(pools) == 1
