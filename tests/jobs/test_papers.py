"""The sweeps under jobs/papers repeat what the papers' tables print, no more and no less."""

import pytest

from hpcfl.runs.job_file.settings import flatten
from hpcfl.tools.report.published import published, repeated
from tests.jobs.every import ROOT, sweep

# (paper, table): the sweeps whose runs it prints, and the sweeps made for it alone.
TABLES = {
    ("FedHBM", "2"): ("fedhbm_table[34]_cifar10", ""),
    ("FedHBM", "3"): ("fedhbm_table3_*", "fedhbm_table3_*"),
    ("FedHBM", "4"): ("fedhbm_table4_*", "fedhbm_table4_*"),
    ("FedHBM", "5"): ("fedhbm_table5_*", "fedhbm_table5_*"),
    ("FedHBM", "6"): ("fedhbm_table6*", "fedhbm_table6*"),
    ("FedHBM", "9"): ("fedhbm_table[34]_cifar100", ""),
    ("FedHBM", "10"): ("fedhbm_table10", "fedhbm_table10"),
    ("FedHBM", "11"): ("fedhbm_table3_* fedhbm_table11*", "fedhbm_table11*"),
    ("FedCM", "1"): ("fedcm_table1", "fedcm_table1"),
    ("FedCM", "2"): ("fedcm_table2", "fedcm_table2"),
    ("FedCM", "3"): ("fedcm_table3", "fedcm_table3"),
    ("FedMIM", "I"): ("fedmim_table1", "fedmim_table1"),
    ("FedMIM", "II"): ("fedmim_table2", "fedmim_table2"),
    ("FedMIM", "III"): ("fedmim_table3", "fedmim_table3"),
}


# A method, and the name under which the paper may print its numbers.
OTHER_READINGS = {"mofedsam": "fedsam"}


def jobs(patterns):
    """The settings of every run of the sweeps, once for all seeds."""
    found = {}
    for pattern in patterns.split():
        for path in (ROOT / "jobs/papers").glob(f"{pattern}.yaml"):
            for point in sweep(path).points:
                if point.loaded.job.seed == 0:
                    found[path.stem, point.name] = flatten(point.loaded.tree)
    return found


def rows(paper, table):
    found = [row for row in published() if (row.paper, row.table) == (paper, table)]
    return [row for row in found if row.metric != "overhead"]


@pytest.mark.parametrize(("paper", "table"), TABLES)
def test_every_printed_number_has_a_run(paper, table):
    runs, _ = TABLES[paper, table]
    known = [(job["rounds"], repeated(job)) for job in jobs(runs).values()]
    for row in rows(paper, table):
        lengths = {rounds for rounds, printed in known if row in printed}
        assert lengths, row
        assert row.rounds is None or lengths == {row.rounds}, row


@pytest.mark.parametrize(("paper", "table"), [key for key, (_, own) in TABLES.items() if own])
def test_every_run_has_a_printed_number(paper, table):
    _, own = TABLES[paper, table]
    runs = jobs(own)
    assert runs
    for name, job in runs.items():
        method = job["algorithm.name"]
        printed = job | {"algorithm.name": OTHER_READINGS.get(method, method)}
        assert any(row in rows(paper, table) for row in repeated(printed)), name


@pytest.mark.parametrize("path", sorted((ROOT / "jobs/papers").glob("fedhbm_table*.yaml")), ids=str)
def test_five_seeds_but_for_a_search(path):
    seeds = {point.loaded.job.seed for point in sweep(path).points}
    search = "table7" in path.stem or "search" in path.stem
    assert seeds == ({0} if search else {0, 1, 2, 3, 4})


@pytest.mark.parametrize("path", sorted((ROOT / "jobs/papers").glob("fedhbm_*.yaml")), ids=str)
def test_cifar_is_as_in_the_authors_code(path):
    """RickZack/GHBM at 41da4a9: src/datasets/cifar.py, lines 89 to 100; src/algo/fedbase.py, 52."""
    for point in sweep(path).points:
        job = flatten(point.loaded.tree)
        if job["data.kind"] in ("cifar10", "cifar100"):
            assert job["data.mean"] == [0.4914, 0.4822, 0.4465], point.name
            assert job["data.std"] == [0.2023, 0.1994, 0.2010], point.name
        federated = job["algorithm.name"] != "centralized"
        assert job["local.drop_last"] == (federated and job["model.name"] == "resnet20")


def test_the_search_of_table_5_has_the_printed_rates():
    """Appendix B.1: {0.1, 1} x {0.01, 0.1}; of two methods on iNaturalist three rates each."""
    found = {}
    for path in (ROOT / "jobs/papers").glob("fedhbm_table5_*_search*.yaml"):
        data = path.stem.split("_")[2]
        for point in sweep(path).points:
            job = point.loaded.job
            rates = job.algorithm.server_lr, job.local.lr
            found.setdefault((data, point.labels[0]), []).append(rates)
    small = {(1.0, 0.1), (1.0, 0.01), (0.1, 0.1), (0.1, 0.01)}
    large = {(10**a, 10**b) for a in (0, -0.5, -1) for b in (-1, -1.5, -2)}
    assert len(found) == 10
    for (data, method), rates in found.items():
        enlarged = data == "inaturalist" and method in ("scaffold", "mimemom")
        expected = sorted(large if enlarged else small)
        assert sorted(rates) == [pytest.approx(pair, rel=1e-5) for pair in expected]
