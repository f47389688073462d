"""Commands and options of an earlier version are refused in one line that says what serves now."""

import pytest

from hpcfl.cli.main import main
from hpcfl.cli.parser import RETIRED


@pytest.mark.parametrize("name", RETIRED)
def test_a_retired_command_or_option(name, capsys):
    command, _, option = name.partition(" ")
    words = [command, "job.yaml", f"{option}=x"] if option.startswith("-") else name.split()
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 2
    assert capsys.readouterr().err == f"hpcfl {name}: has gone; {RETIRED[name]}\n"
