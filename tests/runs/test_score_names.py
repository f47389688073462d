"""The scores stand in one list, from which all that shows them derives."""

import io

import pytest

import hpcfl
from hpcfl.runs.record import read_run
from hpcfl.runs.score_names import SCORES, Score, is_score
from hpcfl.start.progress import open_progress
from hpcfl.tools.report.columns import score_columns
from hpcfl.tools.report.plots import Plot
from hpcfl.tools.status import status
from tests.rundirs import log_of


@pytest.fixture
def trained(job, tmp_path, determinism):
    """A run of the algorithm with all scores that it can have."""

    def go(algorithm, **asked):
        settings = {
            "algorithm.name": algorithm,
            "data.validation": {"share": 0.25},
            "evaluate": {"train": True, "clients": True, **asked},
        }
        return hpcfl.run(job, settings, out=tmp_path / algorithm)

    return go


def test_every_score_that_is_written_is_listed(trained):
    scores = set()
    for run in (trained("fedhbm", local_models=True), trained("ditto", personal=True)):
        *_, before, evaluated = run.log
        scores |= evaluated.keys() - before.keys()
    # Those that these runs cannot have: of more classes, of tokens, of bits, and of DP-FedAvg.
    others = {key for key in SCORES if key.endswith(("top5_accuracy", "perplexity", "_f1"))}
    others |= {"epsilon"}
    assert scores - {"local_model_clients"} == SCORES.keys() - others
    assert not any(is_score(key) for key in before)


def test_clients_own_models_come_first(trained):
    """In status a line tells of them, in reports their scores are the first."""
    own, x = trained("ditto", personal=True), trained("fedavg")
    told = "each client's own model, scored as personal; other scores are of x alone"
    assert [told in status(run.directory) for run in (own, x)] == [True, False]
    assert [
        next(column.key for column in score_columns([*map(read_run, runs)]) if column.title)
        for runs in ([own.directory], [own.directory, x.directory])
    ] == ["personal_accuracy", "test_accuracy"]


def test_one_more_score_is_one_line(trained, monkeypatch, tmp_path):
    trained = trained("fedavg")
    monkeypatch.setitem(SCORES, "newer", Score("newer", "a title", "lower", percent=False))
    evaluated = {"round": 4, "train_loss": 0.5, "newer": 2.5}
    log = [*({"round": t, "train_loss": 1.0} for t in range(4)), evaluated]
    (trained.directory / "log.jsonl").write_bytes(log_of(log))
    for manifest in trained.directory.glob("checkpoints/*/manifest.json"):
        manifest.unlink()  # they would hold the log to be longer
    assert "a title     2.5 after round 4" in status(trained.directory).splitlines()
    frame = hpcfl.read_runs([trained.directory])
    assert frame["newer"].tolist() == [2.5]
    said = io.StringIO()
    with open_progress("run", 4, 0, 0, stream=said) as progress:
        progress.round(evaluated)
    assert "newer 2.5" in said.getvalue()
    plot = Plot([read_run(trained.directory)], [tmp_path / "a.png"])
    plot.draw()
    assert (tmp_path / "a.png").exists()
