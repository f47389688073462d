"""docs/howto/recipes.md: each recipe is written out, and its commands say what it prints."""

import json
import os
import re
import shlex
import sys
from pathlib import Path

import pytest

from tests import vision
from tests.forked import python
from tests.project.pages import blocks, commands, section

PAGE = (Path(__file__).parents[2] / "docs/howto/recipes.md").read_text()
DIGITS = PAGE.partition("\n## ")[0]
TEXTS = (Path(__file__).parents[2] / "docs/data/text.md").read_text()


@pytest.fixture
def play(tmp_path, monkeypatch, own_process, hpcfl):
    """Write the files of a part of the page, run its commands, and compare what they print."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)

    def run(part):
        for _, text in blocks(part):
            if name := re.match(r"# (\S+)\n", text):
                Path(name[1]).write_text(text)
        for command, printed in commands(part):
            program, *words = shlex.split(command)
            if program == "python":
                ended = python(1, *words, folders=[tmp_path])
                assert ended.returncode == 0, ended.stderr
                continue
            done = hpcfl(*words)
            assert done.code == 0, (command, done.err)
            text = "\n".join([*done.out, *done.err])
            for line in printed:
                assert re.search(".*".join(map(re.escape, line.split("..."))), text), (line, text)

    yield run
    for name in ("vit", "lora", "gpt2"):
        sys.modules.pop(name, None)


def need(name):
    """Skip a recipe whose package is absent; where CI has installed it, fail."""
    if os.environ.get("HPCFL_REQUIRE_RECIPES") != "1":
        pytest.importorskip(name, reason=f"{name} is absent")


def accuracy(run):
    """The last of a run's log."""
    *_, last = (Path("runs") / run / "log.jsonl").read_text().splitlines()
    return json.loads(last)["test_accuracy"]


@pytest.mark.slow
def test_resnet(play):
    pytest.importorskip("sklearn", reason="scikit-learn is absent")
    vision.torchvision()
    play(DIGITS)
    play(section(PAGE, "ResNet-18"))
    assert accuracy("resnet") > 0.3


@pytest.mark.slow
def test_vit(play):
    pytest.importorskip("sklearn", reason="scikit-learn is absent")
    vision.torchvision()  # which timm imports
    need("timm")
    play(DIGITS)
    play(section(PAGE, "A ViT"))
    assert accuracy("vit") > 0.2


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing. is deprecated:FutureWarning")
def test_lora(play):
    vision.torchvision()  # which transformers imports where it is there
    need("transformers")
    need("peft")
    play(section(PAGE, "A text classifier"))
    assert accuracy("lora") > 0.6


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing. is deprecated:FutureWarning")
def test_causal_lora(play):
    vision.torchvision()
    need("transformers")
    need("peft")
    play(section(TEXTS, "From a file").partition("```python\n# gpt.py")[0])
    play(section(PAGE, "A causal model"))
    with Path("runs/gpt2/log.jsonl").open() as log:
        first, *_, last = map(json.loads, log)
    assert last["test_perplexity"] < 0.8 * first["test_perplexity"]
