import csv
import io
from dataclasses import replace
from zlib import crc32

import pytest
from rich.console import Console

from hpcfl.errors import JobError, StoreError
from hpcfl.runs import record
from hpcfl.runs.record import read_run
from hpcfl.tools.report import by_run, by_seed, plain, tables, to_csv, to_markdown
from hpcfl.tools.report.collect import collect_runs
from tests.rundirs import cut_log, log_of, resolved

JOB = "rounds: 4\nalgorithm: {name: fedhbm, beta: 1.0}\nevaluate: {every: 2, last: 2}\n"
LOG = [
    {"round": 0, "test_loss": 2.5, "test_accuracy": 0.125},
    {"round": 1, "wall_s": 1.5, "clients": 2, "train_loss": 2.0, "down_bytes": 10, "up_bytes": 20},
    {"round": 2, "wall_s": 1.5, "clients": 2, "train_loss": 1.5, "down_bytes": 10, "up_bytes": 20,
     "test_loss": 1.25, "test_accuracy": 0.5},
    {"round": 3, "wall_s": 1.5, "clients": 2, "train_loss": 1.0, "down_bytes": 10, "up_bytes": 20,
     "test_loss": 0.75, "test_accuracy": 0.875},
    {"round": 4, "wall_s": 1.5, "clients": 2, "train_loss": 0.5, "down_bytes": 10, "up_bytes": 20,
     "test_loss": 0.5, "test_accuracy": 0.625},
]  # fmt: skip


def seed_rows(runs, beside=None):
    (table,) = by_seed(runs, beside).tables
    return [list(table.titles), *map(list, table.rows)]


@pytest.fixture
def make_run(tmp_path):
    def make(log=LOG, job=JOB, name="a-run", tail=b""):
        path = tmp_path / name
        path.mkdir()
        (path / "job.yaml").write_bytes(resolved(job))
        (path / "log.jsonl").write_bytes(log_of(log) + tail)
        return path

    return make


def test_a_finished_run(make_run):
    run = read_run(make_run())
    assert (run.name, run.algorithm, run.done, run.rounds) == ("a-run", "fedhbm", 4, 4)
    assert run.finished
    assert run.last("test_accuracy") == 0.625
    assert run.last("test_loss") == 0.5
    assert run.best == (3, 0.875)
    assert run.mean_accuracy == 0.75  # of rounds 3 and 4
    assert (run.total("wall_s"), run.total("down_bytes"), run.total("up_bytes")) == (6, 40, 80)
    assert run.scores["test_loss"] == ((0, 2.5), (2, 1.25), (3, 0.75), (4, 0.5))


def test_a_run_in_progress_is_read_up_to_its_cut_line(make_run):
    run = read_run(make_run(LOG[:3], tail=b'{"round": 3, "wall_'))
    assert (run.done, run.finished, run.mean_accuracy) == (2, False, None)
    assert "unfinished" in plain(by_run([run]))


def test_a_number_cut_short_does_not_count(make_run):
    """Without its line end it is not written."""
    assert read_run(make_run(LOG[:1], tail=log_of([{"round": 8}])[:-1])).done == 0


def test_a_run_that_only_just_began(make_run):
    path = make_run()
    (path / "log.jsonl").unlink()
    run = read_run(path)
    assert (run.done, run.best, run.last("test_loss")) == (0, None, None)
    assert "| 0/4 unfinished | 0 bytes | 0 bytes | 0.0 s |" in to_markdown(by_run([run]))


def test_the_first_of_equally_good_rounds_is_the_best(make_run):
    log = [
        {"round": t, "test_accuracy": a, "test_loss": 1.0} for t, a in enumerate([0.1, 0.9, 0.9])
    ]
    assert read_run(make_run(log)).best == (1, 0.9)


def test_a_directory_that_is_no_run(tmp_path):
    (tmp_path / "file").touch()
    (tmp_path / "empty").mkdir()
    states = {
        ".": "no job.yaml here", "file": "is a file", "empty": "is empty",
        "absent": "no such directory",
    }  # fmt: skip
    for name, said in states.items():
        path = tmp_path / name
        with pytest.raises(JobError) as caught:
            read_run(path)
        assert str(caught.value).startswith(f"{path}: {said}, so this is no run directory; name ")


@pytest.mark.parametrize("job", ["rounds: 4\n", "rounds: [\n", "7\n", "\n"])
def test_a_job_that_is_not_resolved(make_run, job):
    with pytest.raises(StoreError, match="not the resolved job") as caught:
        read_run(make_run(job=job))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("line", ["{not json}", "7", '{"round": "3"}'])
def test_a_damaged_line_is_named(make_run, line):
    with pytest.raises(StoreError, match=r"log.jsonl:2: "):
        read_run(make_run(LOG[:1], tail=line.encode() + b"\n"))
    body = line.removesuffix("}").encode()
    with pytest.raises(StoreError, match=r"log.jsonl:2: "):  # a right checksum does not save it
        read_run(make_run(LOG[:1], tail=b'%s, "crc32": %d}\n' % (body, crc32(body)), name="b"))


def test_a_line_break_that_became_another_character(make_run):
    """It is not taken for a line that is being written."""
    path = make_run()
    content = (path / "log.jsonl").read_bytes()
    for bit in range(8):
        (path / "log.jsonl").write_bytes(content[:-1] + bytes([content[-1] ^ 1 << bit]))
        with pytest.raises(StoreError, match=r"log.jsonl:5: its end is damaged, expected a line"):
            read_run(path)


def test_a_log_that_is_shorter_than_its_checkpoint_says(job, tmp_path, hpcfl, refused):
    """Nor is a round left out that was deleted in the middle."""
    run = tmp_path / "run"
    assert hpcfl("run", job, "--out", run).code == 0
    log = (run / "log.jsonl").read_bytes().splitlines(keepends=True)
    for lines in (log[:-1], log[:2] + log[3:], []):
        (run / "log.jsonl").write_bytes(b"".join(lines))
        for command in ("status", "report", "resume"):
            assert f"{run}/log.jsonl: " in refused(command, run)


def test_a_resume_that_cuts_the_log_while_it_is_read(job, tmp_path, hpcfl, monkeypatch):
    """The checkpoint that knew of more rounds is given up before."""
    run = tmp_path / "run"
    assert hpcfl("run", job, "--out", run).code == 0
    require = record.require_log_prefix

    def overtaken(path, extent):
        cut_log(run, 2)
        monkeypatch.setattr(record, "require_log_prefix", require)
        return require(path, extent)

    monkeypatch.setattr(record, "require_log_prefix", overtaken)
    assert read_run(run).done == 4
    assert read_run(run).done == 2


ROW = ["a-run", "fedhbm", "4/4", "62.50", "87.50 @3", "75.00", "0.5"]


def test_tables_agree(make_run):
    runs = [read_run(make_run()), read_run(make_run(LOG[:2], name="b|run"))]
    first, second = to_markdown(by_run(runs)).splitlines()[2:4]
    assert first == "| " + " | ".join([*ROW, "40 bytes", "80 bytes", "6.0 s"]) + " |"
    assert second.startswith(r"| b\|run | fedhbm | 1/4 unfinished | 12.50 |")
    printed = plain(by_run(runs))
    assert printed.isascii()
    assert [cell.strip() for cell in printed.splitlines()[4].split("|")[1:-1]][:7] == ROW
    out = io.StringIO()
    Console(file=out, width=1000).print(*tables(by_run(runs)))
    assert printed == out.getvalue() + "best: chosen on the test set\n"


def test_csv_keeps_full_precision_and_plain_units(make_run):
    log = [{**LOG[0], "test_accuracy": 1 / 3, "up_bytes": 2**40 + 1}]
    (row,) = csv.DictReader(io.StringIO(to_csv(by_run([read_run(make_run(log))]))))
    assert float(row["test_accuracy"]) == 1 / 3
    assert row["up_bytes"] == str(2**40 + 1)
    assert row["mean_accuracy"] == ""


def test_a_regression_has_no_accuracy(make_run):
    log = [{"round": t, "wall_s": 1000.0, "test_loss": 1.0, "up_bytes": 4e9} for t in range(5)]
    row = to_markdown(by_run([read_run(make_run(log))])).splitlines()[2]
    assert row.endswith("| 4/4 | loss 1 @0 | 1 | 0 bytes | 20.0 GB | 1:23:20 |")


ASKED = {
    "test_top5_accuracy": 0.95, "train_objective": 0.25, "client_accuracy_mean": 0.75,
    "client_accuracy_worst_decile": 0.5, "local_model_accuracy_mean": 0.875,
    "local_model_accuracy_worst_decile": 0.625,
}  # fmt: skip


def test_scores_that_were_asked_for_have_columns(make_run):
    """As soon as one run has them; a log without them is as before."""
    scored, plain_ = (
        read_run(make_run([*LOG[:4], {**LOG[4], **ASKED}])),
        read_run(make_run(name="b")),
    )
    title, _, first, second, *_ = to_markdown(by_run([scored, plain_])).splitlines()
    assert (
        "| top 5 % | objective | clients mean % | worst decile % | local models mean % |" in title
    )
    assert "| 0.5 | 95.00 | 0.25 | 75.00 | 50.00 | 87.50 | 62.50 | 40 bytes |" in first
    assert "| 0.5 | - | - | - | - | - | - | 40 bytes |" in second
    assert "objective" not in to_markdown(by_run([plain_]))
    row, other = csv.DictReader(io.StringIO(to_csv(by_run([scored, plain_]))))
    assert {key: float(row[key]) for key in ASKED} == ASKED
    assert {other[key] for key in ASKED} == {""}
    assert (row["lowest_loss"], row["lowest_loss_round"]) == ("0.5", "4")


def test_the_lowest_loss_is_the_first_of_equals_and_a_number(make_run):
    losses = [float("nan"), 2.0, 1.0, 1.0, 3.0]
    log = [{"round": t, "test_loss": loss} for t, loss in enumerate(losses)]
    assert read_run(make_run(log)).lowest == (2, 1.0)


SEEDED = """\
rounds: 4
seed: {seed}
local: {{lr: {lr}}}
algorithm: {{name: {name}}}
evaluate: {{last: 2}}
"""


def test_runs_of_one_job_are_told_apart_by_what_differs(make_run):
    jobs = [("fedavg", 0, 0.1), ("fedavg", 1, 0.1), ("fedavg", 0, 0.5), ("fedhbm", 0, 0.1)]
    runs = [
        read_run(make_run(job=SEEDED.format(name=name, seed=seed, lr=lr), name=f"r{index}"))
        for index, (name, seed, lr) in enumerate(jobs)
    ]
    rows = list(csv.DictReader(io.StringIO(to_csv(by_run(runs)))))
    assert [row["settings"] for row in rows] == [
        "seed 0, local.lr 0.1", "seed 1, local.lr 0.1", "seed 0, local.lr 0.5",
        "seed 0, local.lr 0.1",
    ]  # fmt: skip
    assert "| r2 | fedavg | seed 0, local.lr 0.5 | 4/4 |" in to_markdown(by_run(runs))
    assert "settings" not in to_markdown(by_run([runs[0], runs[3]]))  # the algorithm has its column


def test_runs_of_one_name_are_told_apart_by_the_folder_above(make_run, tmp_path):
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        make_run(name=f"{folder}/run")
    make_run(name="b/other", job=JOB.replace("4", "5"))
    runs = collect_runs([tmp_path / "a" / "run", tmp_path / "b"]).runs
    lines = to_markdown(by_run(runs)).splitlines()[2:5]
    assert [line.split(" | ")[0] for line in lines] == ["| a/run", "| other", "| b/run"]


def test_means_over_seeds(make_run):
    def one(name, seed, accuracy, rounds=4):
        log = [{**entry, "test_accuracy": accuracy} for entry in LOG[: rounds + 1]]
        job = SEEDED.format(name=name, seed=seed, lr=0.1)
        return read_run(make_run(log, job, name=f"{name}{seed}"))

    runs = [one("fedavg", 0, 0.5), one("fedavg", 1, 0.7), one("fedavg", 2, 0.9, rounds=3)]
    runs.append(one("fedhbm", 0, 0.25))
    titles, averaged, single = seed_rows(runs)
    assert titles[:3] == ["algorithm", "seeds", "accuracy\n%"]
    # sqrt((10^2 + 10^2) / 1) = 14.14; the unfinished run does not count
    assert averaged[:3] == ["fedavg", "2 of 3", "60.00 +- 14.14"]
    assert single[:3] == ["fedhbm", "1", "25.00"]
    assert "| fedavg | 2 of 3 | 60.00 +- 14.14 |" in to_markdown(by_run(runs))
    assert "60.00 +- 14.14" in plain(by_run(runs))
    assert len(by_run([runs[0], runs[3]]).tables) == 1  # one seed each: no means
    assert "objective" not in titles


def test_of_two_runs_of_a_seed_the_longer_counts(make_run):
    """A try that was killed, and another one after it."""
    job = SEEDED.format(name="fedavg", seed=0, lr=0.1)
    killed, whole = read_run(make_run(LOG[:2], job, "a")), read_run(make_run(LOG, job, "b"))
    for runs in ([killed, whole], [whole, killed]):
        _, row = seed_rows(runs)
        assert row[:3] == ["fedavg", "1", "62.50"]
        (table,) = by_seed(runs).tables
        assert any(
            str(line).startswith("left out: a: another run of the same") for line in table.captions
        )
    assert not any("left out" in str(line) for line in by_seed([whole]).tables[0].captions)


def test_no_mean_of_means_over_different_rounds(make_run):
    """Of the last two rounds in one run, of the last in the other."""
    runs = []
    for seed, last in enumerate((2, 1)):
        job = SEEDED.format(name="fedavg", seed=seed, lr=0.1)
        job = job.replace("last: 2", f"last: {last}")
        assert f"last: {last}" in job
        runs.append(read_run(make_run(job=job, name=f"s{seed}")))
    titles, row = seed_rows(runs)
    assert row[:3] == ["fedavg", "2", "62.50 +- 0.00"]
    assert "mean of\nlast %" not in titles  # blank
    report = by_seed(runs)
    assert report.values[0]["mean_accuracy"] is None
    said = "s0 and s1 have different evaluate.last: there is no common mean of the last rounds"
    assert said in map(str, report.tables[0].captions)


def test_means_over_seeds_of_what_was_asked_for(make_run):
    runs = [
        read_run(make_run([*LOG[:4], {**LOG[4], "train_objective": value}],
                         SEEDED.format(name="fedavg", seed=seed, lr=0.1), name=f"o{seed}"))
        for seed, value in enumerate([1.0, 3.0])
    ]  # fmt: skip
    titles, averaged = seed_rows(runs)
    assert averaged[titles.index("objective")] == "2 +- 1.414"


WATCHED = """\
rounds: 4
seed: {seed}
threads: {threads}
algorithm: {{name: fedhbm}}
evaluate: {{last: {seed}}}
"""


def test_how_a_run_is_watched_is_no_setting_of_it(make_run):
    """Neither told, nor in the way of a mean over seeds."""
    runs = [
        read_run(make_run(job=WATCHED.format(seed=seed, threads=1 + seed), name=f"w{seed}"))
        for seed in range(2)
    ]
    assert [row["settings"] for row in csv.DictReader(io.StringIO(to_csv(by_run(runs))))] == [
        "seed 0", "seed 1",
    ]  # fmt: skip
    assert seed_rows(runs)[1][:2] == ["fedhbm", "2"]


def test_long_settings_are_wrapped(make_run, monkeypatch):
    """To the terminal, if that is wide enough: no number and no setting is cut."""
    keys = ["a_key", "another_long_name_of_a_key", "one_more_long_name"]
    runs = [
        read_run(make_run(job=JOB + f"local: {{{', '.join(f'{key}: {k}' for key in keys)}}}\n",
                         name=f"l{k}"))
        for k in range(2)
    ]  # fmt: skip
    widths = {}
    for columns in (20, 140, 400):
        monkeypatch.setenv("COLUMNS", str(columns))
        printed = plain(by_run(runs))
        assert printed.isascii()
        assert "75.00" in printed
        assert all(f"local.{key}" in printed for key in keys)
        widths[columns] = max(map(len, printed.splitlines()))
    assert 100 < widths[20] < widths[140] == 140 < widths[400]


def test_means_over_seeds_for_programs(make_run):
    """Their means and sample standard deviations, in fractions; what lacks stays empty."""
    runs = [
        read_run(make_run([*LOG[:4], {**LOG[4], "test_accuracy": accuracy}],
                         SEEDED.format(name=name, seed=seed, lr=0.1), name=f"{name}{seed}"))
        for name, seed, accuracy in (("fedavg", 0, 0.5), ("fedavg", 1, 0.75), ("fedhbm", 0, 0.25))
    ]  # fmt: skip
    late = read_run(make_run(LOG[:2], SEEDED.format(name="fedavg", seed=2, lr=0.1), name="late"))
    avg, hbm = csv.DictReader(io.StringIO(to_csv(by_seed([*runs, late]))))
    assert (avg["algorithm"], avg["seeds"], avg["seeds_finished"]) == ("fedavg", "3", "2")
    assert float(avg["test_accuracy"]) == 0.625
    assert float(avg["test_accuracy_std"]) == pytest.approx(0.03125**0.5)
    assert (avg["up_bytes"], avg["train_objective"]) == ("80.0", "")
    assert (hbm["test_accuracy"], hbm["test_accuracy_std"]) == ("0.25", "")


def test_a_task_stands_for_what_follows_from_it(make_run):
    """The batch size does; a rate that differs within a task, and the seed, do not."""
    job = "rounds: 4\ntask: {}\nseed: {}\nlocal: {{lr: {}, batch: {}}}\n"
    rest = JOB.partition("\n")[2]
    kinds = [("a", 0, 0.1, 8), ("a", 0, 0.5, 8), ("b", 1, 0.1, 16)]
    runs = [
        read_run(make_run(job=job.format(*kind) + rest, name=f"t{k}"))
        for k, kind in enumerate(kinds)
    ]
    assert [row["settings"] for row in csv.DictReader(io.StringIO(to_csv(by_run(runs))))] == [
        "task a, seed 0, local.lr 0.1", "task a, seed 0, local.lr 0.5",
        "task b, seed 1, local.lr 0.1",
    ]  # fmt: skip


def test_what_became_of_an_unfinished_run(make_run):
    run = read_run(make_run(LOG[:2]))
    assert "| 1/4 unfinished |" in to_markdown(by_run([run]))
    assert "| 1/4 failed |" in to_markdown(by_run([replace(run, failed=True)]))
    (row,) = csv.DictReader(io.StringIO(to_csv(by_run([run]))))
    assert row["state"] == "unfinished"


def test_a_seed_that_diverged(make_run):
    """Its loss has no standard deviation; the report goes on."""
    runs = [
        read_run(make_run([*LOG[:4], {**LOG[4], "test_loss": loss}],
                         SEEDED.format(name="fedavg", seed=seed, lr=0.1), name=f"d{seed}"))
        for seed, loss in enumerate([0.5, float("inf")])
    ]  # fmt: skip
    titles, row = seed_rows(runs)
    assert row[titles.index("test\nloss")] == "inf +- nan"
    (values,) = csv.DictReader(io.StringIO(to_csv(by_seed(runs))))
    assert (values["test_loss"], values["test_loss_std"]) == ("inf", "nan")
