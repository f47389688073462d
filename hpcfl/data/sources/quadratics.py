"""Quadratics: one quadratic loss per client, with known optimum and known heterogeneity.

f_i(w) = 1/2 sum(h_i w^2) - b_i . w.  The mean of all f_i has its minimum at w = 0, where the
clients' gradients -b_i have mean zero and root-mean-square norm G: the (G, B)-dissimilarity of
Karimireddy et al., SCAFFOLD, ICML 2020 (their figure 3 runs SGD, FedAvg and SCAFFOLD on two such
clients).
"""

from dataclasses import dataclass

import numpy as np
import torch

from hpcfl.data.base import DataConfig, Dataset
from hpcfl.data.sources.arrays import cast
from hpcfl.errors import JobError
from hpcfl.io.memory import refuse_large_job
from hpcfl.seeds import stream
from hpcfl.types import Count, Decay, Examples, NonNegative, Positive


@dataclass(frozen=True, kw_only=True)
class Quadratics(DataConfig):
    """One client, one example (h_i, b_i), stored as inputs [N, 2, dim]; labels are unused zeros.

    The test set is all of them, so the test loss is the objective: 0 at the optimum.  Two clients
    in one dimension are f_1 = h_1 w^2/2 + G w and f_2 = h_2 w^2/2 - G w.
    """

    clients: Count | None = 2
    """N."""
    dim: Count = 1
    """Dimension of w."""
    curvature: Positive = 1.0
    """Mean of h_i over the clients."""
    spread: Decay = 0.0
    """h_i runs evenly from (1 + spread) to (1 - spread) times the curvature.

    With equal curvatures FedAvg converges to the optimum however large G is.
    """
    heterogeneity: NonNegative = 1.0
    """G."""

    def load(self, seed: int) -> Dataset:
        """Draw the clients' gradients at the optimum (fixed up to sign for N = 2, dim = 1)."""
        count = self.clients or 2
        if count == 1 and (self.heterogeneity or self.spread):
            raise JobError(
                "data.clients: a single client cannot differ from others; set data.heterogeneity "
                "and data.spread to 0.0, or take at least 2 clients"
            )
        # Up to three arrays of that size are held at a time, in float64.
        needed = 8 * count * self.dim * 2 * 3
        refuse_large_job(
            "data.clients" if count > self.dim else "data.dim",
            f"data of {count} clients in {self.dim} dimensions",
            needed,
        )
        curvature = self.curvature * (1 + self.spread * np.linspace(1, -1, count))
        gradients = np.zeros((count, self.dim))
        if self.heterogeneity:
            gradients = stream(seed, "quadratics").standard_normal((count, self.dim))
            gradients -= gradients.mean(axis=0)
            gradients *= self.heterogeneity / np.sqrt((gradients**2).sum(axis=1).mean())
            # Two clients in one dimension then have the signs of the class's docstring.
            gradients *= np.sign(gradients[0, 0])
        rows = np.stack([np.broadcast_to(curvature[:, None], gradients.shape), -gradients], axis=1)
        functions = Examples(torch.from_numpy(rows), torch.zeros(count, dtype=torch.int64))
        return Dataset(
            train=functions,
            test=functions,
            natural=[np.array([client]) for client in range(count)],
            classes=None,
            loss="quadratic",
            transform=cast,
        )
