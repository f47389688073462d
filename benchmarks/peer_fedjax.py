"""Run rounds of FedJAX's federated averaging for peers.py, in a Python that has FedJAX.

    python peer_fedjax.py '{"model": "mlp", "users": 500, "samples": 100, "cohort": 50, "batch": 20,
                            "rate": 0.1}'

Features are random.  As ``peer_pfl.py``, the script first writes a line with the versions and the
number of parameters, and then the seconds of a round for each line of standard input.  It does not
import hpcfl, which that Python may lack: the models are written for FedJAX's public interface.
"""

import json
import os
import sys
import time
from collections.abc import Sequence
from importlib.metadata import version
from itertools import pairwise
from typing import Any

# Read when JAX is imported: one thread, as of all sides.
os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
os.environ["NPROC"] = "1"

import fedjax
import jax
import numpy as np
from fedjax.algorithms import fed_avg
from jax import nn
from jax import numpy as jnp

jax.tree_map = jax.tree_util.tree_map  # FedJAX 0.0.17 calls it by the name that JAX has dropped

# Features, widths of the layers between, classes; the same in peers.py.
SIZES = {"softmax": (784, 62), "mlp": (784, 200, 200, 62)}

Params = list[tuple[jax.Array, jax.Array]]
Example = dict[str, jax.Array]


def initial(sizes: Sequence[int]) -> Params:
    """Weights and biases of dense layers."""
    draw = np.random.default_rng(0)
    return [
        (
            jnp.asarray(draw.standard_normal((before, after), np.float32) / before**0.5),
            jnp.zeros(after, jnp.float32),
        )
        for before, after in pairwise(sizes)
    ]


def loss(params: Params, batch: Example, _: jax.Array) -> jax.Array:
    """The mean cross-entropy of dense layers with ReLU between them."""
    rows = batch["x"]
    for weight, bias in params[:-1]:
        rows = nn.relu(rows @ weight + bias)
    weight, bias = params[-1]
    logs = nn.log_softmax(rows @ weight + bias)
    return -jnp.take_along_axis(logs, batch["y"][:, None], axis=1).mean()


def write_line(values: dict[str, Any]) -> None:
    """Write values as a line of JSON to standard output."""
    sys.stdout.write(f"{json.dumps(values)}\n")
    sys.stdout.flush()


def main(work: dict[str, Any]) -> None:
    """Run a round for each line of input."""
    sizes = SIZES[work["model"]]
    draw = np.random.default_rng(0)
    users = {
        b"%d" % user: {
            "x": draw.standard_normal((work["samples"], sizes[0]), np.float32),
            "y": draw.integers(0, sizes[-1], work["samples"]).astype(np.int32),
        }
        for user in range(work["users"])
    }
    data = fedjax.InMemoryFederatedData(users)
    algorithm = fed_avg.federated_averaging(
        jax.grad(loss),
        fedjax.optimizers.sgd(work["rate"]),
        fedjax.optimizers.sgd(1.0),
        fedjax.ShuffleRepeatBatchHParams(
            batch_size=work["batch"], num_epochs=1, drop_remainder=False
        ),
    )
    state = algorithm.init(initial(sizes))
    sampler = fedjax.client_samplers.UniformGetClientSampler(data, work["cohort"], seed=0)
    parameters = sum(leaf.size for leaf in jax.tree_util.tree_leaves(state.params))
    write_line({"fedjax": version("fedjax"), "jax": jax.__version__, "parameters": parameters})
    while sys.stdin.readline():
        cpu, wall = time.process_time(), time.perf_counter()
        state, _ = algorithm.apply(state, sampler.sample())
        jax.block_until_ready(state.params)
        cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
        write_line({"wall_s": wall, "cpu_s": cpu})


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
