"""What check, data show and list say."""

import json
import re
import sys
from dataclasses import fields

import numpy as np
import pytest

from hpcfl.algorithms import ALGORITHMS
from hpcfl.algorithms.fedhbm import FedHBM
from hpcfl.algorithms.fedper import FedPer
from hpcfl.algorithms.scaffold import Scaffold
from hpcfl.data import SOURCES
from hpcfl.job.load import load
from hpcfl.job.tasks import TASKS
from hpcfl.models import MODELS
from hpcfl.start.components import choose_executor
from hpcfl.tools.check import check_job, count_classes
from hpcfl.tools.listing import listing, multiples

ONE_CLASS_EACH = "data.partition={kind: dirichlet, alpha: 0.0}"


def lines(text):
    """The text by title; a title of its own line only."""
    return {line[:11].strip(): line[12:] for line in text.splitlines()}


def test_check_without_data(job, tmp_path, hpcfl):
    (tmp_path / "data.npz").unlink()
    done = hpcfl("check", job)
    assert (done.code, done.err) == (0, [])
    said = lines(done.text)
    assert said["data"].startswith("arrays, 4 clients: partition iid, path ")
    assert said["cohort"] == "uniform: size 2, C = 0.5"
    assert said["algorithm"].startswith("fedhbm: server_lr 1.0, beta 1.0, first zero")
    assert said[""] == "vectors per client: 1 down, 1 up, 1 kept"
    assert "lr 0.1" in said["local"]
    assert "batch_size 4" in said["local"]
    assert said["model"] == "linear: bias true"
    assert said["run"] == "4 rounds, float32, seed 0"
    assert "parameters" not in said


def test_check_with_data(job, hpcfl, tmp_path, arrays):
    path = arrays("owned.npz", client=np.repeat(np.arange(4), [8, 9, 10, 13]))
    job.write_text(job.read_text().replace(", clients: 4, partition: {kind: iid}", ""))
    done = hpcfl("check", job, "--data", f"data.path={path}")
    assert (done.code, done.err) == (0, [])
    said = lines(done.text)
    assert said["data"].startswith("arrays, 4 clients")
    assert said["examples"] == "8 to 13 a client, median 9.5; 40 in all, 12 for testing"
    assert said["steps"] == "K = 2 to 4"
    assert said["parameters"] == "16"
    assert said["traffic"] == "64 bytes down, 64 bytes up per client and round"
    assert said["states"] == "68 bytes a client, 272 bytes in all"
    assert "participation 0.5" in said["algorithm"]
    assert not (tmp_path / "runs").exists()


def test_what_is_trained_on_is_named_with_its_ranges(job, tmp_path, hpcfl):
    rows = ["age,dose,ward,y", "18,0.25,3,a", "70,-0.5,3,b", "44,0,3,a", "20,0,3,b"]
    (tmp_path / "own.csv").write_text("\n".join(rows))
    words = "data={kind: table, label: y, clients: 2, path: "
    done = hpcfl("check", job, "--data", f"{words}{tmp_path}/own.csv}}")
    assert (done.code, done.err) == (0, [])
    assert lines(done.text)["trained on"] == "age 18 to 70, dose -0.5 to 0.25, ward 3"


def test_what_is_trained_on_is_short_and_of_arrays_too(job, tmp_path, hpcfl):
    x = np.arange(32.0).reshape(4, 8) / 4
    np.savez(tmp_path / "own.npz", x=x, y=[0, 1, 0, 1])
    words = "data={kind: arrays, clients: 2, path: "
    done = hpcfl("check", job, "--data", f"{words}{tmp_path}/own.npz}}")
    assert lines(done.text)["trained on"] == "x [8] 0 to 7.75"
    names = [f"gene{k}" for k in range(30)]
    text = "\n".join([",".join([*names, "y"]), *(",".join(["1"] * 30 + [y]) for y in "abab")])
    (tmp_path / "wide.csv").write_text(text)
    words = "data={kind: table, label: y, clients: 2, path: "
    found = lines(hpcfl("check", job, "--data", f"{words}{tmp_path}/wide.csv}}").text)["trained on"]
    assert found.startswith("gene0 1, gene1 1, ")
    assert found.endswith("gene19 1, ... (30 in all)")


def test_a_class_without_examples_is_told_by_check_and_at_the_start(job, hpcfl, tmp_path, refused):
    path = tmp_path / "ten.npz"
    with np.load(tmp_path / "data.npz") as file:
        given = dict(file)
    one = {name: given[name] + 1 for name in ("y", "y_test")}
    np.savez(path, **{**given, **one})
    words = (f"data.path={path}", "--out", tmp_path / "run")
    for command in (("check", job, "--data", words[0]), ("run", job, *words)):
        assert refused(*command) == (
            f"DataError: {path}: y runs from 1 to 4, so no example is of class 0, the first one; "
            "let classes count from 0 (in numpy y - 1, y_test - 1), or say data.classes: 5 if "
            "class 0 is meant to have no example"
        )
    assert not (tmp_path / "run").exists()
    note = "data: 1 of 5 classes have no training example: 0"
    assert lines(hpcfl("check", job, "--data", words[0], "data.classes=5").text)["note"] == note
    done = hpcfl("run", job, "data.classes=5", *words)
    assert done.code == 0
    assert note in done.err


@pytest.mark.parametrize(
    ("shape", "said", "turn"),
    [
        ((40, 28, 28), "x[:, None]", lambda x: x[:, None]),
        (
            (40, 28, 28, 3),
            "np.transpose(x, (0, 3, 1, 2))",
            lambda x: np.transpose(x, (0, 3, 1, 2)),
        ),
    ],
)
def test_the_hint_about_channels_works(job, hpcfl, tmp_path, refused, shape, said, turn):
    """Images [n, H, W] or [n, H, W, C] are refused with the numpy call that makes them fit."""
    images = {"x": np.random.default_rng(0).random(shape, np.float32)}
    with np.load(tmp_path / "data.npz") as file:
        given = dict(file)
    given |= {"x": images["x"], "x_test": images["x"][:12]}
    np.savez(tmp_path / "images.npz", **given)
    words = (f"data.path={tmp_path}/images.npz", "model={name: lenet}")
    line = refused("check", job, "--data", *words)
    assert f"not {shape[1:]}; these have" in line
    assert f"use {said} (x and x_test in numpy) instead" in line
    turned = {name: turn(given[name]) for name in ("x", "x_test")}
    np.savez(tmp_path / "images.npz", **{**given, **turned})
    assert hpcfl("check", job, "--data", *words).code == 0


def test_check_counts_a_shared_model_apart(job, hpcfl):
    done = hpcfl("check", job, "--data", "algorithm={name: localghb}")
    assert done.code == 0
    once = "64 bytes a round and rank, once for all its clients"
    assert lines(done.text)["states"] == f"4 bytes a client, 16 bytes in all; {once}"


def test_check_counts_what_scaffold_sends(job, hpcfl):
    said = lines(hpcfl("check", job, "--data", "algorithm={name: scaffold}").text)
    assert said["traffic"] == "128 bytes down, 128 bytes up per client and round"
    assert said["states"] == "64 bytes a client, 256 bytes in all"


def test_check_says_what_is_measured(job, hpcfl):
    assert "diagnostics" not in lines(hpcfl("check", job).text)
    wanted = "diagnostics={drift: true, consistency: true, every: 5}"
    said = lines(hpcfl("check", job, wanted).text)
    assert said["diagnostics"] == "consistency, drift, every 5 rounds"


def test_check_says_what_the_data_decide(job):
    job.write_text(job.read_text().replace(", clients: 4, partition: {kind: iid}", ""))
    said = lines(check_job(load(job), data=False).summary)
    assert said["data"].startswith("arrays, as many clients as the data has")
    assert "C =" not in said["cohort"]
    assert "partition: natural where the data set names its clients, else iid" in str(
        check_job(load(job), data=False)
    )


@pytest.mark.parametrize(("owners", "kind"), [(None, "iid"), (np.arange(40) % 5, "natural")])
def test_check_tells_the_partition_in_force(job, arrays, hpcfl, owners, kind):
    arrays(client=owners)
    clients = "" if owners is not None else ", clients: 4"
    job.write_text(job.read_text().replace(", clients: 4, partition: {kind: iid}", clients))
    done = hpcfl("check", job, "--data")
    assert f": partition {kind}, path" in lines(done.text)["data"]
    assert "where the data set names" not in done.text


def test_check_tells_the_local_work_and_the_schedule(job, hpcfl):
    assert (
        "schedule exponential, lr_decay 1.0, epochs 1, " in lines(hpcfl("check", job).text)["local"]
    )
    said = lines(hpcfl("check", job, "local.steps=3", "local.schedule=cosine").text)["local"]
    assert "schedule cosine" in said
    assert "steps 3" in said
    assert "epochs" not in said


def test_check_counts_what_is_held_out(job, hpcfl):
    said = lines(hpcfl("check", job, "--data", "data.holdout=0.2").text)
    assert said["examples"] == "8 a client, median 8; 32 in all, 8 held out, 12 for testing"


def test_the_split_for_validation_is_told(job, hpcfl, tmp_path):
    """A quarter of 4 clients is one; an eighth of 10 examples is rounded to one."""
    whole = "data.validation={share: 0.25, of: clients}"
    kept = (
        "kept for validation, in no round: 1 of 4 clients; the others are numbered anew, in their "
        "order"
    )
    for data in ([], ["--data"]):
        done = hpcfl("check", job, whole, *data)
        assert lines(done.text)["data"].startswith("arrays, 3 clients: ")
        assert "validation (share 0.25, of clients)" in done.text
        assert kept in done.text
    counted = "10 a client, median 10; 30 in all, 10 for validation, 12 for testing"
    assert lines(done.text)["examples"] == counted
    shown = hpcfl("data", "show", job, whole, "--plot", tmp_path / "p.png").text
    assert f"not trained on: 10 for validation\n{kept}\n" in shown
    shown = hpcfl(
        *("data", "show", job, "data.validation.share=0.125", "--plot", tmp_path / "p.png")
    ).text
    assert "not trained on: 4 for validation\n+" in shown


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("data.validation=0.1", "data.validation: found 0.1, expected a section"),
        ("data.validation={of: clients}", "data.validation.share: missing"),
        ("cohort.size=5", "cohorts of 5 clients, but the population has 4"),
        ("model.init=no/such.npy", "no/such.npy: there is no such file"),
        ("cohort={kind: replay, path: no.json}", "no.json: cannot be read as JSON"),
        ("algorithm={name: centralized}", "algorithm.name: centralized trains on pooled data"),
        ("data.partition={kind: pooled}", "data: clients is 4, but the partition is pooled"),
        ("cohort={kind: replay, rounds: [[0], [1]]}", "2 cohorts are given for 4 rounds"),
        ("cohort={kind: replay, rounds: [[0], [1], [4], [2]]}", "client 4 is unknown"),
    ],
)
def test_check_finds_without_data(job, refused, override, message):
    assert message in refused("check", job, override)


@pytest.mark.parametrize("kind", ["cifar10", "mnist", "digits", "concrete", "tiny_imagenet"])
def test_check_knows_which_data_sets_name_no_clients(job, refused, kind):
    whose = "but this data set does not say whose"
    asked = "partition: {kind: natural}", "clients: 4, natural_clients: 3"
    for keys, fault in zip(
        asked, ("partition.kind is natural", "natural_clients is 3"), strict=True
    ):
        assert f"data: {fault}, {whose}" in refused("check", job, f"data={{kind: {kind}, {keys}}}")


@pytest.mark.parametrize("executor", ["block", "auto"])
def test_check_counts_a_blocks_places_where_the_job_tells_the_clients(
    job, arrays, refused, hpcfl, executor
):
    wanted = f"executor={executor}"
    assert hpcfl("check", job, wanted, "block_size=4").code == 0
    said = refused("check", job, wanted, "block_size=5")
    assert "block_size: found 5, but there are 4 clients" in said
    job.write_text(job.read_text().replace(", clients: 4, partition: {kind: iid}", ""))
    arrays(client=np.arange(40) % 4)  # then only the data tell
    assert hpcfl("check", job, wanted, "block_size=5").code == 0
    assert refused("check", job, wanted, "block_size=5", "--data") == said


def test_check_says_who_asked_for_what_goes_ill_together(job, refused):
    job.write_text(job.read_text() + "executor: block\nblock_size: 2\n")
    said = refused("check", job, "executor=sequential")
    assert f"{job}:10: block_size: found with executor sequential (command line), " in said
    job.write_text(job.read_text().replace("executor: block\n", ""))
    assert "found with executor sequential (its default), " in refused("check", job)


@pytest.mark.parametrize(
    ("settings", "executor", "block_size"),
    [
        ((), "sequential", None),
        (("executor=block", "block_size=2"), "block", "2"),
        (("executor=auto",), "auto", None),
        (
            ("executor=auto", "--data"),
            "block (auto: a reason)",
            "2 (a cohort of 4 in equal blocks)",
        ),
        (("executor=block", "--data"), "block", "2 (a cohort of 4 in equal blocks)"),
        (("executor=auto", "device=cuda", "--data"), "auto", None),
    ],
)
def test_how_clients_are_trained_is_shown(job, hpcfl, settings, executor, block_size, monkeypatch):
    monkeypatch.setattr(choose_executor, "rule", lambda *_, **__: (("block",), "a reason"))
    monkeypatch.setattr(choose_executor, "MAX_BLOCK_SIZE", 3)
    done = hpcfl("check", job, "cohort.size=4", *settings)
    assert (done.code, done.err) == (0, [])
    shown = lines(done.text)
    assert (shown["executor"], shown.get("block_size")) == (executor, block_size)


@pytest.mark.parametrize("data", [[], ["--data"]])
def test_the_advice_of_centralized_is_complete(job, refused, hpcfl, data):
    wanted = "algorithm={name: centralized}"
    advice = re.findall(r"[a-z.]+=(?:\{.*?\}|null)", refused("check", job, wanted))
    assert len(advice) == 3
    done = hpcfl("check", job, wanted, *advice, *data)
    assert (done.code, done.err) == (0, [])
    assert lines(done.text)["data"].startswith("arrays, 1 client")


def test_check_reads_a_replay_of_an_unknown_population(job, tmp_path, refused, hpcfl):
    job.write_text(job.read_text().replace(", clients: 4, partition: {kind: iid}", ""))
    path = tmp_path / "cohorts.json"
    path.write_text(json.dumps([[0, 1], [1, 1], [2], [3]]))
    setting = f"cohort={{kind: replay, path: {path}}}"
    assert "client 1 is listed twice" in refused("check", job, setting)
    path.write_text(json.dumps([[0, 1], [1], [2], [3]]))
    assert hpcfl("check", job, setting).code == 0


def test_check_with_data_finds_what_only_they_tell(job, refused, hpcfl):
    assert hpcfl("check", job, "data.classes=3").code == 0
    assert "y runs from 0 to 3" in refused("check", job, "data.classes=3", "--data")
    assert "lenet takes images" in refused("check", job, "model={name: lenet}", "--data")


def test_partition_of_few_clients(job, tmp_path, hpcfl):
    plot = tmp_path / "p.png"
    done = hpcfl("data", "show", job, ONE_CLASS_EACH, "--plot", plot)
    assert (done.code, done.err) == (0, [])
    assert plot.read_bytes().startswith(b"\x89PNG")
    assert re.search(r"4 clients \| min \| median \| max", done.text)
    assert re.search(r"examples +\| 10 +\| 10 +\| 10 ", done.text)
    assert re.search(r"classes +\| 1 +\| 1 +\| 1 ", done.text)
    for label in range(4):
        cells = ["10" if client == label else "." for client in range(4)]
        assert re.search(rf"\| {label} +\| " + r" +\| ".join(map(re.escape, cells)), done.text)
    assert done.text.isascii()


@pytest.mark.parametrize(
    ("form", "alpha", "other"),
    [
        ("prior", 2, "form symmetric, alpha 0.5, order clients"),
        ("symmetric", 0.5, "form prior, alpha 2, order random"),
    ],
)
def test_both_forms_of_a_dirichlet_partition(job, tmp_path, hpcfl, form, alpha, other):
    partition = f"data.partition={{kind: dirichlet, form: {form}, alpha: {alpha}}}"
    done = hpcfl("data", "show", job, partition, "--plot", tmp_path / "p.png")
    assert done.code == 0
    assert done.text.splitlines()[0] == (
        f"partition: dirichlet of alpha {float(alpha)}, form {form}; "
        f"with 4 equally frequent classes the same as {other}"
    )
    assert f"alpha {float(alpha)}, form {form}" in hpcfl("check", job, partition).text


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ("kind: classes, per_client: 2", "classes of per_client 2, form shards"),
        ("kind: classes, per_client: 2, form: exact", "classes of per_client 2, form exact"),
        (
            "kind: dirichlet_per_class, alpha: 2.0, least: 4",
            "dirichlet_per_class of alpha 2.0, least 4, balance false",
        ),
        (
            "kind: quantity, form: power, exponent: 1.0, least: 2, seed: 3",
            "quantity of form power, exponent 1.0, least 2, seed 3",
        ),
    ],
)
def test_a_skewed_partition(job, tmp_path, hpcfl, settings, said):
    partition = f"data.partition={{{settings}}}"
    shown = hpcfl("data", "show", job, partition, "--plot", tmp_path / "p.png")
    assert (shown.code, shown.err) == (0, [])
    assert shown.text.splitlines()[0] == f"partition: {said}"
    for options in ([], ["--data"]):
        done = hpcfl("check", job, partition, *options)
        assert (done.code, done.err) == (0, [])
        assert f"arrays, 4 clients: partition {said}, path" in lines(done.text)["data"]
    assert "40 in all" in lines(done.text)["examples"]


def test_the_sizes_of_a_power_law_are_shown(job, tmp_path, hpcfl):
    """Of 40, 2 each, and of the other 32: 12/25, 6/25, 4/25 and 3/25."""
    partition = "data.partition={kind: quantity, form: power, exponent: 1.0, least: 2}"
    done = hpcfl("data", "show", job, partition, "--plot", tmp_path / "p.png")
    assert re.search(r"examples +\| 6 +\| 8.5 +\| 17 ", done.text)


def test_no_data_is_needed_to_check_a_skewed_partition(job, arrays, hpcfl):
    arrays().unlink()
    done = hpcfl("check", job, "data.partition={kind: classes, per_client: 2}", "data.clients=8")
    assert (done.code, done.err) == (0, [])
    assert "C = 0.25" in lines(done.text)["cohort"]


def test_partition_of_many_clients_is_not_listed(job, tmp_path, hpcfl):
    done = hpcfl("data", "show", job, "data.clients=21", "--plot", tmp_path / "p.png")
    assert done.code == 0
    assert "21 clients" in done.text
    assert "class |" not in done.text


def test_partition_of_a_regression(job, arrays, tmp_path, hpcfl):
    arrays(y=np.linspace(0, 1, 40), x_test=None, y_test=None)
    done = hpcfl("data", "show", job, "--plot", tmp_path / "p.png")
    assert done.code == 0
    assert "classes" not in done.text
    assert (tmp_path / "p.png").exists()


def test_partition_of_a_natural_split(job, arrays, tmp_path, hpcfl):
    arrays(client=np.repeat([0, 1], [30, 10]))
    job.write_text(job.read_text().replace(", clients: 4, partition: {kind: iid}", ""))
    done = hpcfl("data", "show", job, "--plot", tmp_path / "p.png")
    assert re.search(r"examples +\| 10 +\| 20 +\| 30 ", done.text)


def test_counts(job):
    loaded = load(job)
    dataset = loaded.job.data.load(0)
    counts = count_classes(dataset, [np.array([0, 4, 1]), np.array([3])])
    assert counts.tolist() == [[2, 1, 0, 0], [0, 0, 0, 1]]


def test_plot_that_cannot_be_written(job, tmp_path, refused):
    (tmp_path / "file").write_text("")
    line = refused("data", "show", job, "--plot", tmp_path / "file" / "p.png")
    assert "p.png: cannot be written: Not a directory" in line


# list


def test_multiples():
    assert multiples(FedHBM()) == ("1", "1", "1", "1")
    assert multiples(Scaffold()) == ("2", "2", "1", "2")
    assert multiples(FedPer()) == ("-", "-", "-", "1")


def test_vectors_that_do_not_grow_with_the_model(hpcfl):
    """The model of the quickstart is its last dense layer, of which a client keeps the bias."""
    given = ("check", "quickstart", "algorithm={name: fedper, personal: [1.bias]}")
    assert "vectors per client" not in hpcfl(*given[:2], "algorithm={name: fedper}").text
    said = hpcfl(*given, "--data")
    assert said.code == 0
    assert "vectors per client: 0.985 down, 0.985 up, 0.0154 kept" in said.text


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("loss", "focal"),
        ("focal", "- gamma = 2.0 (number >= 0)"),
        ("optimizer", "adamw"),
        ("adamw", "- b2 = 0.999 "),
        ("moon", "- tau = 0.5 (number > 0, <= 100000)"),
        ("comm", "(number > 0, >= 0.001, <= 10000000)"),
        ("job", "- rounds, required (whole number >= 1, <= 1000000)"),
    ],
)
def test_losses_optimisers_and_all_bounds_are_listed(hpcfl, name, said):
    listed = hpcfl("list", name)
    assert listed.code == 0
    assert said in " ".join(listed.text.replace("|", " ").split())


@pytest.mark.slow
@pytest.mark.parametrize("columns", ["80", "100", "200", "20"])
def test_catalogue_fits_and_is_plain(monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", columns)
    said = listing()
    assert said.isascii()
    assert max(map(len, said.splitlines())) <= max(80, min(int(columns), 100))


def test_catalogue_has_everything(monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    said = listing()
    for name in (*ALGORITHMS, *SOURCES, *MODELS, *TASKS):
        assert re.search(rf"^\| {re.escape(name)} ", said, re.MULTILINE), name
    for cls in (*SOURCES.values(), *MODELS.values()):
        for field in fields(cls):
            assert f"- {field.name}" in said
    for kind in ("uniform", "bernoulli", "cyclic", "replay", "iid", "dirichlet", "similarity"):
        assert re.search(rf"^\| {kind} ", said, re.MULTILINE), kind


@pytest.mark.parametrize("name", ALGORITHMS)
def test_an_algorithm_is_listed_with_its_settings(name):
    said = listing(name)
    for field in fields(ALGORITHMS[name]):
        assert f"- {field.name}" in said


def test_catalogue_tells_defaults_ranges_and_papers(monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    said = listing() + listing("fedhbm")
    for part in (
        "- beta = 1.0 (number >= 0): Momentum factor.",
        "- first = zero (zero | shared | random): ",
        "- nesterov = false (true | false): ",
        "- participation (number > 0, <= 1): ",
        "- alpha, required (number >= 0): Concentration;",
        "- clients (whole number >= 1): N: ",
        "arXiv:1602.05629",
    ):
        assert part in said, part
    assert "Departures" not in said


OWN = '''
"""Mine: FedAvg with a factor.

A paper that describes it.
"""

from dataclasses import dataclass

from hpcfl.algorithms.fedavg import FedAvg
from hpcfl.models.base import ModelConfig


@dataclass(frozen=True, kw_only=True)
class Mine(FedAvg):
    """FedAvg and a factor."""

    factor: float = 2.0
    """A factor."""


@dataclass(frozen=True, kw_only=True)
class Required(Mine):
    """FedAvg and another factor."""

    other: float


@dataclass(frozen=True, kw_only=True)
class Failing(FedAvg):
    def update(self, server, mean, cohort):
        raise ValueError("no step")


@dataclass(frozen=True, kw_only=True)
class Net(ModelConfig):
    """A net."""

    width: int = 3
    """Its width."""
'''


@pytest.fixture
def own(tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    (tmp_path / "listed.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    yield
    sys.modules.pop("listed", None)


@pytest.mark.parametrize(
    ("name", "row", "key"),
    [
        ("Mine", r"\| listed.Mine +\| 1 +\| 1 +\| 0 +\| 1 +\| FedAvg and a factor", "factor = 2.0"),
        ("Required", r"\| listed.Required +\| +\| +\| +\| +\| FedAvg and ano", "other, required"),
        ("Net", r"\| listed.Net +\| A net", "width = 3"),
    ],
)
def test_a_class_of_ones_own_is_listed(own, hpcfl, name, row, key):
    done = hpcfl("list", f"listed.{name}")
    assert (done.code, done.err) == (0, [])
    assert re.search(row, done.text)
    assert f"- {key} (" in done.text
    assert "| fedavg " not in done.text


def test_a_key_lists_its_section(hpcfl):
    assert hpcfl("list", "local.lr").out == hpcfl("list", "local").out
    assert hpcfl("list", "fedhbm.beta").out == hpcfl("list", "fedhbm").out
    for section in ("algorithm", "data", "model", "cohort"):
        assert hpcfl("list", f"{section}.x").out == hpcfl("list", section).out


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("listed.Failing", "with its default settings its dry round failed in update ("),
        ("listed.Missing", "'listed.Missing' cannot be imported: AttributeError"),
        ("unknown.Mine", "; set PYTHONPATH=. if it is in the current directory"),
        ("math.pi", "found 'math.pi', of Python's own library"),
        ("FedHMB", "found FedHMB, expected one of job, "),
    ],
)
def test_a_class_that_cannot_be_listed(own, refused, name, said):
    assert said in refused("list", name)


def test_a_part_of_the_catalogue(hpcfl, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    done = hpcfl("list", "fedmim")
    assert (done.code, done.err) == (0, [])
    assert re.search(r"\| fedmim +\| 3 +\| 1 +\| 0 +\| 3 +\|", done.text)
    assert "- alpha = [0.6, 0.3] (list of number >= 0): " in done.text
    assert "| fedavg " not in done.text


@pytest.mark.parametrize("what", ["algorithms", "algorithm"])
def test_the_algorithms_alone(hpcfl, monkeypatch, what):
    """What each does, and its paper; not the departures from it."""
    monkeypatch.setenv("COLUMNS", "100")
    done = hpcfl("list", what)
    assert (done.code, done.err) == (0, [])
    rows = re.findall(r"^\| (\w+) +\| ", done.text, re.MULTILINE)
    assert rows == list(ALGORITHMS)
    said = " ".join(done.text.replace("|", " ").split())
    assert "FedBN: every client keeps its normalisation layers for itself" in said
    assert "arXiv:2311.18578" in said
    assert "Departures" not in said


def test_a_default_that_is_not_the_common_one(hpcfl):
    assert hpcfl("list", "fedavg").text.count("- server_lr = ") == 1
    assert "- server_lr = 0.1 (number > 0)" in hpcfl("list", "fedyogi").text


@pytest.mark.parametrize(
    "section, part",
    [
        ("local", "- batch_size"),
        ("algorithm", "| fedmim "),
        ("model", "| lenet "),
        ("cohort", "| bernoulli "),
        ("data", "| cifar10 "),
        ("task", "| digits "),
    ],
)
def test_every_section_of_a_job_is_listed_by_its_name(hpcfl, section, part):
    done = hpcfl("list", section)
    assert (done.code, done.err) == (0, [])
    assert part in done.text
    assert "| packaged job " not in done.text


def test_the_schema_is_json(hpcfl):
    assert "algorithm.fedhbm" in json.loads(hpcfl("list", "schema").text)["$defs"]


def test_a_name_that_is_not_in_the_catalogue(refused):
    line = refused("list", "fedmin")
    assert "found fedmin, expected one of job, algorithms, data, partitions, " in line
    assert line.endswith("did you mean fedmim?")


@pytest.mark.slow
def test_the_list_has_no_markup_and_no_endless_number():
    assert "``" not in listing()
    assert str(2**63) not in listing()
    assert "< 2^63" in listing("iid")


def test_a_tracker_that_is_not_installed(refused, job, monkeypatch):
    monkeypatch.setattr("hpcfl.io.packages.find_spec", lambda name: None)
    line = refused("check", job, "callbacks=[wandb]")
    assert line == (
        "JobError: command line: callbacks.0: found wandb, but no package wandb; say `pip install "
        "wandb`, or leave it out"
    )
