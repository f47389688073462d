"""`hpcfl --print-completion`: what the script proposes."""

import subprocess

import pytest

from hpcfl.cli.completion import completion
from hpcfl.cli.main import COMMANDS
from hpcfl.cli.parser import parser

# What bash does when the user presses the tab key after the words.
PRESS = """
COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1))
_shtab_hpcfl
printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.fixture(scope="module")
def press(tmp_path_factory):
    """The proposals of bash for the last of the words."""
    script = tmp_path_factory.mktemp("completion") / "hpcfl"
    script.write_text(completion(parser(), "bash"))

    def run(*words):
        text = f'source "{script}"\n{PRESS}'
        command = ["bash", "--norc", "-c", text, "bash", "hpcfl", *words]
        folder = script.parent
        done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=folder)
        assert not done.stderr
        return done.stdout.split()

    return run


def test_commands(press):
    top = {command.partition(" ")[0] for command in COMMANDS}
    assert set(press("")) == top
    assert press("re") == ["resume", "report"]


def test_options(press):
    assert press("run", "--c") == ["--continue"]
    assert press("report", "--layout", "p") == ["paper"]


def test_packaged_jobs_and_files(press):
    assert press("run", "quick") == ["quickstart"]
    assert press("sweep", "papers/slides_f") == ["papers/slides_figure1", "papers/slides_figure3"]
    # A file in the current directory.
    for words in (
        ["check"], ["resume"], ["export"], ["report"], ["status"], ["cite"],
        ["report", "runs", "--plot"], ["run", "quickstart", "--out"],
    ):  # fmt: skip
        assert press(*words, "hp") == ["hpcfl"], words


def test_the_option_prints_the_script(capsys):
    for shell in ("bash", "zsh"):
        with pytest.raises(SystemExit) as ended:
            parser().parse_args(["--print-completion", shell])
        assert ended.value.code == 0
        said = capsys.readouterr().out
        assert "_shtab_hpcfl" in said
        assert "cifar10/fedhbm_noniid" in said
