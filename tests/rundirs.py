"""Run directories, as tests look at them and damage them."""

import json
import shutil

import torch

from hpcfl.io import checksum
from hpcfl.job.load import load
from hpcfl.runs.job_file.yaml_file import add_checksum
from hpcfl.runs.manifest import committed, committed_folders
from hpcfl.runs.sweep_log import log_line
from hpcfl.start.components.build import build_components
from hpcfl.store.row_table import Table
from hpcfl.store.segment_file import inspect


def starts(run):
    return [json.loads(line) for line in (run / "history.jsonl").read_text().splitlines()]


def text(path):
    return {p.relative_to(path): p.read_bytes() for p in sorted(path.rglob("*")) if p.is_file()}


def flip(path, at):
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)


def segment(run):
    (found,) = (run / "stores").glob("*.h5")
    return found


def sessions(stores):
    """The ids of the sessions that made the segments in a folder."""
    return {path.name.split("-")[0] for path in stores.rglob("*-r*-s*.h5*")}


def row_tables(checkpoint):
    """The content of a checkpoint's row tables, by name."""
    found = sorted(checkpoint.rglob("rows-*.npz"))
    return {path.relative_to(checkpoint).as_posix(): path.read_bytes() for path in found}


def damage_a_row(run):
    """Flip a byte of a row that only the newest checkpoint names; the row and its client."""
    tables = [Table.load(found.folder, run / "stores") for found in committed(run / "checkpoints")]
    older, newest = (set(table.rows.tolist()) for table in tables)
    clients = dict(zip(tables[-1].rows.tolist(), tables[-1].clients.tolist(), strict=True))
    row = min(newest - older)
    path = segment(run)
    schema = build_components(
        load(run / "job.yaml"), torch.device("cpu"), resumed=True
    ).training.schema.client_state
    flip(path, inspect(path, schema).offsets[0] + row * schema.bytes + 5)
    return row, clients[row]


def log_of(records):
    """The content of a log.jsonl, or of a history.jsonl, with these records."""
    return b"".join(checksum.add_to_json(json.dumps(record)) + b"\n" for record in records)


def resolved(text):
    """The content of a run directory's job.yaml."""
    return add_checksum(text.encode())


def planned(text):
    """A job file as a sweep writes it, with every section."""
    return f"{text}diagnostics: {{}}\ncheckpoint: {{}}\nstore: {{}}\nthreads: 1\n"


def events_of(text):
    """The content of a sweep.log with these lines."""
    return b"".join(log_line(line) for line in text.splitlines())


def cut_log(run, rounds):
    """Leave the run as one that died after so many rounds."""
    log = (run / "log.jsonl").read_text().splitlines(keepends=True)
    (run / "log.jsonl").write_text("".join(log[: rounds + 1]))
    for folder in committed_folders(run / "checkpoints"):
        if int(folder.name) > rounds:
            shutil.rmtree(folder)
