"""Limits of control groups, of both versions, on the group itself and on those around it."""

import pytest

from hpcfl.io import cgroups
from hpcfl.io.cgroups import core_quotas

V1 = ("cpu.cfs_quota_us", "cpu.cfs_period_us")
CASES = {
    "a limit of version 2": ("0::/job/step", {"job/step/cpu.max": "400000 100000"}, [4.0]),
    "around it": ("0::/job/step", {"job/step/cpu.max": "max 100000", "job/cpu.max": "5 2"}, [2.5]),
    "of a container, which sees other names": ("0::/its/name", {"cpu.max": "30 10"}, [3.0]),
    "a limit of version 1": (
        "3:memory:/job\n2:cpu,cpuacct:/job\n0::/",
        {f"cpu,cpuacct/job/{V1[0]}": "200000", f"cpu,cpuacct/job/{V1[1]}": "100000"},
        [2.0],
    ),
    "none of version 1": ("1:cpu:/", {f"cpu/{V1[0]}": "-1", f"cpu/{V1[1]}": "100000"}, []),
    "half of version 1": ("1:cpu:/", {f"cpu/{V1[0]}": "200000"}, []),
    "of another job": ("0::/job", {"other/cpu.max": "1 1"}, []),
}


@pytest.fixture
def groups(tmp_path, monkeypatch):
    """Put this process into groups, whose files have the lines."""

    def put(own, files):
        (tmp_path / "own").write_text(f"{own}\n")
        for name, line in files.items():
            file = tmp_path / "mount" / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(f"{line}\n")

    monkeypatch.setattr(cgroups, "_OWN", tmp_path / "own")
    monkeypatch.setattr(cgroups, "_MOUNT", tmp_path / "mount")
    return put


@pytest.mark.parametrize("case", CASES)
def test_the_time_of_cores_is_limited(groups, case):
    own, files, quotas = CASES[case]
    groups(own, files)
    assert list(core_quotas()) == quotas


def test_where_there_are_no_groups(groups):
    assert list(core_quotas()) == []
