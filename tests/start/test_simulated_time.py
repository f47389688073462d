"""Jobs with devices: their clock in log, plan, status and reports; the same bits at a resume."""

import csv
import shutil

import pytest
import torch

from hpcfl.algorithms.dpfedavg import DPFedAvg
from hpcfl.clients.sampling import Bernoulli, Uniform
from hpcfl.evaluation.privacy import accountant
from hpcfl.job.load import load
from hpcfl.start.components.build import build_components
from tests.parallel.outcome import log, model, outcome

pytestmark = pytest.mark.usefixtures("own_process")

DEVICES = (
    "devices={examples_per_s: {median: 20, sigma: 0.8}, down_mbps: 0.01, jitter: 0.2, "
    "available: 0.7, fails: 0.3, deadline_s: 0.7, late: shorten, over_select: 1.5}"
)
MANY = ("data.clients=10", "cohort.size=4", "local.batch_size=1", "rounds=12", DEVICES)


@pytest.fixture
def play(job, tmp_path, hpcfl):
    """Run the job with these settings; the folder."""

    def run(name, *settings):
        done = hpcfl("run", job, *settings, "--out", tmp_path / name)
        assert done.code == 0, done.err
        return tmp_path / name

    return run


def parts(job, *settings):
    return build_components(load(job, settings), torch.device("cpu"))


def test_the_log_says_what_the_devices_do(job, play):
    found, participation = log(play("run", *MANY)), parts(job, *MANY).population.participation
    clock, shortened = 0.0, 0
    assert found[0]["simulated_s"] == 0
    for line in found[1:]:
        members, steps, wait = participation(line["round"] - 1)
        clock = round(clock + wait.seconds, 6)
        assert (line["clients"], line["asked"]) == (len(members), wait.asked)
        assert line["simulated_s"] == clock
        assert (
            line["examples"]
            == line["steps"]
            == 4 * (len(members) - len(steps)) + sum(steps.values())
        )
        shortened += len(steps)
    assert shortened > 3
    assert len({line["clients"] for line in found[1:]}) > 1


def test_without_devices_there_is_no_clock(play):
    assert not {"asked", "simulated_s"} & {key for line in log(play("run")) for key in line}


@pytest.mark.parametrize("kind", ["{kind: uniform, size: 2}", "{kind: bernoulli, p: 0.5}"])
def test_where_nobody_is_late_the_model_is_that_without_devices(play, kind):
    plain = play("plain", f"cohort={kind}")
    ideal = play("ideal", f"cohort={kind}", "devices={examples_per_s: 10, jitter: 1, up_mbps: 1}")
    assert torch.equal(model(plain), model(ideal))
    assert log(ideal)[-1]["simulated_s"] > 1


def test_shortened_clients_in_a_block_are_those_one_after_the_other(play):
    one = play("one", *MANY, "algorithm={name: scaffold}", "precision=float64")
    block = play("block", *MANY, "algorithm={name: scaffold}", "precision=float64",
                 "executor=block", "block_size=3")  # fmt: skip
    assert torch.allclose(model(one), model(block), rtol=0, atol=1e-12)
    assert [line["examples"] for line in log(one)[1:]] == [x["examples"] for x in log(block)[1:]]


def test_the_clock_goes_on_after_a_resume_and_in_a_copy(play, tmp_path, hpcfl):
    whole = play("whole", *MANY, "checkpoint.every=5")
    cut = play("cut", *MANY, "checkpoint.every=5")
    shutil.rmtree(cut / "checkpoints/00000012")
    assert hpcfl("resume", cut).code == 0
    assert outcome(cut) == outcome(whole)
    copy, branch = tmp_path / "copy", tmp_path / "branch"
    assert hpcfl("resume", whole, "--round", "10", "--out", copy).code == 0
    assert outcome(copy) == outcome(whole)
    words = ("local.lr=0.05", "--round", "10", "--out", branch)
    assert hpcfl("resume", whole, *words).code == 0
    clocks = [[line["simulated_s"] for line in log(run)] for run in (whole, branch)]
    assert clocks[0] == clocks[1]


def test_the_devices_of_a_run_are_not_changed(play, hpcfl, refused, tmp_path):
    run = play("run", *MANY)
    for setting in ("devices.fails=0.2", "devices.deadline_s=9", "devices=null"):
        line = refused("resume", run, setting)
        assert "would change past rounds" in line
        assert "branch" not in line
    line = refused("resume", play("plain"), "devices.fails=0.2")
    assert "devices={" in line
    assert "fails: 0.2" in line
    words = ("devices.fails=0.2", "rounds=20", "--round", "12", "--out", tmp_path / "branch")
    assert "the log adds up the time of these devices" in refused("resume", run, *words)


def test_drawn_devices_are_not_replaced_by_a_trace(play, trace, refused):
    run = play("run", "devices={available: 0.9}")
    line = refused("resume", run, f"devices.path={trace}")
    assert "would change past rounds (their devices were drawn)" in line


@pytest.fixture
def trace(tmp_path):
    path = tmp_path / "trace.csv"
    path.write_text("client,examples_per_s,fails\n0,10,0\n1,20,0.5\n2,5,0\n3,40,0\n")
    return path


def test_a_changed_trace_is_noticed(play, trace, refused, hpcfl):
    run = play("run", f"devices.path={trace}", "checkpoint.every=2")
    whole = outcome(run)
    shutil.rmtree(run / "checkpoints/00000004")
    moved = trace.with_name("moved.csv")
    trace.rename(moved)
    assert str(trace) in refused("resume", run)
    moved.write_text(moved.read_text().replace("40", "41"))
    assert "has another content" in refused("resume", run, f"devices.path={moved}")
    moved.write_text(moved.read_text().replace("41", "40"))
    assert hpcfl("resume", run, f"devices.path={moved}").code == 0
    assert outcome(run) == whole


def test_a_record_names_its_trace(play, trace, tmp_path, hpcfl, refused):
    run, record = play("run", f"devices.path={trace}"), tmp_path / "record"
    assert hpcfl("export", run, "--record", record).code == 0
    assert '"devices.path": "sha256:' in (record / "digests.json").read_text()
    data = f"data.path={tmp_path}/data.npz"
    line = refused("run", record, data, "--out", tmp_path / "again")
    assert "add devices.path=PATH" in line
    words = (data, f"devices.path={trace}", "--out", tmp_path / "again")
    assert hpcfl("run", record, *words).code == 0
    assert torch.equal(model(run), model(tmp_path / "again"))


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (["devices={examples_per_s: 1, deadline_s: 2}"],
         "devices.deadline_s: found 2, but the fastest client takes 10 s; raise it"),
        (["devices={available: 0.0001}"],
         "devices.available: none of the rounds has a client that is available"),
        (["devices={fails: 0.99999}"],
         "devices: none of the 8 clients that the rounds ask answers in time; lower devices.fails"),
        (["devices={over_select: 3}"], "devices.over_select: asks 6 clients of 4; use at most 2"),
        (["devices={over_select: 1.5}", "cohort={kind: bernoulli, p: 0.5}"],
         "devices.over_select: found 1.5 with cohort.kind bernoulli, whose cohorts have no"),
        (["devices={examples_per_s: -1}"], "devices.examples_per_s: found -1, expected a number"),
        (["devices={over_select: 0.5}"], "devices.over_select: found 0.5, expected a number"),
        (["devices={late: shorten}"], "late: found shorten without deadline_s"),
        (["devices={path: nowhere.csv}"], "nowhere.csv: cannot be read: No such file"),
    ],
)  # fmt: skip
def test_devices_that_cannot_be_are_one_line(job, refused, tmp_path, settings, said):
    assert said in refused("run", job, *settings, "--out", tmp_path / "run")
    assert not (tmp_path / "run").exists() or not list((tmp_path / "run").iterdir())


def test_a_choice_by_loss_may_find_who_answers(play, tmp_path):
    """Who is chosen is not known before: those whom a plan takes may all fail."""
    path = tmp_path / "most-fail.csv"
    path.write_text("client,fails\n0,1\n1,1\n2,1\n3,0\n")
    cohort = "cohort={kind: power_of_choice, size: 1, candidates: 4}"
    for seed in range(4):
        play(f"run{seed}", cohort, f"devices.path={path}", "rounds=1", f"seed={seed}")


def test_a_plan_has_the_time_of_the_run(job, play, hpcfl):
    seconds = log(play("run", *MANY))[-1]["simulated_s"]
    said = hpcfl("plan", job, *MANY).text.split("devices")[1].split("local work")[0]
    assert f"count in a round; {seconds:.1f} s simulated in all" in " ".join(
        said.replace("|", " ").split()
    )
    lines = hpcfl("check", job, *MANY, "--data").out
    assert any(line.startswith("devices     a round takes ") for line in lines)


def test_a_check_looks_for_the_trace(job, refused):
    assert "devices.path: " in (line := refused("check", job, "devices.path=nowhere.csv"))
    assert line.endswith("nowhere.csv: there is no such file")


def test_reports_show_the_simulated_time(play, tmp_path, hpcfl, refused):
    run = play("run", *MANY, "evaluate.every=1")
    found = log(run)
    said = hpcfl("status", run).text
    assert f"simulated   {found[-1]['simulated_s']:.1f} s of the devices so far" in said
    level = max(line["test_accuracy"] for line in found[1:])
    first = next(line for line in found if line["test_accuracy"] >= level)
    words = ("--target-accuracy", f"{level}", "--format", "csv")
    (row,) = csv.DictReader(hpcfl("report", run, *words).out)
    key = next(key for key in row if key.startswith("target_simulated_h"))
    assert float(row[key]) == pytest.approx(first["simulated_s"] / 3600)
    assert float(row["simulated_s"]) == found[-1]["simulated_s"]
    plot = tmp_path / "plot.svg"
    assert hpcfl("report", run, "--plot", plot, "--x", "simulated").code == 0
    assert plot.stat().st_size
    plain = play("plain")
    line = refused("report", plain, "--plot", plot, "--x", "simulated")
    assert "counts no simulated time, as the job has no devices" in line


def test_private_cohorts_are_not_amplified_by_devices():
    private = DPFedAvg(clip=1.0, noise=1.0)
    for cohort, same in ((Uniform(size=10), False), (Bernoulli(p=0.1), True)):
        plain, with_devices = (
            accountant(private, cohort, 100, alone=alone) for alone in (True, False)
        )
        assert (plain.bound == with_devices.bound) == same


def test_balance_counts_the_shortened_work(job):
    found = parts(job, *MANY, "balance=steal", "algorithm={name: mofedsam}")
    for t in range(12):
        members, steps, _ = participation = found.population.participation(t)
        expected = [steps.get(i, 4) for i in members.tolist()]
        assert found.population.work_in(participation).tolist() == expected


@pytest.mark.parametrize(
    ("algorithm", "seconds"),
    [("fedavg", 1 + 1), ("mofedsam", 2 + 2), ("scaffold", 1 + 2), ("mime", 2 + 1 + 2)],
)
def test_every_gradient_and_every_vector_takes_time(job, algorithm, seconds):
    """Ten examples, ten of them a second; 16 parameters of 4 bytes down, 512 bits a second."""
    devices = "devices={examples_per_s: 10, down_mbps: 0.000512}"
    found = parts(job, devices, f"algorithm={{name: {algorithm}}}").population.participants
    assert found.typical().tolist() == pytest.approx([seconds] * 4)
