"""What a model computes of a few examples: compared over modes, ranks, resumes and exports.

A run is a flat vector of parameters, so its model must be one function of that vector.  It is not
where layers are made in the order of a set, which is another one in each process, or where a module
draws from a generator of its own, or reads the clock, the environment, the host or a file.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules.dropout import _DropoutNd
from torch.overrides import TorchFunctionMode

from hpcfl.comm.base import Comm
from hpcfl.comm.failure import raise_collectively
from hpcfl.data.base import Dataset
from hpcfl.errors import JobError, StoreError, as_job_error, defined
from hpcfl.job.schema import LoadedJob
from hpcfl.local.autocast import autocast_bfloat16
from hpcfl.models.flat_vector import layout_of, trained
from hpcfl.models.losses import widen
from hpcfl.models.outputs import outputs_of
from hpcfl.models.statistics import keeps_statistics
from hpcfl.types import Vector
from hpcfl.user_code.generators import generators, restored
from hpcfl.user_code.process_settings import settings_restored

_EXAMPLES = 4
_PERIOD = 1009  # of ``_waves``: a prime, so that layers of equal shape do not get the same numbers
_MOVED = 0.01
TOLERANCE = {"float64": 1e-3, "float32": 1e-3, "tf32": 2e-2, "bf16": 1e-1}
"""By the job's precision, the difference of outputs over their norm up to which it is rounding.

Another processor, number of threads or GPU adds in another order: instructions of 128 bits for 512
moved the outputs of hpcfl's and torchvision's models by 4e-6 in float32 and 0.024 in bfloat16 at
most, and another order of layers moves them by their norm.  TF32 has three bits more than bfloat16.
Parts of a float64 model may be float32.
"""
_CURE = (
    "let it follow from job and seed alone: sort what comes from a set or from a listing of files, "
    "draw from torch's generator as the model is made, and read no clock, host name or environment"
)

_DROPPING = (_DropoutNd, nn.RNNBase, nn.MultiheadAttention)
_DROPOUTS = {
    *(functional.dropout, functional.dropout1d, functional.dropout2d, functional.dropout3d),
    *(functional.alpha_dropout, functional.feature_alpha_dropout),
}
_Sums = tuple[tuple[float, float], ...]


class ModelFunction(BaseModel):
    """The trained parameters of a model, and what it makes of the first training examples."""

    model_config = ConfigDict(frozen=True)

    precision: str
    """The job's."""
    parameters: tuple[tuple[str, tuple[int, ...]], ...]
    """Their names and shapes, in the order of the flat vector."""
    evaluation: _Sums
    """For each example the norm of its outputs, and their sum with fixed weights."""
    training: _Sums | None
    """The same in training mode, but without dropout and by the running statistics that the model
    was made with; None where it draws other numbers there."""
    in_pairs: _Sums = Field(default=(), exclude=True)
    """As ``evaluation``, of the examples of ``_pairs``, each pair by itself."""

    @property
    def notes(self) -> tuple[str, ...]:
        """Lines if scores are of another function than is trained, or depend on the batches."""
        found = []
        apart = 0.0 if self.training is None else _apart(self.evaluation, self.training)
        if apart > TOLERANCE[self.precision]:
            found.append(
                f"model: its outputs in evaluation differ by {apart:.2g} of their norm from those "
                "in training without dropout: scores are of another function than is trained; if "
                "that is not meant, let forward compute the same in both"
            )
        among_all = [self.evaluation[k] for k in chain(*_pairs(len(self.evaluation)))]
        if (
            self.in_pairs
            and (apart := _apart(among_all, self.in_pairs)) > TOLERANCE[self.precision]
        ):
            found.append(
                "warning: model: its outputs for an example in evaluation differ by "
                f"{apart:.2g} of their norm with the other examples of the batch: scores depend on "
                "evaluate.batch_size; if that is not meant, let forward compute each example by "
                "itself"
            )
        return tuple(found)

    def difference(self, other: "ModelFunction", whose: str) -> str:
        """The first difference: "has ... where THAT OF RANK 0 has ..."; "" where there is none.

        Args:
            other: to compare with.
            whose: the other one is, in words.
        """
        for own, its in zip_longest(self.parameters, other.parameters):
            if own != its:
                return f"has the parameter {_text(own)} where {whose} has {_text(its)}"
        allowed = max(TOLERANCE[self.precision], TOLERANCE[other.precision])
        apart = _apart(self.evaluation, other.evaluation)
        if self.training is not None and other.training is not None:
            apart = max(apart, _apart(self.training, other.training))
        if apart <= allowed:
            return ""
        return (
            f"has outputs for the first {len(self.evaluation)} training examples that differ by "
            f"{apart:.2g} of their norm from {whose} (rounding: up to {allowed:g})"
        )


def model_function(
    loaded: LoadedJob, model: nn.Module, x0: Vector, dataset: Dataset
) -> ModelFunction:
    """Evaluate a model near its initial parameters, in evaluation and in training mode.

    The generators, the model's parameters and its modes are afterwards what they were.

    Args:
        loaded: the job.
        model: of it, in training mode, with the run's buffers.
        x0: [P], its initial parameters.
        dataset: of the job.

    Raises:
        JobError: the model or the data cannot be evaluated.
    """
    name = f"model.name: {loaded.names['model']}"
    does, where = "cannot be evaluated on the first training examples", type(model).forward
    precision, device = loaded.job.precision, x0.device
    # Moved, or layers behind which x0 has zeros would not count.
    point = x0.add(_waves(len(x0), x0), alpha=_MOVED)
    still = [
        layer
        for layer in model.modules()
        if isinstance(layer, _DROPPING) or keeps_statistics(layer)
    ]

    def sums(layers: Sequence[nn.Module], pair: Sequence[int] | None = None) -> _Sums:
        cast = autocast_bfloat16(device.type) if precision == "bf16" else nullcontext()
        given = keywords if named else {"": inputs}
        if pair is not None:
            at = torch.tensor(pair, device=device)
            given = {name: value.index_select(0, at) for name, value in given.items()}
        with _in_evaluation(model, layers), cast:
            return _sums(outputs_of(model(**given) if named else model(given[""])))

    with (
        as_job_error(name, does, defined(where), model, loaded.job.data),
        settings_restored(),
        restored(),
        _at(model, point),
    ):
        torch.backends.mha.set_fastpath_enabled(False)
        rows = dataset.sample(min(_EXAMPLES, len(dataset.train.labels)))
        inputs = dataset.transform(rows.to(device), x0.dtype, None)
        named = dataset.named and dataset.named.given(x0.dtype)
        keywords = {k: v.contiguous() for k, v in named.unpack(inputs).items()} if named else {}
        with torch.no_grad():
            evaluation = sums([model])
            in_pairs = tuple(chain(*(sums([model], pair) for pair in _pairs(len(inputs)))))
            before = generators()
        with torch.enable_grad(), _WithoutDropout():
            training = sums(still)
        drew = generators().changed(before)
    shapes = zip(trained(model), layout_of(model).shapes, strict=True)
    return ModelFunction(
        precision=precision,
        parameters=tuple(shapes),
        evaluation=evaluation,
        training=None if drew else training,
        in_pairs=in_pairs,
    )


def require_on_ranks(own: ModelFunction, loaded: LoadedJob, comm: Comm) -> None:
    """Collective: refuse ranks whose model is not rank 0's.

    Raises:
        JobError: it is not on this rank; RemoteRankError on the others.
    """
    first = ModelFunction.model_validate_json(comm.bcast(own.model_dump_json()))
    with raise_collectively(comm):
        if found := own.difference(first, "that of rank 0"):
            name = f"model.name: {loaded.names['model']}"
            raise JobError(f"{name}: that of rank {comm.rank} {found}; {_CURE}")


def require_of_run(own: ModelFunction, recorded: bytes, file: Path) -> None:
    """Refuse a model that is not the one with which a run began.

    Args:
        own: of the model as it is made now.
        recorded: the content of the run's file.
        file: its path.

    Raises:
        JobError: it is another one.
        StoreError: the file is damaged.
    """
    try:
        before = ModelFunction.model_validate_json(recorded)
    except ValueError as e:
        raise StoreError(f"{file}: is no record of a model; put it back") from e
    if found := own.difference(before, "that of the run"):
        raise JobError(
            f"{file.parent}: the model as it is made now {found}; put back the run's code, "
            f"packages and data; where these are as they were, {_CURE}, and run the job again into "
            "another directory"
        )


def _text(parameter: tuple[str, tuple[int, ...]] | None) -> str:
    return f"{parameter[0]!r} {[*parameter[1]]}" if parameter else "none"


def _waves(count: int, like: Tensor) -> Tensor:
    """[count], numbers of -1 to 1 whose sums with smooth ones are small."""
    wave = torch.arange(1, _PERIOD + 1, dtype=torch.float64).cos().to(like.device, like.dtype)
    return wave.repeat(-(-count // _PERIOD))[:count]


def _sums(outputs: Tensor) -> _Sums:
    rows = widen(outputs).detach().double().cpu().reshape(len(outputs), -1)
    both = torch.stack([rows.norm(dim=1), rows @ _waves(rows.shape[1], rows)], 1).nan_to_num()
    return tuple((norm, weighted) for norm, weighted in both.tolist())


def _pairs(count: int) -> list[list[int]]:
    """Pairs of the examples, in which none of four has the neighbours that it has among all.

    Not single ones, of which batch normalisation has no statistics.
    """
    if count < 2:
        return []
    return [[2, 0], [3, 1]] if count == _EXAMPLES else [[count - 1, 0]]


def _apart(first: Sequence[tuple[float, float]], other: _Sums) -> float:
    """The largest difference of two sums over the norm of the outputs."""
    if len(first) != len(other):
        return float("inf")
    pairs = zip(first, other, strict=True)
    return max(
        max(abs(a - b) for a, b in zip(one, two, strict=True)) / (max(one[0], two[0]) or 1.0)
        for one, two in pairs
    )


@contextmanager
def _at(model: nn.Module, point: Vector) -> Iterator[None]:
    """Let the model have these parameters."""
    own = list(trained(model).values())
    before = [parameter.data for parameter in own]
    for parameter, view in zip(own, layout_of(model).views(point), strict=True):
        parameter.data = view
    try:
        yield
    finally:
        for parameter, data in zip(own, before, strict=True):
            parameter.data = data


@contextmanager
def _in_evaluation(model: nn.Module, layers: Sequence[nn.Module]) -> Iterator[None]:
    """Put some layers of a model in training mode into evaluation mode."""
    resting = [layer for layer in model.modules() if not layer.training]
    for layer in layers:
        layer.eval()
    try:
        yield
    finally:
        model.train()
        for layer in resting:
            layer.train(mode=False)


class _WithoutDropout(TorchFunctionMode):
    """Let dropout by functions keep everything: of attention, or of whole layers.

    What it does not know draws, so that nothing is compared.
    """

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        """Call ``func``, if it is no dropout."""
        given = dict(kwargs or {})
        if func in _DROPOUTS:
            return args[0]
        if func is Tensor.bernoulli_ and isinstance(args[-1], float):
            return args[0].fill_(args[-1])  # a mask, which is then divided by this share
        if "dropout_p" in given:  # of scaled_dot_product_attention
            given["dropout_p"] = 0.0
        return func(*args, **given)
