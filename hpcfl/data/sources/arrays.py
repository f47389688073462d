"""Read a data set of the user's own from one file of numpy arrays."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hpcfl.data.base import DataConfig, Dataset
from hpcfl.data.finite import row_not_finite
from hpcfl.data.labels import (
    LabelType,
    as_integers,
    count_of,
    counted,
    loss_of_labels,
    missing_classes,
    padding_notes,
    type_note,
    typed_labels,
)
from hpcfl.data.named_inputs import NamedInputs
from hpcfl.data.partition import ExampleRows, rows_of_clients, rows_of_owners
from hpcfl.errors import DataError, JobError
from hpcfl.io.files import read_arrays
from hpcfl.types import Count, Examples, PathText

_OPTIONAL = ("client", "x_test", "y_test", "client_test")
_MANY = 1 << 20  # classes; more are taken for a mistake unless the job says so
_NO_TEST = "data: there are no test examples (x_test, y_test), so nothing is scored on them"


@dataclass(frozen=True, kw_only=True)
class Arrays(DataConfig):
    """An .npz of x [n, ...] and y [n, ...], and perhaps client [n], x_test, y_test and client_test.

    x.NAME [n, ...] instead of x are several inputs, by the names that the model's forward has.
    Integers in y are classes, one an example (cross-entropy) or [n, T] such as tokens, floats are
    targets (mean of the sum of r^2 / 2), booleans [n, t] bits (binary cross-entropy).
    """

    path: PathText
    """The .npz file."""
    classes: Count | None = None
    """How many classes there are, where the largest label does not tell."""
    label_type: LabelType | None = None
    """What y holds: classes, numbers or bits; if absent integers are classes, floats numbers, and
    booleans [n, t] bits."""
    padding: int | None = None
    """The number in y [n, T] that is padding, a class or not, such as -100: it is left out of
    losses and scores; if absent all of y counts."""
    integers: bool = False
    """Whether the model gets x as int64, such as numbers of words, for an embedding."""

    def load(self, seed: int) -> Dataset:
        """Read and check the arrays; inputs are kept as they are and never rescaled."""
        path = Path(self.path)
        found = read_arrays(path, ("x", "y"), _OPTIONAL, parted=("x", "x_test"))
        return self.dataset(path, found)

    def dataset(self, path: Path, arrays: dict[str, NDArray[Any]]) -> Dataset:
        """Check arrays; ``path`` names them in messages."""
        x, x_test = inputs_of(arrays, "x"), inputs_of(arrays, "x_test")
        if bool(x_test) != ("y_test" in arrays):
            raise DataError(f"{path}: x_test and y_test go together, found only one of them")
        if self.integers and "" not in x:
            raise JobError(
                "data.integers: is of one input; of several the model gets integers as int64 and "
                "floats as floats; remove it"
            )
        for name, array in arrays.items():
            _check(path, name, array)
            if self.integers and name in ("x", "x_test") and array.dtype.kind not in "iu":
                raise DataError(
                    f"{path}: {name} is {array.dtype}, but data.integers is true; store integers"
                )
        if not len(next(iter(x.values()))):
            raise DataError(f"{path}: x has no example")
        labels: dict[str, NDArray[Any]] = {
            name: typed_labels(f"{path}: {name}", arrays[name], self.label_type)
            for name in ("y", "y_test")
            if name in arrays
        }
        y = labels["y"]
        for name, part in labels.items():
            if part.shape[1:] != y.shape[1:]:
                raise DataError(
                    f"{path}: {name} holds labels of shape {part.shape[1:]}, y of shape "
                    f"{y.shape[1:]}"
                )
        classes = self._classes(path, labels)
        padding = padding_notes(f"data.padding: {self.padding}", self.padding, labels, classes)
        inputs, tests, named = stored(f"{path}", x, x_test)
        train = self._examples(path, inputs, y, "x", "y")
        test = None
        if tests is not None:
            test = self._examples(path, tests, labels["y_test"], "x_test", "y_test")
        said = self.label_type if self.classes is None else "classes"
        natural = None
        if "client" in arrays:
            natural = self._natural(path, arrays["client"], len(train.labels))
        return Dataset(
            train=train,
            test=test,
            natural=natural,
            natural_tests=self._natural_tests(path, arrays, natural),
            classes=classes,
            loss=loss_of_labels(y),
            padding=self.padding,
            transform=named or (to_indices if self.integers else cast),
            named=named,
            notes=(
                *(() if self.integers else (note for one in x.values() for note in _notes(one))),
                *type_note("data: y", y, classes, said),
                *(() if classes is None or y.ndim > 1 else missing_classes(y, classes)),
                *padding,
                *(() if test is not None and len(test.labels) else (_NO_TEST,)),
            ),
        )

    def _classes(self, path: Path, arrays: Mapping[str, NDArray[Any]]) -> int | None:
        """How many classes the labels are of; None where they are targets or bits."""
        if (kind := arrays["y"].dtype.kind) in "fb":
            if self.classes is not None:
                what = "float targets" if kind == "f" else "bits"
                raise JobError(f"data.classes: {path} has {what}, which are no classes")
            return None
        y, y_test = arrays["y"], arrays.get("y_test")

        def subtract(lowest: int) -> str:
            return f"in numpy y - {lowest}" + ("" if y_test is None else f", y_test - {lowest}")

        classes = self.classes or count_of(f"{path}: y", y, y_test, subtract, self.padding)
        if self.classes is None and classes > _MANY:
            raise DataError(
                f"{path}: y holds {classes - 1}: so many classes must be meant; say data.classes"
            )
        for name in ("y", "y_test"):
            labels = counted(arrays.get(name, y[:0]), self.padding)
            if not labels.size:
                continue
            if labels.dtype.kind == "f" or labels.min() < 0 or labels.max() >= classes:
                enough = self.classes or labels.min() < 0
                more = "" if enough else ", as y has them; for more say data.classes"
                if y.ndim > 1 and self.padding is None and labels.min() < 0:
                    more = f"; if {labels.min()} is padding, say data.padding: {labels.min()}"
                raise DataError(
                    f"{path}: {name} runs from {labels.min()} to {labels.max()} ({labels.dtype}), "
                    f"expected integers from 0 to {classes - 1}{more}"
                )
        return classes

    def _examples(
        self, path: Path, inputs: Tensor, y: NDArray[Any], x_name: str, y_name: str
    ) -> Examples:
        """Stored inputs [n, ...] and labels, see ``stored_labels``."""
        if len(y) != len(inputs):
            raise DataError(
                f"{path}: {x_name} has {len(inputs)} rows but {y_name} has shape {y.shape}, "
                f"expected {(len(inputs), *y.shape[1:])}"
            )
        return Examples(inputs, stored_labels(y, self.padding))

    def _natural(self, path: Path, client: NDArray[Any], examples: int) -> list[ExampleRows]:
        if self.clients is not None:
            raise JobError(
                f"data.clients: not allowed, {path} says who owns each example (client), and there "
                "are as many clients; remove data.clients, or leave those ids out of the file"
            )
        if client.shape != (examples,):
            raise DataError(
                f"{path}: client is {client.dtype} of shape {client.shape}, expected integers of "
                f"shape ({examples},)"
            )
        client = as_integers(f"{path}: client", client)
        if client.min() < 0:
            raise DataError(f"{path}: client holds {client.min()}, expected ids from 0")
        if client.max() >= examples:
            raise DataError(
                f"{path}: client holds {client.max()}, but {examples} examples cannot fill so many "
                "clients; ids run from 0 without a gap"
            )
        client = client.astype(np.int64)
        counts = np.bincount(client)
        if not counts.all():
            raise DataError(
                f"{path}: no example is of client {int(np.argmin(counts))}, expected every id from "
                f"0 to {len(counts) - 1}; in numpy np.unique(client, return_inverse=True)[1]"
            )
        return rows_of_owners(client)

    def _natural_tests(
        self,
        path: Path,
        arrays: Mapping[str, NDArray[Any]],
        natural: Sequence[ExampleRows] | None,
    ) -> list[ExampleRows] | None:
        """The test examples of each client; None where the file does not say whose they are."""
        if "client_test" not in arrays:
            return None
        if natural is None or "y_test" not in arrays:
            raise DataError(
                f"{path}: client_test says whose the test examples are; expected client, x_test "
                "and y_test beside it"
            )
        owner, expected = arrays["client_test"], arrays["y_test"].shape[:1]
        if owner.shape != expected:
            raise DataError(
                f"{path}: client_test is {owner.dtype} of shape {owner.shape}, expected integers "
                f"of shape {expected}"
            )
        owner = as_integers(f"{path}: client_test", owner).astype(np.int64)
        if len(owner) and not -1 <= owner.min() <= owner.max() < len(natural):
            raise DataError(
                f"{path}: client_test holds {owner.min()} to {owner.max()}, expected the ids of "
                f"client, 0 to {len(natural) - 1}, and -1 where a test example is of none of them"
            )
        return rows_of_clients(np.arange(len(natural)), owner)


def cast(inputs: Tensor, dtype: torch.dtype, draws: Tensor | None) -> Tensor:
    """The transform that only changes the type."""
    return inputs.to(dtype)


def to_indices(inputs: Tensor, dtype: torch.dtype, draws: Tensor | None) -> Tensor:
    """The transform of inputs that are classes: integers, whatever the compute dtype is."""
    return inputs.to(torch.int64)


def _notes(x: NDArray[Any]) -> tuple[str, ...]:
    """Lines about inputs that may be images as files have them: integers, channels last."""
    notes = []
    if x.dtype == np.uint8 and x.size and int(x.max()) > np.iinfo(np.int8).max:
        notes.append(
            f"data: x holds integers up to {x.max()}, which the model gets as they are; if they "
            "are grey levels, store them as floats, x / 255"
        )
    if x.ndim == 4 and x.shape[-1] in (1, 3) and x.shape[1] not in (1, 3):
        notes.append(
            f"data: x has examples of shape {x.shape[1:]}; if these are images with the channels "
            "last, store np.moveaxis(x, -1, 1): layers of torch take the channels first"
        )
    return tuple(notes)


def _check(path: Path, name: str, array: NDArray[Any]) -> None:
    """Refuse an array that is not of finite numbers, or has no dimension."""
    if array.dtype.kind not in "biuf" or array.dtype.itemsize > 8 or array.ndim == 0:
        objects = array.dtype.kind == "O" and array.size and not isinstance(array.flat[0], str)
        cure = "; pass the .tolist() of a Series or of an array of lists" if objects else ""
        raise DataError(
            f"{path}: {name} is {array.dtype} of shape {array.shape}, expected an array of "
            f"integers or floats of at most 64 bits{cure}"
        )
    if (row := row_not_finite(array)) is not None:
        raise DataError(f"{path}: {name} is not finite in row {row}; expected finite numbers")


def inputs_of(arrays: Mapping[str, NDArray[Any]], part: str) -> dict[str, NDArray[Any]]:
    """The inputs x or x_test of a file by name: several, or one whose name is empty, or none."""
    names = {key: key.partition(".") for key in arrays}
    return {name: arrays[key] for key, (of, _, name) in names.items() if of == part}


def stored(
    where: str, x: Mapping[str, NDArray[Any]], x_test: Mapping[str, NDArray[Any]]
) -> tuple[Tensor, Tensor | None, NamedInputs | None]:
    """The inputs for training and for tests, in one tensor each, and where several are in it.

    Args:
        where: they are from, for messages.
        x: for training, [n, ...] each; by name, or one whose name is empty.
        x_test: likewise, or none.

    Raises:
        DataError: those for tests have other names, shapes or kinds of numbers.
    """
    train, test = ({k: torch.from_numpy(plain(a)) for k, a in part.items()} for part in (x, x_test))
    if test and {*test} != {*train}:
        raise DataError(
            f"{where}: x has the inputs {_listed(train)}, x_test has {_listed(test)}; expected the "
            "same in both"
        )
    for name, tests in test.items():
        own, dot = train[name], "." * bool(name)
        if tests.shape[1:] != own.shape[1:]:
            raise DataError(
                f"{where}: x_test{dot}{name} holds examples of shape {tuple(tests.shape[1:])}, "
                f"x{dot}{name} of shape {tuple(own.shape[1:])}"
            )
        if not name:
            continue
        if _kind(tests) != _kind(own):
            raise DataError(
                f"{where}: x_test.{name} holds {_kind(tests)}, x.{name} {_kind(own)}; expected the "
                "same"
            )
        train[name] = own.to(torch.promote_types(own.dtype, tests.dtype))
    if {*train} == {""}:
        return train[""], test.get(""), None
    named = NamedInputs.of(where, train)
    return named.pack(train), named.pack(test) if test else None, named


def _listed(inputs: Mapping[str, Tensor]) -> str:
    return ", ".join(name or "(one without a name)" for name in inputs)


def _kind(tensor: Tensor) -> str:
    if tensor.dtype == torch.bool:
        return "booleans"
    return "floats" if tensor.is_floating_point() else "integers"


def stored_labels(y: NDArray[Any], padding: int | None) -> Tensor:
    """Labels that ``typed_labels`` returned: classes [n] int64 or [n, ...], bits or float targets.

    Several classes an example are integers that hold the padding, of 16 bits or more.  Targets have
    an axis of targets, of length 1 where each example has one.
    """
    if y.dtype.kind not in "iu":
        targets = torch.from_numpy(y)
        return targets[:, None] if y.ndim == 1 else targets
    kind: Any = np.int64
    if y.ndim > 1 and y.dtype != np.uint64:
        least = np.min_scalar_type(0 if padding is None else padding)
        kind = np.result_type(y.dtype, np.int16, least)
    return torch.from_numpy(y.astype(kind, copy=False))


def plain(array: NDArray[Any]) -> NDArray[Any]:
    """The array in a type of torch: unsigned integers wider than a byte become int64."""
    return array.astype(np.int64) if array.dtype.kind == "u" and array.itemsize > 1 else array
