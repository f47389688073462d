"""The keys of a job as typed sections."""

from collections.abc import Mapping
from dataclasses import asdict as as_tree
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator

from hpcfl.algorithms.base import Algorithm
from hpcfl.clients.devices import Devices
from hpcfl.clients.sampling import CohortConfig
from hpcfl.clients.section import Local
from hpcfl.data.base import DataConfig
from hpcfl.engine.diagnostics import Diagnostics
from hpcfl.evaluation.config import Evaluate, Stop
from hpcfl.job.callbacks import CallbackEntry
from hpcfl.job.registry import REGISTRIES
from hpcfl.models.base import ModelConfig
from hpcfl.models.training_loss import LossConfig
from hpcfl.runs.job_file.yaml_file import (
    Tree,
    plain,
)
from hpcfl.types import Count, NonNegative, PathText, Positive, Section, Seed

Precision = Literal["float32", "float64", "bf16", "tf32"]


@dataclass(frozen=True, kw_only=True)
class CheckpointConfig(Section):
    """After which rounds a checkpoint is written; one is always written after the last round."""

    every: Count = 500
    """At every multiple of so many rounds."""
    minutes: Positive | None = None
    """And when so many minutes have passed since the last."""
    keep: Count = 2
    """How many complete checkpoints are kept."""

    def due(self, round: int, rounds: int) -> bool:
        """Whether a checkpoint is committed after ``round`` rounds, whatever the clock says."""
        return round % self.every == 0 or round == rounds


def _no_memory(kind: Any) -> Any:
    if kind == "memory":
        raise ValueError(
            "memory is no kind any more; say hdf5, which keeps states in store.cache_gib of memory"
        )
    return kind


StoreKind = Annotated[Literal["hdf5"], BeforeValidator(_no_memory)]


@dataclass(frozen=True, kw_only=True)
class Store(Section):
    """Where client states are stored."""

    kind: StoreKind = "hdf5"
    """hdf5: in files, with a cache in memory."""
    cache_gib: NonNegative = 1.0
    """Host memory per rank for states and the objects that hold them, in GiB; likewise of a GPU."""
    dtype: Literal["float32", "bfloat16"] | None = None
    """The dtype in which states are stored between rounds, where it is narrower than the
    model's."""
    dir: PathText | None = None
    """A folder on a disk of the node's own, for the rounds; checkpoints copy what changed."""


@dataclass(frozen=True, kw_only=True)
class CommConfig(Section):
    """How ranks communicate."""

    backend: Literal["auto", "mpi", "gloo", "nccl"] = "auto"
    """auto: NCCL where ranks have GPUs, MPI on CPUs (Gloo under torchrun), none for one rank."""
    timeout_s: Positive = 600.0
    """Seconds that a rank waits for the others; then the run ends, and names the missing rank."""


ExecutorName = Literal["sequential", "block", "triton", "lanes", "auto"]


@dataclass(frozen=True, kw_only=True)
class Job(Section):
    """Everything that determines a run."""

    task: str | None = None
    """A data set and a model by one name; keys of ``data`` and ``model`` override its own."""
    data: DataConfig
    """The data set, and its partition into clients; may be left out where ``task`` is given."""
    model: ModelConfig
    """The model; may be left out where ``task`` is given."""
    cohort: CohortConfig
    """How the clients of each round are drawn."""
    devices: Devices | None = None
    """The clients' devices, whose time is simulated; absent: every member of a cohort takes part,
    and no time is simulated."""
    algorithm: Algorithm
    """The method, and its hyperparameters."""
    local: Local
    """The clients' local training."""
    loss: LossConfig = "data"
    """data: that of the data set; label_smoothing, focal, or a dotted path of a function of outputs
    and labels that gives a term for each example; or a section of its ``kind`` and keys."""
    weights: Literal["examples", "uniform"] = "examples"
    """Aggregation weights: p_i = n_i / sum n, or 1 / |S|; of cohorts by importance and by power of
    choice, the probabilities of the draws."""
    precision: Precision = "float32"
    """bf16: autocast, slow on a CPU without instructions for it; on a GPU recurrent layers stay in
    float32.  tf32: on a GPU only."""
    rounds: Count
    """T, the rounds of the run."""
    evaluate: Evaluate = field(default_factory=Evaluate)
    """When the model is evaluated, and by which scores."""
    stop: Stop | None = None
    """When the run ends before its last round, by a score."""
    diagnostics: Diagnostics = field(default_factory=Diagnostics)
    """Measurements of the clients' updates."""
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    """When checkpoints are written, and how many are kept."""
    seed: Seed = 0
    """Every random draw of the run follows from it."""
    executor: ExecutorName = "sequential"
    """One client after the other, or many at once: in one block; on an NVIDIA GPU in a block whose
    layers are Triton kernels, or in lanes, each with kernels of its own; auto: by the device and
    the model's layers."""
    block_size: Count | None = None
    """Clients at once; when absent a cohort's, in equal blocks of at most 32.  The bits of a result
    depend on it."""
    threads: Count = 1
    """Threads of one rank on the CPU."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where ranks compute; auto: on GPUs where there are any."""
    reduction: Literal["exact", "fast"] = "exact"
    """exact: the same bits on any number of ranks; fast: one float all-reduce, whose last bits
    depend on the ranks."""
    balance: Literal["owner", "steal"] = "owner"
    """owner: a client's rank trains it; steal: ranks with more work hand clients to others."""
    store: Store = field(default_factory=Store)
    """Where client states are stored, and as what."""
    comm: CommConfig = field(default_factory=CommConfig)
    """How ranks communicate, and how long they wait for each other."""
    callbacks: tuple[CallbackEntry, ...] = ()
    """What is called after rounds: tensorboard, wandb, mlflow, or dotted paths of classes of your
    own; or sections of ``name`` and arguments."""

    def local_lr(self, round: int) -> float:
        """Eta of the last local step of a round, counted from zero."""
        return self.lr_of_step(round, (self.local.steps or 1) - 1)

    def lr_of_step(self, round: int, step: int) -> float:
        """Eta of a local step of a round, both counted from zero."""
        return self.local.lr_of_step(round, step, self.rounds)


SECTIONS: Mapping[str, type[Section]] = {
    "devices": Devices,
    "local": Local,
    "evaluate": Evaluate,
    "stop": Stop,
    "diagnostics": Diagnostics,
    "checkpoint": CheckpointConfig,
    "store": Store,
    "comm": CommConfig,
}
"""The sections of a job that have one class each; the others name theirs."""


@dataclass(frozen=True)
class LoadedJob:
    """A checked job."""

    job: Job
    names: Mapping[str, str]
    """The names of its data, model and algorithm, by section: built in, or dotted paths."""
    name: str
    """The name of the run, by the job's file and the overrides."""
    notes: tuple[str, ...] = ()
    """Lines for the user about Python objects that the run keeps."""

    def changed(self, section: str, **values: Any) -> "LoadedJob":
        """This job with other values of a section, which are not checked."""
        job = replace(self.job, **{section: replace(getattr(self.job, section), **values)})
        return replace(self, job=job)

    @cached_property
    def tree(self) -> Tree:
        """The job as a job.yaml has it, with every key."""
        tree: Tree = plain(as_tree(self.job))
        for section, kind in REGISTRIES.items():
            tree[section] = {kind.key: self.names[section], **tree[section]}
        return tree
