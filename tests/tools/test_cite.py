"""The BibTeX of what a job uses."""

import re
from importlib.resources import files
from sys import modules

import pytest

from hpcfl.algorithms import ALGORITHMS
from hpcfl.algorithms.optim import OPTIMIZERS
from hpcfl.clients.sampling import CohortConfig
from hpcfl.data import SOURCES
from hpcfl.job.description import kinds
from hpcfl.models import MODELS
from hpcfl.models.training_loss import TRAINING_LOSSES
from hpcfl.tools.cite import references

REGISTERED = {
    "algorithm": ALGORITHMS,
    "model": MODELS,
    "data": SOURCES,
    "optimizer": OPTIMIZERS,
    "loss": TRAINING_LOSSES,
    "cohort": kinds(CohortConfig),
}
ENTRIES = sorted({entry for entries in references().values() for entry in entries})
# What no paper introduced, and the user's own files.
WITHOUT = {
    *(f"model {name}" for name in ("linear", "logistic", "module", "point")),
    *(
        f"data {name}"
        for name in ("arrays", "huggingface", "image_folder", "table", "text", "stackexchange")
    ),
    *("optimizer own", "loss own"),
    *(f"cohort {kind}" for kind in ("uniform", "bernoulli", "cyclic", "replay")),
}
EXPLAINED = [
    (what, name)
    for what in ("algorithm", "optimizer", "loss")
    for name in REGISTERED[what]
    if f"{what} {name}" not in WITHOUT
]


def test_what_is_registered_has_an_entry_and_an_entry_is_of_what_is_registered():
    known = {f"{what} {name}" for what, names in REGISTERED.items() for name in names}
    assert known - set(references()) == WITHOUT & known
    assert {" ".join(name.split(" ")[:2]) for name in references()} <= known


def test_every_entry_of_the_file_is_used():
    text = files("hpcfl.tools.report").joinpath("references.bib").read_text("ascii")
    assert len(ENTRIES) == len(re.findall("^@", text, re.MULTILINE))
    assert len({entry.partition("{")[2].partition(",")[0] for entry in ENTRIES}) == len(ENTRIES)


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.split("\n")[0])
def test_an_entry_is_well_formed(entry):
    """Braces match, and it has an author, a title and the year that its key says."""
    assert entry.count("{") == entry.count("}")
    assert (key := re.match(r"@[a-z]+\{([a-z]+(\d{4})),\n", entry))
    assert re.search(r"^  author = \{.*, .*\},$", entry, re.MULTILINE)
    assert f"  year = {{{key[2]}}},\n" in entry
    assert re.search(r"^  title = \{.+\},$", entry, re.MULTILINE)


@pytest.mark.parametrize(("what", "name"), EXPLAINED)
def test_a_method_says_what_its_entry_says(what, name):
    """The docstring of its file has the surnames, the title and the arXiv number of an entry."""
    said = " ".join((modules[REGISTERED[what][name].__module__].__doc__ or "").split()).lower()
    assert any(
        all(part in said for part in _source(entry)) for entry in references()[f"{what} {name}"]
    )


def _source(entry):
    fields = dict(re.findall(r"^  (\w+) = \{(.*)\},$", entry, re.MULTILINE))
    plain = {key: re.sub(r"\\[a-z'\"]|[{}]", "", value).lower() for key, value in fields.items()}
    surnames = ", ".join(author.split(",")[0] for author in plain["author"].split(" and "))
    return [f"{surnames}. {plain['title']}.", plain.get("eprint", "")]


def test_a_job_a_sweep_and_runs(job, tmp_path, hpcfl):
    done = hpcfl("cite", job)
    assert (done.code, done.text.count("@")) == (0, 1)
    assert "@misc{zaccone2023,\n" in done.text
    assert done.out[-2:] == ["% model linear: no entry", "% data arrays: no entry"]
    sweep = tmp_path / "sweep.yaml"
    methods = (
        "{a: {algorithm: {name: fedavg}}, b: {algorithm: {name: server_only, optimizer: adam}}}"
    )
    sweep.write_text(f"job: {job}\ngrid: {{method: {methods}, seed: [0, 1]}}\n")
    found = re.findall(r"@\w+{(\w+)", hpcfl("cite", sweep).text)
    assert found == ["mcmahan2017", "kingma2015"]
    assert hpcfl("run", job, "rounds=1", "--out", tmp_path / "runs" / "a").code == 0
    assert hpcfl("cite", tmp_path / "runs").text == done.text


def test_the_optimizer_of_the_local_steps_and_the_loss(job, hpcfl):
    text = job.read_text().replace("fedhbm", "fedavg")
    text = text.replace("local: {", "local: {optimizer: adamw, ")
    job.write_text(f"{text}loss: focal\n")
    found = hpcfl("cite", job)
    entries = ["mcmahan2017", "loshchilov2019", "lin2017"]
    assert re.findall(r"@\w+{(\w+)", found.text) == entries
    job.write_text(f"{text}loss: {{kind: own, of: torch.nn.functional.cross_entropy}}\n")
    assert hpcfl("cite", job).out[-1] == "% loss torch.nn.functional.cross_entropy: no entry"


def test_cohorts_that_a_paper_introduced(job, hpcfl):
    entries = {
        "{kind: importance, size: 2}": ["zaccone2023", "lixiang2020"],
        "{kind: power_of_choice, size: 2, candidates: 3}": ["zaccone2023", "cho2020"],
    }
    for cohort, found in entries.items():
        text = re.sub(r"^cohort: .*$", f"cohort: {cohort}", job.read_text(), flags=re.MULTILINE)
        job.write_text(text)
        assert re.findall(r"@\w+{(\w+)", hpcfl("cite", job).text) == found


def test_nothing_to_cite_is_refused(tmp_path, refused):
    (tmp_path / "empty").mkdir()
    assert f"{tmp_path / 'empty'}: holds no run" in refused("cite", tmp_path / "empty")
