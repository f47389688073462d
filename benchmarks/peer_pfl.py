"""Run rounds of pfl's federated averaging for peers.py, in a Python that has pfl.

    python peer_pfl.py '{"model": "cnn", "precision": "float32", "users": 1000, "samples": 50,
                         "cohort": 50, "batch": 10, "rate": 0.1}'

Images are random and in CIFAR-10's shape.  The script first writes a line with the versions and the
number of parameters.  Then it runs a round for each line of standard input, and writes its seconds
as a line of JSON, {"wall_s", "cpu_s"}.  It does not import hpcfl, which that Python may lack: the
models are written as pfl's users would write them, for its public interface.
"""

import json
import sys
import time
from importlib.metadata import version
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.aggregate.weighting import WeightByUser
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam.base import NNTrainHyperParams
from pfl.metrics import Metrics
from pfl.model.pytorch import PyTorchModel
from torch import Tensor, nn

FOREVER = 10**9


def cnn() -> nn.Module:
    """The CNN of pfl's benchmark: 1 626 442 parameters."""
    model = nn.Sequential(
        nn.Conv2d(3, 32, 3),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Dropout(0.25),
        nn.Flatten(),
        nn.Linear(64 * 14 * 14, 128),
        nn.ReLU(),
        nn.Dropout(0.5),
        nn.Linear(128, 10),
    )
    for layer in model:
        if isinstance(layer, nn.Conv2d | nn.Linear):
            nn.init.xavier_uniform_(layer.weight)
    return model


def lenet() -> nn.Module:
    """LeNet with 797 962 parameters, as hpcfl has it."""
    return nn.Sequential(
        nn.Conv2d(3, 64, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(64, 64, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(1600, 384),
        nn.ReLU(),
        nn.Linear(384, 192),
        nn.ReLU(),
        nn.Linear(192, 10),
    )


class Residual(nn.Module):
    """Two convolutions, and a shortcut without parameters."""

    def __init__(self, before: int, after: int) -> None:
        super().__init__()
        self.added = after - before
        self.path = nn.Sequential(
            nn.Conv2d(before, after, 3, 2 if self.added else 1, padding=1, bias=False),
            nn.GroupNorm(2, after),
            nn.ReLU(),
            nn.Conv2d(after, after, 3, padding=1, bias=False),
            nn.GroupNorm(2, after),
        )

    def forward(self, images: Tensor) -> Tensor:
        """Return features of half the width and height where channels are added."""
        features = self.path(images)
        if self.added:
            channels = (0, 0, 0, 0, self.added // 2, self.added - self.added // 2)
            images = nn.functional.pad(images[:, :, ::2, ::2], channels)
        return nn.functional.relu(features + images)


def resnet20() -> nn.Module:
    """ResNet-20 with GroupNorm: 269 722 parameters, as hpcfl has it."""
    widths = [16] * 4 + [32] * 3 + [64] * 3
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1, bias=False),
        nn.GroupNorm(2, 16),
        nn.ReLU(),
        *(Residual(*pair) for pair in pairwise(widths)),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(64, 10),
    )


MODELS = {"cnn": cnn, "lenet": lenet, "resnet20": resnet20}


class Network(nn.Module):
    """A model with the methods that pfl calls."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def loss(self, images: Tensor, labels: Tensor) -> Tensor:
        """The mean loss of images [B, 32, 32, 3], as pfl's benchmark stores them."""
        self.train()
        outputs = self.model(images.permute(0, 3, 1, 2))
        return nn.functional.cross_entropy(outputs, labels)

    def metrics(self, images: Tensor, labels: Tensor) -> dict[str, Any]:
        """Return no metrics: rounds are timed without evaluation."""
        return {}


class RoundOnRequest(TrainingProcessCallback):
    """Prints the seconds of each round, and waits for a line of input before the next one."""

    def on_train_begin(self, *, model: Any) -> Metrics:
        """Wait for the first request."""
        self._wait()
        return Metrics()

    def after_central_iteration(
        self, aggregate_metrics: Metrics, model: Any, *, central_iteration: int
    ) -> tuple[bool, Metrics]:
        """Print the seconds of the round, and wait; return True (stop) at the end of the input."""
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        cpu, wall = time.process_time() - self._cpu, time.perf_counter() - self._wall
        write_line({"wall_s": wall, "cpu_s": cpu})
        return not self._wait(), Metrics()

    def _wait(self) -> bool:
        line = sys.stdin.readline()
        self._cpu, self._wall = time.process_time(), time.perf_counter()
        return bool(line)


def write_line(values: dict[str, Any]) -> None:
    """Write values as a line of JSON to standard output."""
    sys.stdout.write(f"{json.dumps(values)}\n")
    sys.stdout.flush()


def main(work: dict[str, Any]) -> None:
    """Run a round for each line of input."""
    count, samples = work["users"], work["samples"]
    torch.set_num_threads(1)
    tf32 = work["precision"] == "tf32"
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = tf32
    draw = np.random.default_rng(0)
    users = [
        (
            torch.from_numpy(draw.standard_normal((samples, 32, 32, 3), np.float32)),
            torch.from_numpy(draw.integers(0, 10, samples)),
        )
        for _ in range(count)
    ]
    data = FederatedDataset(
        lambda user: Dataset(list(users[user]), user_id=str(user)),
        get_user_sampler("minimize_reuse", list(range(count))),
    )
    network = Network(MODELS[work["model"]]())
    model = PyTorchModel(
        network,
        torch.optim.SGD,
        torch.optim.SGD(network.parameters(), lr=1.0),
        amp_dtype=torch.bfloat16 if work["precision"] == "bf16" else None,
    )
    settings = NNAlgorithmParams(
        central_num_iterations=FOREVER,
        evaluation_frequency=FOREVER,
        train_cohort_size=work["cohort"],
        val_cohort_size=None,
    )
    local = NNTrainHyperParams(
        local_num_epochs=1, local_learning_rate=work["rate"], local_batch_size=work["batch"]
    )
    size = sum(parameter.numel() for parameter in network.parameters())
    write_line({"pfl": version("pfl"), "torch": torch.__version__, "parameters": size})
    FederatedAveraging().run(
        settings,
        SimulatedBackend(data, data, [WeightByUser()]),
        model,
        local,
        None,
        [RoundOnRequest()],
        send_metrics_to_platform=False,
    )


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
