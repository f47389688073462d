"""docs/howto/devices.md: its job is written out, and its commands print what the page says."""

import re
import shlex
from pathlib import Path

import pytest

from tests.project.pages import blocks, commands

PAGE = (Path(__file__).parents[2] / "docs/howto/devices.md").read_text()


@pytest.mark.slow
def test_the_commands_say_what_the_page_shows(tmp_path, monkeypatch, own_process, hpcfl):
    pytest.importorskip("sklearn", reason="scikit-learn is absent")
    monkeypatch.chdir(tmp_path)
    (job,) = (text for language, text in blocks(PAGE) if language == "yaml")
    Path("devices.yaml").write_text(job)
    for command, printed in commands(PAGE):
        done = hpcfl(*shlex.split(command)[1:])
        assert done.code == 0, (command, done.err)
        text = "\n".join([*done.out, *done.err])
        for line in printed:
            pattern = ".*".join(map(re.escape, line.split("...")))
            assert re.search(pattern, text), (line, text)
    assert Path("devices.png").stat().st_size
