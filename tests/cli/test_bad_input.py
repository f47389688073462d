"""What users get wrong: exit code 2 and one line: where, what was found, what to do."""

import fcntl
import json
import os
import shutil
import sys

import h5py
import numpy as np
import pytest
import yaml

from hpcfl.clients.assignment import assign_owners
from hpcfl.errors import JobError
from hpcfl.runs.manifest import committed
from tests.rundirs import resolved


@pytest.fixture
def out(tmp_path):
    return tmp_path / "run"


@pytest.fixture
def run(job, out, refused):
    """Run the job with overrides; refused before anything is written."""

    def run(*overrides):
        line = refused("run", job, *overrides, "--out", out)
        assert not out.exists()
        return line

    return run


@pytest.fixture
def finished(hpcfl, job, out):
    """The directory of a run of all four rounds."""
    assert hpcfl("run", job, "--out", out).code == 0
    return out


@pytest.fixture
def half(hpcfl, job, out):
    """The directory of a run with checkpoints 0 and 2 that is to resume from round 2."""
    assert hpcfl("run", job, "--out", out).code == 0
    committed(out / "checkpoints")[-1].folder.joinpath("manifest.json").unlink()
    return out


def write(job, old, new):
    text = job.read_text()
    assert old in text
    job.write_text(text.replace(old, new))


def contains(line, *parts):
    for part in parts:
        assert str(part) in line, line


# The job.


def test_unknown_key(job, run):
    write(job, "rounds: 4", "ronds: 4")
    contains(run(), f'{job}:6: ronds: a job has no "ronds"', "algorithm,", "data,", "mean rounds?")


def test_unknown_key_that_another_algorithm_has(job, run):
    write(job, "{name: fedhbm}", "{name: scaffold, beta: 1.0}")
    said = f'{job}:4: algorithm.beta: scaffold has no "beta" (it has first, option, server_lr); '
    contains(run(), said, "others have it, such as adabest, centralized, diloco: hpcfl list")


def test_unknown_key_that_few_algorithms_have(run):
    contains(run("algorithm.norm=client"), 'no "norm"', "; did you mean fedcm or mofedsam?")


def test_unknown_key_of_a_module(run):
    line = run("model={name: module, of: torch.nn.Linear, in_features: 3}")
    contains(line, "; arguments of torch.nn.Linear go into model.arguments")
    contains(run("model={name: module, of: torch.nn.Linear, inti: a.npy}"), "did you mean init?")


def test_unknown_key_of_a_partition(run):
    line = run("data.partition={kind: dirichlet, alph: 1.0}")
    contains(
        line, 'command line: data.partition.alph: dirichlet has no "alph"', "did you mean alpha"
    )


def test_unknown_kind(job, run):
    write(job, "kind: uniform, size: 2", "size: 2,\n  kind: cyc")
    contains(
        run(), f"{job}:4: cohort.kind: found 'cyc', expected one of uniform, bernoulli, cyclic"
    )
    contains(run(), "did you mean cyclic?")


def test_wrong_type(job, run):
    write(job, "rounds: 4", "rounds: [4]")
    contains(run(), f"{job}:6: rounds: found [4], expected a whole number")


def test_a_cache_larger_than_any_memory(run):
    line = "command line: store.cache_gib: found 1e+300, expected a number of at most 1000000000.0"
    contains(run("store.cache_gib=1.0e+300"), line)


@pytest.mark.parametrize(
    ("word", "value"), [("seed=010", "8"), ("rounds=1:30", "90"), ("local.lr=00:00.5", "0.5")]
)
def test_numbers_to_another_base(run, word, value):
    """YAML 1.1 reads 010 as octal, and 1:30 to the base 60."""
    found = word.partition("=")[2]
    line = f"command line: YAML reads the number {found} as {value}; write it without leading zeros"
    contains(run(word), line)


@pytest.mark.parametrize("path", ["~/scratch", "$TMPDIR/states", "a/${USER}/b", ""])
def test_paths_that_only_a_shell_completes(job, tmp_path, hpcfl, run, monkeypatch, capsys, path):
    monkeypatch.chdir(tmp_path)
    said = f"found {path!r}, but only a shell replaces ~ and $" if path else "found an empty path"
    contains(run(f"store.dir={path or repr('')}"), f"command line: store.dir: {said}")
    with pytest.raises(SystemExit) as exit:
        hpcfl("run", job, f"--out={path}")
    assert exit.value.code == 2
    assert f"--out: {said}" in capsys.readouterr().err
    assert {entry.name for entry in tmp_path.iterdir()} == {job.name, "data.npz"}


def test_a_folder_with_a_dollar_in_its_name(job, tmp_path, hpcfl):
    out = tmp_path / "a$b"
    out.mkdir()
    data = (tmp_path / "data.npz").rename(out / "data.npz")
    words = (f"data.path={data}", f"store.dir={out}/states", "--out", out / "run")
    assert hpcfl("run", job, *words).code == 0
    assert hpcfl("resume", out / "run", "rounds=5").code == 0


def test_quadratics_with_a_model_that_gives_no_values(run):
    line = run("data={kind: quadratics, clients: 2, dim: 3}", "model={name: linear}", "task=null")
    contains(
        line, "model.name: linear: its outputs have the shape (1, 1), expected a value of each"
    )


def test_out_of_range(run):
    contains(run("locale.lr=0.5"), 'command line: locale: a job has no "locale"')
    contains(run("local.lr=-1.0"), "command line: local.lr: found -1.0, expected a number greater")


def test_every_choice_of_a_key_is_said(run):
    line = run("local.batch_size=all")
    contains(line, "local.batch_size: found 'all', expected a whole number or 'full'")


def test_number_in_quotes(job, run):
    write(job, "lr: 0.1", "lr: '0.1'")
    contains(run(), f"{job}:5: local.lr: found '0.1', expected a number", "without quotes")


def test_duplicate_key(job, run):
    write(job, "rounds: 4", "rounds: 4\nrounds: 5")
    contains(run(), f"{job}:7: the key 'rounds' stands twice")


def test_no_job_file(tmp_path, refused):
    contains(refused("run", tmp_path / "no.yaml"), "no.yaml: cannot be read: No such file")


def test_cohort_larger_than_the_population(run):
    contains(run("cohort.size=5"), "cohort.size: cohorts of 5 clients", "at most 4")


def test_more_ranks_than_clients():
    with pytest.raises(JobError, match=r"5 ranks for 4 clients.*start at most 4 ranks"):
        assign_owners([10, 10, 10, 10], 5)


# The data.


def test_missing_data(tmp_path, run):
    contains(run(f"data.path={tmp_path}/no.npz"), "no.npz: there is no such file")


def test_truncated_npz(arrays, run):
    path = arrays("cut.npz")
    path.write_bytes(path.read_bytes()[:500])
    contains(run(f"data.path={path}"), "cut.npz: not a readable file of numpy arrays")


def test_flipped_byte_in_npz(arrays, run):
    path = arrays("flip.npz")
    content = bytearray(path.read_bytes())
    content[400] ^= 1
    path.write_bytes(content)
    contains(run(f"data.path={path}"), "flip.npz: not a readable file", "CRC")


def test_corrupt_hdf5(tmp_path, run):
    path = tmp_path / "shakespeare_train.h5"
    with h5py.File(path, "w") as file:
        file["examples/ROMEO/snippets"] = [b"But, soft! what light through yonder window"]
    path.write_bytes(path.read_bytes()[:600])
    line = run(f"data={{kind: shakespeare, root: {tmp_path}}}", "model.name=char_lstm")
    contains(line, "shakespeare_train.h5: not a readable HDF5 file")


def test_labels_out_of_range(run):
    contains(run("data.classes=3"), "y runs from 0 to 3", "expected integers from 0 to 2")


def test_client_without_examples(arrays, job, run):
    write(job, ", clients: 4, partition: {kind: iid}", "")
    path = arrays("gap.npz", client=np.arange(40) % 4 * 2)
    contains(run(f"data.path={path}"), "gap.npz: no example is of client 1", "0 to 6; in numpy")


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ("kind: classes", ["data.partition.per_client: missing"]),
        ("kind: classes, per_client: 0", ["data.partition.per_client: found 0, expected"]),
        ("kind: classes, per_client: 2, form: pairs", ["form: found 'pairs', expected 'shards'"]),
        ("kind: classes, per_client: 20", ["per_client: 4 clients of 20 shards need 80", "has 40"]),
        ("kind: classes, per_client: 9, form: exact", ["found 9, but", "are of 4 classes"]),
        ("kind: dirichlet_per_class, alpha: 0.0", ["partition.alpha: found 0.0, expected"]),
        ("kind: dirichlet_per_class, alpha: 1.0, least: 11", ["need 44 training examples", "40"]),
        ("kind: quantity", ["data.partition: form dirichlet needs alpha; set it"]),
        ("kind: quantity, alpha: 1.0, sigma: 2.0", ["sigma is 2.0", "remove sigma, or set"]),
        ("kind: quantity, alpha: 0.001", ["least: in 1000 draws with alpha 0.001"]),
        ("kind: quantity, form: lognormal, sigma: -1.0", ["sigma: found -1.0, expected"]),
        ("kind: shards", ["data.partition.kind: found 'shards'", "dirichlet_per_class, classes"]),
    ],
)
def test_skewed_partitions(run, settings, said):
    contains(run(f"data.partition={{{settings}}}"), *said)


def test_client_without_examples_in_a_partition_file(tmp_path, run):
    np.save(tmp_path / "split.npy", np.arange(40) % 2 * 3)
    line = run(f"data.partition={{kind: file, path: {tmp_path}/split.npy}}")
    contains(line, "data.partition: client 1 of 4 has no example")


def test_initial_model_of_the_wrong_size(tmp_path, run):
    np.save(tmp_path / "init.npy", np.zeros(17))
    contains(run(f"model.init={tmp_path}/init.npy"), "shape (17,), the model has 16 parameters")


# The run directory.


def test_directory_below_a_file(job, tmp_path, refused):
    (tmp_path / "file").write_text("")
    line = refused("run", job, "--out", tmp_path / "file" / "run")
    contains(line, "file/run: cannot be made: Not a directory", "--out")


def test_same_job_again(job, finished, refused):
    contains(refused("run", job, "--out", finished), "this job already; use `hpcfl resume")


def test_directory_of_another_job(job, finished, refused):
    line = refused("run", job, "seed=1", "--out", finished)
    contains(line, "another job: seed is 0 there, 1 here; choose another directory with --out")
    assert yaml.safe_load((finished / "job.yaml").read_text())["seed"] == 0


def test_resume_of_nothing(tmp_path, refused):
    contains(refused("resume", tmp_path), f"{tmp_path}: holds no run (no job.yaml)")


def test_a_log_without_a_checkpoint(finished, job, refused):
    """A new start would delete the log."""
    for checkpoint in committed(finished / "checkpoints"):
        (checkpoint.folder / "manifest.json").unlink()
    before = (finished / "log.jsonl").read_bytes()
    again = ("run", job, "--out", finished)
    for command in (("resume", finished), again, (*again, "--continue")):
        contains(
            refused(*command), f"{finished}: holds the log of a run, but none of its checkpoints;"
        )
    assert (finished / "log.jsonl").read_bytes() == before


def test_resume_without_a_checkpoint(finished, refused):
    for checkpoint in committed(finished / "checkpoints"):
        (checkpoint.folder / "manifest.json").unlink()
    (finished / "log.jsonl").unlink()
    contains(refused("resume", finished), "checkpoints: holds no checkpoint;", "run the job again")


@pytest.mark.parametrize("command", ["run", "resume"])
def test_directory_of_a_live_run(command, job, finished, refused):
    with (finished / "lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        arguments = (job, "--out", finished) if command == "run" else (finished,)
        contains(refused(command, *arguments, code=75), "a run is alive in this directory")


def test_store_file_that_is_gone(half, refused):
    for path in (half / "stores").iterdir():
        path.unlink()
    contains(refused("resume", half), ".h5: the file is missing", "older checkpoint")


def test_truncated_store_file(half, refused):
    for path in (half / "stores").iterdir():
        os.truncate(path, path.stat().st_size - 100)
    contains(refused("resume", half), ".h5: ", "older checkpoint")


def test_flipped_byte_in_the_server(finished, refused):
    path = committed(finished / "checkpoints")[-1].folder / "server.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    contains(refused("resume", finished), "server.safetensors: checksum", "--round 2")


# Divergence.

DIVERGING = """
from dataclasses import dataclass
from torch import where
from hpcfl.algorithms.fedhbm import FedHBM

HEALED = False


@dataclass(frozen=True, kw_only=True)
class Diverging(FedHBM):
    '''Client 3, the one with 13 examples, breaks at t = 3, unless healed.'''

    def finish(self, y, local, message, state, client):
        upload, state = super().finish(y, local, message, state, client)
        broken = (client.examples == 13) & (client.round == 3) & (not HEALED)
        return upload._replace(delta=where(broken, upload.delta / 0, upload.delta)), state
"""


def test_job_changed_after_its_checkpoint(half, refused):
    job = half / "job.yaml"
    job.write_text(job.read_text().replace("seed: 0", "seed: 1"))
    contains(
        refused("resume", half), "job.yaml: checksum ", "it was edited or damaged: put it back"
    )
    text = job.read_text().splitlines(keepends=True)
    job.write_bytes(resolved("".join(text[:-1])))  # of another run
    contains(refused("resume", half), f"is of another job than {job}, such as another seed", "put")


def test_a_checkpoint_of_another_seed(half, job, tmp_path, hpcfl, refused):
    other = tmp_path / "other"
    assert hpcfl("run", job, "seed=1", "--out", other).code == 0
    for folder in (half / "checkpoints").iterdir():
        shutil.rmtree(folder)
    theirs = committed(other / "checkpoints")[-1].folder
    shutil.copytree(theirs, half / "checkpoints" / theirs.name)
    line = refused("resume", half)
    ours = half / "checkpoints" / theirs.name
    contains(line, f"JobError: {ours}: is of another job than {half / 'job.yaml'}, such as another")
    assert "was changed after" not in line


@pytest.mark.parametrize("behind", [" # my note\n", "\nseed: 1\n", ""])
def test_job_with_something_behind_its_checksum(half, refused, behind):
    job = half / "job.yaml"
    job.write_text(job.read_text().rstrip("\n") + behind)
    contains(
        refused("resume", half),
        f"job.yaml: found {behind!r} behind the checksum in its last line, expected a line break",
        "it was edited or damaged: put it back",
    )


def test_log_shorter_than_its_checkpoint(half, refused):
    log = half / "log.jsonl"
    log.write_text("".join(log.read_text().splitlines(keepends=True)[:1]))
    contains(refused("resume", half), "log.jsonl", "expected at least", "put the log back")


def test_a_lost_log_leaves_the_model(hpcfl, job, out, refused):
    """No checkpoint is proposed that needs the log, too."""
    assert hpcfl("run", job, "checkpoint={every: 2, keep: 2}", "--out", out).code == 0
    (out / "log.jsonl").unlink()
    for more in ([], ["--out", out.with_name("branch")]):
        contains(
            refused("resume", out, "rounds=6", *more),
            "log.jsonl: there is no such file, expected the log of the checkpoint",
            "without it `hpcfl export` still writes the model; the log reaches no older checkpoint",
        )
    file = out.with_name("model.npz")
    assert hpcfl("export", out, "-o", file, "--clients").code == 0
    assert file.exists()


def test_divergence_keeps_the_last_checkpoint(tmp_path, arrays, hpcfl, job, out, monkeypatch):
    (tmp_path / "diverging.py").write_text(DIVERGING)
    monkeypatch.syspath_prepend(tmp_path)
    write(job, ", clients: 4, partition: {kind: iid}", "")
    write(job, "size: 2", "size: 4")
    path = arrays("owned.npz", client=np.repeat(np.arange(4), [8, 9, 10, 13]))
    overrides = (f"data.path={path}", "algorithm.name=diverging.Diverging")
    done = hpcfl("run", job, *overrides, "--out", out)
    assert done.code == 3
    contains(done.err[-1], "DivergedError: client 3 on rank 0, round 4", "'delta' is not finite")
    assert [checkpoint.round for checkpoint in committed(out / "checkpoints")] == [0, 2]
    log = [json.loads(line)["round"] for line in (out / "log.jsonl").read_text().splitlines()]
    assert log == [0, 1, 2, 3]

    # The cause removed, the run goes on from its checkpoint as if it had never diverged.
    monkeypatch.setattr(sys.modules["diverging"], "HEALED", True)
    assert hpcfl("resume", out).code == 0
    whole = tmp_path / "whole"
    assert hpcfl("run", job, *overrides, "--out", whole).code == 0
    servers = [d / "checkpoints" / "00000004" / "server.safetensors" for d in (out, whole)]
    assert servers[0].read_bytes() == servers[1].read_bytes()
    del sys.modules["diverging"]
