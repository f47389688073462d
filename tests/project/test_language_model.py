"""docs/tutorials/language_model.md and examples/language_model: DiLoCo of a GPT on a text."""

import json
import re
import sys
from math import cos, pi
from pathlib import Path

import pytest
import torch
import yaml
from torch.func import functional_call
from torch.nn.functional import cross_entropy

from hpcfl import run
from tests import real_data
from tests.long_form import long_form
from tests.project.pages import blocks

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "examples/language_model"
PAGE = (ROOT / "docs/tutorials/language_model.md").read_text()
LENGTH, ROUNDS, STEPS, WORKERS = 8, 5, 4, 4


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch, own_process):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(FOLDER)
    sys.modules.pop("gpt", None)  # of another page
    yield
    sys.modules.pop("gpt", None)


def small(**changes):
    """DiLoCo of a GPT in float64; a client's batch is all of its text, so that it is known."""
    text = "".join(f"{k} is {k * k}, and its cube is {k**3};\n" for k in range(60))
    Path("text.txt").write_text(text)
    local = {"steps": STEPS, "batch_size": "full", "lr": 0.01, "weight_decay": 0.1}
    # The loss does not depend on the biases of the keys.  With AdamW's usual eps they would move by
    # the rounding of their gradients.
    local |= {"optimizer": {"kind": "adamw", "b2": 0.95, "eps": 1e-5}, "keep_optimizer": True}
    local["step_schedule"] = {"kind": "cosine", "warmup": 5, "floor": 0.1}
    sizes = {"width": 16, "layers": 2, "heads": 2}
    return {
        "data": {"kind": "text", "path": "text.txt", "length": LENGTH, "clients": WORKERS},
        "model": {"name": "module", "of": "gpt.GPT", "arguments": sizes},
        "cohort": {"kind": "uniform", "size": WORKERS},
        "algorithm": {"name": "diloco"},
        "local": local,
        "weights": "uniform",
        "precision": "float64",
        "rounds": ROUNDS,
        "evaluate": {"every": ROUNDS},
        **changes,
    }


def batches():
    """The windows of each worker: a piece of the text each."""
    tokens = torch.frombuffer(bytearray(Path("text.txt").read_bytes()), dtype=torch.uint8).long()
    starts = torch.arange(0, len(tokens) - LENGTH, LENGTH)
    windows = torch.stack([tokens[s : s + LENGTH + 1] for s in starts.tolist()])
    return [(part[:, :-1], part[:, 1:]) for part in windows.tensor_split(WORKERS)]


def test_diloco_of_a_gpt_is_adamw_inside_and_nesterov_outside():
    """As torch.optim has them, in float64 over rounds whose workers keep their moments."""
    done = run(small(), out="run")
    model, still = done.model(), small(rounds=1)["local"] | {"lr": 1e-300}
    names = [name for name, _ in model.named_parameters()]
    x = [*run(small(rounds=1, local=still), out="first").model().parameters()]
    outer = torch.optim.SGD(x, lr=0.7, momentum=0.9, nesterov=True)
    workers = []
    for inputs, labels in batches():
        y = [torch.nn.Parameter(p.detach().clone()) for p in x]
        adamw = torch.optim.AdamW(y, lr=0.01, betas=(0.9, 0.95), eps=1e-5, weight_decay=0.1)
        workers.append((inputs, labels, y, adamw))
    for t in range(ROUNDS):
        for inputs, labels, y, adamw in workers:
            with torch.no_grad():
                torch._foreach_copy_(y, x)
            for n in range(t * STEPS, (t + 1) * STEPS):
                cosine = (1 + cos(pi * (n - 5) / (ROUNDS * STEPS - 5))) / 2
                adamw.param_groups[0]["lr"] = 0.01 * ((n + 1) / 5 if n < 5 else 0.1 + 0.9 * cosine)
                adamw.zero_grad()
                logits = functional_call(model, dict(zip(names, y, strict=True)), (inputs,))
                cross_entropy(logits.flatten(0, 1), labels.flatten()).backward()
                adamw.step()
        for p, *ends in zip(x, *(y for _, _, y, _ in workers), strict=True):
            p.grad = torch.stack([p.detach() - end.detach() for end in ends]).mean(0)
        outer.step()
    assert_equal(model.parameters(), x)


def assert_equal(found, expected):
    """To 1e-12."""
    for p, q in zip(found, expected, strict=True):
        torch.testing.assert_close(p, q, rtol=0, atol=1e-12)


def test_meeting_after_each_step_of_sgd_is_training_on_the_whole_text():
    """With an outer rate of 1 and no momentum."""
    local = {"steps": 1, "batch_size": "full", "lr": 0.1}
    together = run(
        small(
            algorithm={"name": "diloco", "server_lr": 1, "beta": 0}, local=local, weights="examples"
        ),
        out="together",
    )
    one = small()["data"] | {"clients": 1}
    pooled = run(
        small(
            algorithm={"name": "centralized", "beta": 0},
            local=local,
            data=one,
            cohort={"kind": "uniform", "size": 1},
        ),
        out="pooled",
    )
    assert_equal(together.model().parameters(), pooled.model().parameters())


def test_the_page_shows_the_job():
    """Without its comment."""
    (shown,) = (text for language, text in blocks(PAGE) if language == "yaml")
    assert yaml.safe_load(shown) == yaml.safe_load((FOLDER / "shakespeare.yaml").read_text())


@pytest.mark.slow
@pytest.mark.parametrize(
    "names",
    [
        ["adamw", "diloco-4x50"],
        pytest.param([f"diloco-{n}x{h}" for n in (1, 4, 8) for h in (10, 50)], marks=long_form),
    ],
)
def test_the_comparison(hpcfl, monkeypatch, names):
    """The runs give the page's perplexities."""
    Path("shakespeare.txt").symlink_to(real_data.real("tinyshakespeare.txt"))
    monkeypatch.setenv("PYTHONPATH", str(FOLDER))  # of the processes of the runs
    done = hpcfl("sweep", FOLDER / "sweep.yaml", "--out", "runs", "--only", ",".join(names))
    assert done.code == 0, done.err
    shown = dict(re.findall(r"^\| ([\w-]+) \| \d .*\| ([\d.]+) \|$", PAGE, re.MULTILINE))
    for name in names:
        *_, last = Path(f"runs/{name}/log.jsonl").read_text().splitlines()
        assert json.loads(last)["test_perplexity"] == pytest.approx(float(shown[name]), rel=0.02)
