"""pfl-research's own CIFAR-10 benchmark, played by pfl: a script for a Python that has it.

    python peer_pfl.py float32|bf16

Images are random.  A line on standard input asks for a round; a line of JSON on standard output
says what it took.  It needs nothing of hpcfl: model and settings are written out, against pfl's
public interface.
"""

import json
import sys
import time
from importlib.metadata import version
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

USERS, SAMPLES, COHORT, BATCH, RATE = 1000, 50, 50, 10, 0.1
FOREVER = 10**9


class Cnn(nn.Sequential):
    """Two convolutions, a pooling, two dense layers, dropout: 1 626 442 parameters."""

    def __init__(self) -> None:
        super().__init__(
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
        for layer in self:
            if isinstance(layer, nn.Conv2d | nn.Linear):
                nn.init.xavier_uniform_(layer.weight)

    def loss(self, images: Tensor, labels: Tensor) -> Tensor:
        """Of images [B, 32, 32, 3], as pfl's benchmark stores them."""
        self.train()
        outputs = self(images.permute(0, 3, 1, 2))
        return nn.functional.cross_entropy(outputs, labels)

    def metrics(self, images: Tensor, labels: Tensor) -> dict[str, Any]:
        """None: rounds are timed without their scores."""
        return {}


class Asked(TrainingProcessCallback):
    """Tells what a round took, and waits to be asked for the next."""

    def on_train_begin(self, *, model: Any) -> Metrics:
        """Wait for the first."""
        self._ask()
        return Metrics()

    def after_central_iteration(
        self, aggregate_metrics: Metrics, model: Any, *, central_iteration: int
    ) -> tuple[bool, Metrics]:
        """Tell, and wait; the end of the input is the end."""
        cpu, wall = time.process_time() - self._cpu, time.perf_counter() - self._wall
        tell({"wall_s": wall, "cpu_s": cpu})
        return not self._ask(), Metrics()

    def _ask(self) -> bool:
        line = sys.stdin.readline()
        self._cpu, self._wall = time.process_time(), time.perf_counter()
        return bool(line)


def tell(what: dict[str, Any]) -> None:
    """Write a line of JSON."""
    sys.stdout.write(f"{json.dumps(what)}\n")
    sys.stdout.flush()


def main(precision: str) -> None:
    """Play rounds as long as they are asked for."""
    torch.set_num_threads(1)
    draw = np.random.default_rng(0)
    users = [
        (
            torch.from_numpy(draw.standard_normal((SAMPLES, 32, 32, 3), np.float32)),
            torch.from_numpy(draw.integers(0, 10, SAMPLES)),
        )
        for _ in range(USERS)
    ]
    data = FederatedDataset(
        lambda user: Dataset(list(users[user]), user_id=str(user)),
        get_user_sampler("minimize_reuse", list(range(USERS))),
    )
    network = Cnn()
    model = PyTorchModel(
        network,
        torch.optim.SGD,
        torch.optim.SGD(network.parameters(), lr=1.0),
        amp_dtype=torch.bfloat16 if precision == "bf16" else None,
    )
    settings = NNAlgorithmParams(
        central_num_iterations=FOREVER,
        evaluation_frequency=FOREVER,
        train_cohort_size=COHORT,
        val_cohort_size=None,
    )
    local = NNTrainHyperParams(local_num_epochs=1, local_learning_rate=RATE, local_batch_size=BATCH)
    size = sum(parameter.numel() for parameter in network.parameters())
    tell({"pfl": version("pfl"), "torch": torch.__version__, "parameters": size})
    FederatedAveraging().run(
        settings,
        SimulatedBackend(data, data, [WeightByUser()]),
        model,
        local,
        None,
        [Asked()],
        send_metrics_to_platform=False,
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
