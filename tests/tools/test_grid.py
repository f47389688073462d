"""Sweep files: what they expand to, and how their mistakes are told."""

import pytest

from hpcfl.errors import JobError
from hpcfl.job.load import load
from hpcfl.tools.sweep.grid import read_sweep

JOB = """\
task: digits
data: {clients: 10}
cohort: {kind: uniform, size: 2}
algorithm: {name: fedavg}
local: {lr: 0.1}
rounds: 4
"""

SWEEP = """\
job: base.yaml
set: {rounds: 3, local.batch_size: 8}
grid:
  method:
    avg: {algorithm: {name: fedavg}}
    hbm:
      algorithm: {name: fedhbm, beta: 0.5}
      local.lr: 1.0e-3
  seed: [0, 7]
"""


@pytest.fixture
def sweep(tmp_path):
    (tmp_path / "base.yaml").write_text(JOB)

    def make(text=SWEEP, *overrides):
        path = tmp_path / "s.yaml"
        path.write_text(text)
        return read_sweep(path, overrides)

    return make


@pytest.fixture
def refused(sweep, tmp_path):
    """The one line about a sweep that must be refused, without the folder."""

    def make(text, *overrides):
        with pytest.raises(JobError) as caught:
            sweep(text, *overrides)
        line = str(caught.value)
        assert "\n" not in line
        return line.replace(f"{tmp_path}/", "")

    return make


def test_the_grid_is_the_product_of_its_axes(sweep):
    found = sweep()
    assert (found.name, found.ranks) == ("s", 1)
    assert [point.name for point in found.points] == ["avg-seed0", "avg-seed7", "hbm-seed0",
                                                      "hbm-seed7"]  # fmt: skip
    job = found.points[3].loaded.job
    assert (job.rounds, job.local.batch_size, job.local.lr, job.seed) == (3, 8, 1e-3, 7)
    assert job.algorithm.beta == 0.5
    assert found.points[0].loaded.job.local.lr == 0.1  # the other axis leaves no trace


def test_overrides_say_the_same_on_the_command_line(sweep):
    found = sweep(SWEEP, "evaluate={every: 2}", "rounds=5")
    base = found.path.with_name("base.yaml")
    for point in found.points:
        typed = load(base, point.overrides).job
        assert typed.rounds == point.loaded.job.rounds == 5
        assert typed.local == point.loaded.job.local
        assert typed.evaluate == point.loaded.job.evaluate
        assert typed.seed == point.loaded.job.seed


@pytest.mark.parametrize(
    ("axes", "names"),
    [
        ("local.lr: [0.1, 1.0e-5]", ["lr0.1", "lr1e-05"]),
        ("weights: [examples, uniform]", ["examples", "uniform"]),
        ("local.drop_last: [true, false]", ["drop_last-true", "drop_last-false"]),
        ("{cohort.size: [1], data.clients: [9]}", ["size1-clients9"]),
        ("{seed: [1], data.partition: {iid: {data.partition: {kind: iid, seed: 3}}}}",
         ["seed1-iid"]),
    ],
)  # fmt: skip
def test_names_can_be_read(sweep, axes, names):
    found = sweep("job: base.yaml\ngrid:\n  " + axes)
    assert [point.name for point in found.points] == names


def test_keys_of_one_last_name_are_told_in_full(sweep):
    text = "job: base.yaml\ngrid: {evaluate.every: [2], checkpoint.every: [3]}"
    assert sweep(text).points[0].name == "evaluate.every2-checkpoint.every3"


@pytest.mark.parametrize(
    ("old", "new", "line"),
    [
        ("beta: 0.5", "bet: 0.5", 's.yaml:7: algorithm.bet: fedhbm has no "bet"'),
        ("lr: 1.0e-3", "lr: '1e-3'", "s.yaml:8: local.lr: found '1e-3', expected a number"),
        ("seed: [0", "seeds: [0", 's.yaml:9: seeds: a job has no "seeds"'),
        ("seed: [0, 7]", "seed: [0, x]", "s.yaml:9: seed: found 'x', expected a whole number"),
        ("seed: [0, 7]", "seed: [7, 7]", "s.yaml:9: grid.seed: 7 occurs twice; remove one"),
        ("seed: [0, 7]", "seed: []", "s.yaml:9: grid.seed: found [], expected a list of values or "
         "a mapping of named points that is not empty"),
        ("seed: [0, 7]", "seed: 7", "s.yaml:9: grid.seed: found 7, expected a list of values"),
        ("seed: [0, 7]", "data: [{}]", "s.yaml:9: grid.data: {} makes no name of a directory"),
        ("avg:", "a/b:", "s.yaml:5: 'a/b' names a directory"),
        ("avg: {algorithm: {name: fedavg}}", "avg: 3", "s.yaml:5: grid.method.avg: found 3"),
        ("local.batch", "local..batch", "s.yaml:2: 'local..batch_size': expected a key"),
        ("grid:", "grids:", 's.yaml:3: a sweep has no "grids" (it has job, set, grid, only, ranks'),
        ("grid:", "ranks: 0\ngrid:", "s.yaml:3: ranks: found 0, expected a whole number"),
        ("job: base.yaml", "job: 3", "s.yaml:1: job: found 3, expected a job's file"),
        ("job: base.yaml\n", "", "s.yaml: job: missing, expected a job's file or the name of a "),
        ("base.yaml", "other.yaml", "s.yaml:1: job: other.yaml: cannot be read: No such file"),
        ("rounds: 3", "cohort.size: 11", "s.yaml:5: avg-seed0: cohort"),
        ("name: fedavg", "name: centralized", "s.yaml:5: avg-seed0: algorithm.name: centralized "),
        ("set: {", "set: {data.clients: null, data.partition: {kind: pooled}, cohort.size: 2, ",
         "s.yaml:5: avg-seed0: cohort.size: cohorts of 2 clients, but the population has 1"),
        ("seed: [0, 7]", "local.lr: [2.0]", "s.yaml:9: local.lr would undo local.lr of "),
        ("rounds: 3", "algorithm.name: fedcm", "s.yaml:5: algorithm would undo algorithm.name of "),
        ("rounds: 3", "local.lr: 0.1, local: {lr: 0.2}", "s.yaml:2: local would undo local.lr of "),
        ("{algorithm: {name: fedavg}}", "{algorithm.server_lr: 0.1, algorithm: {name: fedavg}}",
         "s.yaml:5: algorithm would undo algorithm.server_lr of s.yaml:5; say it once, and whole"),
    ],
)  # fmt: skip
def test_a_mistake_is_told_with_its_line_before_anything_runs(refused, old, new, line):
    assert old in SWEEP
    assert refused(SWEEP.replace(old, new)).startswith(line)


def test_a_section_of_a_point_keeps_the_keys_of_set(sweep):
    """First the section, then the keys that `set` has of it, in all of the points."""
    text = """\
job: base.yaml
set: {data.validation: {share: 0.2}, algorithm.server_lr: 2.0}
grid:
  data:
    base: {data.clients: 5}
    digits: {data: {kind: digits, clients: 8, partition: {kind: iid}}}
  method: {avg: {algorithm: {name: fedavg}}, same: {rounds: 4}}
"""
    points = sweep(text).points
    jobs = [point.loaded.job for point in points]
    assert [job.data.validation.share for job in jobs] == [0.2] * 4
    assert [job.data.clients for job in jobs] == [5, 5, 8, 8]
    assert [job.algorithm.server_lr for job in jobs] == [2.0] * 4


def test_the_base_may_be_a_packaged_job(sweep):
    found = sweep(SWEEP.replace("base.yaml", "quickstart"))
    assert found.points[0].loaded.job.rounds == 3
    assert found.points[0].loaded.job.data == load("quickstart").job.data


def test_the_nearest_name_is_told(refused):
    assert refused(SWEEP.replace("beta: 0.5", "bet: 0.5")).endswith("did you mean beta?")


@pytest.mark.parametrize(
    ("axis", "meant"),
    [("lr: [0.1, 0.2]", "local.lr"), ("method: [fedavg, scaffold]", "algorithm.name")],
)
def test_an_axis_with_a_list_is_a_key(refused, axis, meant):
    line = refused(f"job: base.yaml\ngrid:\n  {axis}\n")
    assert line.startswith(f's.yaml:3: {axis.partition(":")[0]}: a job has no "')
    assert line.endswith(
        f"did you mean {meant}? (an axis with a list of values is a key of the job)"
    )


def test_a_mistake_on_the_command_line(refused):
    assert refused(SWEEP, "local.lrr=3").startswith("command line: local.lrr: ")
    assert refused(SWEEP, "seed=3") == (
        "seed is an axis of the grid (s.yaml:9); take it off the command line, or out of the grid"
    )
    assert refused(SWEEP, "local.lr=1.0").startswith("local.lr is set in the grid (s.yaml:8); ta")
    assert refused(SWEEP, "algorithm.beta=0.1") == (
        "algorithm is set in the grid (s.yaml:5); take algorithm.beta off the command line, or "
        "out of the grid"
    )


def test_jobs_and_sweeps_are_told_apart(refused, tmp_path, sweep):
    assert refused(JOB) == "s.yaml: this is a job, not a sweep; use `hpcfl run s.yaml`"
    sweep()
    with pytest.raises(
        JobError, match=r"s.yaml: this is a sweep, not a job; use `hpcfl sweep /.* over its job"
    ):
        load(tmp_path / "s.yaml")
    (tmp_path / "t.yaml").write_text(SWEEP.replace("base", "s"))
    with pytest.raises(JobError, match=r"t.yaml:1: job: .*s.yaml is a sweep, expected a job's"):
        read_sweep(tmp_path / "t.yaml")


# With what is made of it: of `sweep` sweep.log.
NAMES_OF_FILES = (
    *("lock", "sweep", "sweep.log", "report.png", "a.log", "a.yaml"),
    *("a.part", "a.yaml.part", "a.12.starts"),
)


@pytest.mark.parametrize("name", NAMES_OF_FILES)
def test_names_of_the_sweeps_own_files(refused, name):
    text = f"job: base.yaml\ngrid:\n  lr:\n    {name}: {{local.lr: 0.1}}"
    assert refused(text).startswith(f"s.yaml:4: a run cannot be called '{name}'")


@pytest.mark.parametrize(
    ("setting", "clients"),
    [("data.clients: 3", 3), ("data: {clients: null, partition: {kind: pooled}}", 1)],
)
def test_no_rank_without_clients(sweep, refused, setting, clients):
    text = f"job: base.yaml\nset: {{cohort.size: 1, {setting}}}\ngrid: {{seed: [0]}}\nranks: "
    assert sweep(f"{text}{clients}").ranks == clients
    line = f"s.yaml:4: ranks: seed0 has {clients} client(s), and {clients + 1} ranks; a rank would"
    assert refused(f"{text}{clients + 1}").startswith(line)


def test_a_job_without_a_grid(refused):
    assert refused("job: base.yaml").startswith("s.yaml: grid: found None, expected axes")


@pytest.mark.parametrize(
    ("labels", "names"),
    [
        (["avg"], ["avg-seed0", "avg-seed7"]),
        (["avg", "hbm", "seed7"], ["avg-seed7", "hbm-seed7"]),
        (["seed0", "hbm"], ["hbm-seed0"]),
    ],
)
def test_labels_of_an_axis_are_alternatives_and_axes_hold_together(sweep, labels, names):
    assert [point.name for point in sweep().only(labels).points] == names


def test_an_unknown_label_is_refused(sweep):
    with pytest.raises(JobError) as caught:
        sweep().only(["hbn"])
    line = str(caught.value)
    assert line.startswith("--only: found 'hbn', expected labels of ")
    assert line.endswith(": avg, hbm, seed0, seed7; did you mean hbm?")


def test_a_label_on_two_axes_must_hold_on_both(sweep):
    both = "job: base.yaml\ngrid: {a: {x: {seed: 1}, y: {seed: 2}}, b: {x: {rounds: 3}}}\n"
    found = sweep(both)
    assert [point.name for point in found.only(["x"]).points] == ["x-x"]


ONLY = """\
job: base.yaml
grid:
  method:
    avg: {algorithm: {name: fedavg}}
    cm: {algorithm: {name: fedcm, alpha: 0.5}}
  seed: [0, 7]
only:
  "cm, seed7": {algorithm.alpha: 0.1}
  seed0: {rounds: 9}
"""


def test_settings_of_some_points_only(sweep):
    points = {point.name: point for point in sweep(ONLY).points}
    assert points["cm-seed0"].loaded.job.algorithm.alpha == 0.5
    assert points["cm-seed7"].loaded.job.algorithm.alpha == 0.1
    assert points["cm-seed7"].overrides[-1] == "algorithm.alpha=0.1"
    assert [p.loaded.job.rounds == 9 for p in points.values()] == [True, False, True, False]


@pytest.mark.parametrize(
    ("old", "new", "line"),
    [
        ("seed0:", "sed0:", "s.yaml:9: only: found 'sed0', expected labels of the grid: avg, cm, "),
        ("{rounds: 9}", "5", "s.yaml:9: only.seed0: found 5, expected a section"),
        ("{rounds: 9}", "{}", "s.yaml:9: only.seed0: found nothing, expected keys of the job"),
        ("{rounds: 9}", "{seed: 3}", "s.yaml:9: seed would undo seed of s.yaml:6; say it once"),
        ("{rounds: 9}", "{roundz: 9}", 's.yaml:9: roundz: a job has no "roundz"'),
        ("only:\n", "only: [1]\n#", "s.yaml:7: only: found "),
    ],
)
def test_a_mistake_in_the_section_only(refused, old, new, line):
    text = ONLY.replace(old, new)
    if new.startswith("only"):
        text = text[: text.index("#")]
    assert refused(text).startswith(line)


def test_an_override_of_a_key_of_the_section_only(refused):
    line = refused(ONLY, "rounds=5")
    assert line.startswith("rounds is set in the section only (s.yaml:9); take it off the command")
