"""A rehearsal of the measurements on a GPU: figures of every subject, in several calls."""

import json

import pytest

from hpcfl.bench import gpu
from hpcfl.bench.gpu import WORKS, bench_gpu
from hpcfl.bench.result import Measurement
from hpcfl.errors import HpcflError, JobError

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("determinism")]


@pytest.fixture
def quick(monkeypatch):
    """One turn of each side, of one model for each kind of data, in float32."""
    works = {model: WORKS[model] for model in ("lenet", "char_lstm", "linear")}
    monkeypatch.setattr(gpu, "WORKS", works)
    monkeypatch.setitem(gpu.PRECISIONS, "cpu", ("float32",))
    monkeypatch.setattr(gpu, "TURNS", 1)
    monkeypatch.setattr(gpu, "WARMUP", 0)


def test_a_second_call_measures_what_the_first_left(tmp_path, quick):
    path = tmp_path / "bench.json"
    first = bench_gpu(path, None, minutes=1e-9, rehearse=True)
    assert [figure.side for figure in first.figures] == ["sequential", "bare loop", "block"]
    assert "1 of 3 subjects measured; the same command continues" in str(first)
    rest = bench_gpu(path, None, rehearse=True)
    subjects = list(dict.fromkeys(figure.subject for figure in rest.figures))
    assert subjects == ["lenet, float32", "char_lstm, float32", "linear, float32"]
    assert list(rest.figures[0].values) == list(first.figures[0].values)
    assert rest.table.endswith("3 of 3 subjects measured")


def test_a_subject_that_fails_is_told_and_tried_again_at_the_end(tmp_path, monkeypatch):
    def measure(subject, *_):
        if str(subject) == broken:
            raise HpcflError("no room")
        return [Measurement(str(subject), "bare loop", "s", [1.0])]

    monkeypatch.setattr(gpu, "_measure", measure)
    path, broken = tmp_path / "bench.json", "cnn, float32"
    first = bench_gpu(path, None, rehearse=True)
    assert "cnn, float32: failed: no room\n9 of 10 subjects measured; the same" in str(first)
    assert json.loads(path.read_text())["about"]["failed"] == {broken: "no room"}
    broken = ""
    with pytest.raises(HpcflError, match="bench gpu: failed: cnn, float32; see above why") as error:
        first.check()
    assert error.value.exit_code == 1
    again = bench_gpu(path, None, rehearse=True)
    again.check()
    assert again.figures[-1].subject == "cnn, float32"
    assert "failed" not in str(again)


PFL = """#!/bin/sh
[ "$1" = -c ] && exit 0
echo '{"pfl": "0.6.0", "parameters": 1}'
read -r _
echo '{"wall_s": 1.0, "cpu_s": 1.0}'
echo "RuntimeError: no such kernel" >&2
exit 1
"""


def test_a_peer_that_fails_does_not_cost_our_figures(tmp_path, quick, monkeypatch, hpcfl):
    """It ends in its second round; the next call without it is content."""
    monkeypatch.setattr(gpu, "WORKS", {"lenet": WORKS["lenet"]})
    monkeypatch.setattr(gpu, "TURNS", 2)
    path, python = tmp_path / "bench.json", tmp_path / "python"
    python.write_text(PFL)
    python.chmod(0o755)
    words = ("bench", "gpu", "--rehearse", "--json", path)
    done = hpcfl(*words, "--python", python)
    assert done.code == 1
    assert done.err == ["HpcflError: bench gpu: failed: lenet, float32; see above why"]
    assert f"lenet, float32: failed: {python}: pfl ended: RuntimeError: no such kernel" in done.text
    assert "0 of 1 subjects measured; the same command continues" in done.text
    tree = json.loads(path.read_text())
    sides = ["sequential", "bare loop", "block"]
    assert [figure["side"] for figure in tree["figures"]] == sides
    assert list(tree["about"]["failed"]) == ["lenet, float32"]
    done = hpcfl(*words)
    assert done.code == 0, done.err
    assert "1 of 1 subjects measured" in done.text
    assert [figure["side"] for figure in json.loads(path.read_text())["figures"]] == sides


FIGURE = {"subject": "a", "side": "block", "unit": "s", "values": [1.0]}
ABOUT = {"failed": {}, "rehearsal": True}


@pytest.mark.parametrize(
    "changes",
    [
        {"machine": []},
        {"machine": None},
        {"about": {"failed": {}}},
        {"about": {"failed": 3, "rehearsal": True}},
        {"about": []},
        {"figures": 3},
        {"figures": [3]},
        {"figures": [{**FIGURE, "values": []}]},
        {"figures": [{**FIGURE, "values": 3}]},
        {"figures": [{**FIGURE, "values": ["1"]}]},
        {"figures": [{**FIGURE, "subject": {}}]},
        {"figures": [FIGURE, {**FIGURE, "side": "bare loop", "values": [1.0, 2.0]}]},
        {"figures": [FIGURE, {**FIGURE, "side": "bare loop", "values": [0.0]}]},
    ],
)
def test_a_damaged_file_of_figures_is_refused_in_one_line(tmp_path, refused, changes):
    path = tmp_path / "bench.json"
    path.write_text(json.dumps({"machine": {}, "about": ABOUT, "figures": [FIGURE], **changes}))
    said = refused("bench", "gpu", "--rehearse", "--json", path)
    assert said.startswith(f"JobError: {path}: found no figures of bench gpu (")
    assert said.endswith("name another file with --json, or remove it")


def test_figures_of_different_work_are_not_collected(tmp_path, monkeypatch):
    monkeypatch.setattr(gpu, "_measure", lambda s, *_: [Measurement(str(s), "block", "s", [1.0])])
    path = tmp_path / "bench.json"
    bench_gpu(path, None, rehearse=True)
    tree = json.loads(path.read_text())
    tree["machine"]["torch"] = "1.0"
    path.write_text(json.dumps(tree))
    with pytest.raises(JobError, match=r"bench\.json: its torch is 1\.0, now it is .* or remove"):
        bench_gpu(path, None, rehearse=True)
    path.write_text("{}")
    with pytest.raises(JobError, match=r"bench\.json: found no figures of bench gpu"):
        bench_gpu(path, None, rehearse=True)


def test_without_a_gpu(hpcfl, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    done = hpcfl("bench", "gpu")
    assert done.code == 2
    assert done.err == ["JobError: bench gpu: found no GPU; --rehearse runs tiny jobs on the CPU"]
