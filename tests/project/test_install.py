"""An installed hpcfl is found from a folder that holds a clone called hpcfl.

A folder on the path that has the package's name and no __init__.py could be a namespace package.
"""

import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
SCRIPT = "import hpcfl\n\nprint(hpcfl.run.__name__, hpcfl.__file__)\n"
WRONG = 'import hpcfl\n\nhpcfl.run("job.yaml", out=3)\n'
MYPY = """\
[mypy]
strict = True
follow_imports = skip
cache_dir = /dev/null

[mypy-hpcfl]
follow_imports = normal
"""


@pytest.fixture(scope="module", params=["editable", "wheel"])
def installed(request, tmp_path_factory):
    """A folder with a clone in it, the programs of an environment, and where the package is."""
    root = tmp_path_factory.mktemp(request.param)
    clone = root / "work" / "hpcfl"
    clone.mkdir(parents=True)
    for name in ("hpcfl", "jobs", "slurm"):
        without = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / name, clone / name, symlinks=True, ignore=without)
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, clone)
    venv.create(root / "env", symlinks=True)
    (site,) = (root / "env").glob("lib/python*/site-packages")
    # What hpcfl needs, without this environment's own hpcfl: a .pth file there is not read again.
    (site / "needs.pth").write_text(sysconfig.get_path("purelib") + "\n")
    python = root / "env" / "bin" / "python"
    words = ["-m", "pip", "--python", python, "install", "--quiet", "--no-deps", "--no-index"]
    words += ["--no-build-isolation", "--disable-pip-version-check"]
    words += ["-e", clone] if request.param == "editable" else [clone]
    made = subprocess.run([sys.executable, *words], capture_output=True, text=True, check=False)
    assert made.returncode == 0, made.stderr
    home = clone if request.param == "editable" else site
    return clone.parent, python.parent, home / "hpcfl" / "__init__.py"


def said(folder, *command):
    """What a command prints in the folder, which Python looks at first."""
    env = {"PYTHONPATH": ".", "PATH": "/usr/bin:/bin"}
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False)


def test_import(installed):
    folder, programs, package = installed
    (folder / "script.py").write_text(SCRIPT)
    done = said(folder, programs / "python", "script.py")
    assert (done.returncode, done.stdout) == (0, f"run {package}\n"), done.stderr


@pytest.mark.parametrize("words", [["hpcfl"], ["python", "-m", "hpcfl"]])
def test_the_program(installed, words):
    folder, programs, _ = installed
    done = said(folder, programs / words[0], *words[1:], "--version")
    assert (done.returncode, done.stdout[:6]) == (0, "hpcfl "), done.stderr


def test_packaged_jobs(installed):
    """All are there, and their folder is not: a sweep finds its base job beside itself."""
    folder, programs, package = installed
    names = {path.relative_to(ROOT / "jobs") for path in (ROOT / "jobs").rglob("*.yaml")}
    home = package.parent / "jobs"
    assert {path.relative_to(home) for path in home.rglob("*.yaml")} == names
    done = said(folder, programs / "hpcfl", "sweep", "sweeps/quickstart", "--dry-run")
    assert done.returncode == 0, done.stderr
    assert "fedhbm-seed1" in done.stdout


def test_init(installed, tmp_path):
    """A wheel has what the links of the sources lead to; slurm/array.sh starts run.sh itself."""
    folder, programs, _ = installed
    done = said(folder, programs / "hpcfl", "init", tmp_path / "new")
    assert done.returncode == 0, done.stderr
    made = {
        str(path.relative_to(tmp_path / "new")): path for path in map(Path, done.stdout.split())
    }
    copied = (
        "jobs/quickstart.yaml",
        "jobs/sweeps/quickstart.yaml",
        "slurm/run.sh",
        "slurm/array.sh",
        "slurm/chain.sh",
        "slurm/sites/example.sh",
    )
    for name in copied:
        assert not made[name].is_symlink()
        assert made[name].read_bytes() == (ROOT / name).read_bytes()
    assert os.access(made["slurm/run.sh"], os.X_OK)
    assert made.keys() - set(copied) == {
        *("README.md", "fedvarp.py", "jobs/fedvarp.yaml", "jobs/sweeps/rates.yaml")
    }


def test_mypy(installed):
    """It reads the package's types, from whose absence it would not tell the two apart.

    Of the package only: reading torch and all else that hpcfl imports takes minutes.
    """
    folder, programs, _ = installed
    for name, text in (("right.py", SCRIPT), ("wrong.py", WRONG), ("mypy.ini", MYPY)):
        (folder / name).write_text(text)
    done = said(folder, programs / "python", "-m", "mypy", "right.py", "wrong.py")
    found = [line for line in done.stdout.splitlines() if "error: " in line]
    assert len(found) == 1, done.stdout + done.stderr
    assert found[0].startswith("wrong.py:3: ")
    assert found[0].endswith("[arg-type]")
