"""The partitions of training examples into clients, as sections of a job."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal, NamedTuple, overload

import numpy as np
from annotated_types import Interval
from pydantic import Discriminator

from hpcfl.types import Count, IntArray, NonNegative, PathText, Positive, Section, Seed

ExampleRows = IntArray  # indices into a data set's training examples
Percent = Annotated[float, Interval(ge=0, le=100)]


def consecutive_rows(sizes: Sequence[int] | ExampleRows) -> list[ExampleRows]:
    """The rows of clients whose examples follow one another, ``sizes[i]`` of client i."""
    ends = np.cumsum(sizes)
    return np.split(np.arange(ends[-1]), ends[:-1])


def rows_of_owners(owner: IntArray) -> list[ExampleRows]:
    """The rows of each client, ascending.

    Args:
        owner: [n] the client of each row, from 0 without a gap.
    """
    return np.split(np.argsort(owner, kind="stable"), np.cumsum(np.bincount(owner))[:-1])


def rows_of_clients(clients: IntArray, owner: IntArray) -> list[ExampleRows]:
    """The rows of each of these clients, ascending; owners may be others, too.

    Args:
        clients: their numbers, ascending.
        owner: [n] the client of each row.
    """
    rows = np.flatnonzero(np.isin(owner, clients))
    place = np.searchsorted(clients, owner[rows])
    counts = np.bincount(place, minlength=len(clients))
    return np.split(rows[np.argsort(place, kind="stable")], np.cumsum(counts)[:-1])


class RowRanges(Sequence[ExampleRows]):
    """Rows of clients stored one after the other.

    Keeps each client's first row and count, and builds an array when indexed: a text data set has
    hundreds of thousands of clients.
    """

    def __init__(self, starts: ExampleRows, sizes: ExampleRows) -> None:
        self._starts, self._sizes = starts, sizes

    def __len__(self) -> int:
        return len(self._starts)

    @overload
    def __getitem__(self, client: int) -> ExampleRows: ...
    @overload
    def __getitem__(self, client: slice | ExampleRows) -> "RowRanges": ...
    def __getitem__(self, client: int | slice | ExampleRows) -> "ExampleRows | RowRanges":
        if isinstance(client, slice | np.ndarray):
            return RowRanges(self._starts[client], self._sizes[client])
        start = self._starts[client]
        return np.arange(start, start + self._sizes[client])

    @property
    def starts(self) -> ExampleRows:
        """[N], the first row of each client."""
        return self._starts

    @property
    def sizes(self) -> ExampleRows:
        """[N], the number of rows of each client."""
        return self._sizes

    @property
    def nbytes(self) -> int:
        """Bytes of this object, which are fewer than those of the rows."""
        return self._starts.nbytes + self._sizes.nbytes


def sizes_of(clients: Sequence[ExampleRows]) -> IntArray:
    """[N], the number of rows of each client."""
    if isinstance(clients, RowRanges):
        return clients.sizes
    return np.array([len(rows) for rows in clients], dtype=np.int64)


def bytes_of(clients: Sequence[ExampleRows]) -> int:
    """Bytes that the rows of all clients take in memory."""
    return (
        clients.nbytes if isinstance(clients, RowRanges) else sum(rows.nbytes for rows in clients)
    )


class Shares(NamedTuple):
    """A division of training examples."""

    rows: Sequence[ExampleRows]
    """The rows of each client."""
    notes: tuple[str, ...] = ()
    """Lines for the user about it."""


@dataclass(frozen=True, kw_only=True)
class Iid(Section):
    """Shuffle, then divide into equal shares (sizes differ by one at most)."""

    kind: Literal["iid"] = "iid"
    seed: Seed | None = None
    """The seed of the split; the job's when absent."""
    examples: Count | None = None
    """Examples of each client; an equal share of all examples when absent."""


@dataclass(frozen=True, kw_only=True)
class Contiguous(Section):
    """Cut the examples, in their order, into equal shares: client k has the k-th piece."""

    kind: Literal["contiguous"] = "contiguous"
    seed: Seed | None = None
    """The seed of the draw of ``data.natural_clients``; the job's when absent."""


@dataclass(frozen=True, kw_only=True)
class Dirichlet(Section):
    """Each client draws its class proportions q from a Dirichlet distribution; equal sizes."""

    kind: Literal["dirichlet"] = "dirichlet"
    alpha: NonNegative
    """Concentration; 0 sorts by label and cuts N equal shards, one each, in both forms."""
    form: Literal["prior", "symmetric"] = "prior"
    """Prior: q ~ Dir(alpha p), p the classes' frequencies (Hsu et al., 2019); symmetric:
    q ~ Dir(alpha, ..., alpha) (FedCM, appendix C.1). With ten equal classes alpha 0.06 of the
    symmetric form is alpha 0.6 of the other."""
    order: Literal["random", "clients"] | None = None
    """The order in which examples are dealt, which matters as classes run out. Random: the next one
    goes to a random client that is not full, as in FedDyn's code; clients: client 0 gets all of
    its own first, then client 1, and so on, and the last ones what is left. When absent, random of
    form symmetric, clients of form prior. No effect with alpha 0."""
    seed: Seed | None = None
    """The seed of the split; the job's when absent."""

    @property
    def effective_order(self) -> Literal["random", "clients"]:
        """``order``, or that of the form."""
        return self.order or ("random" if self.form == "symmetric" else "clients")


@dataclass(frozen=True, kw_only=True)
class DirichletPerClass(Section):
    """Divide each class by a draw from a Dirichlet distribution over the clients; unequal sizes.

    Yurochkin et al., 2019 (arXiv:1905.12022), and the "distribution-based label imbalance" of Li et
    al., 2022 (NIID-Bench, arXiv:2102.02079).
    """

    kind: Literal["dirichlet_per_class"] = "dirichlet_per_class"
    alpha: Positive
    """Concentration, beta in NIID-Bench: the clients' shares of a class are drawn from Dir(alpha,
    ..., alpha)."""
    least: Count = 10
    """Examples that every client has at least; the partition is drawn again, at most 1000 times,
    until it has."""
    balance: bool = False
    """Whether a client that has an equal share of all examples takes none of the classes that
    follow, as in the code of NIID-Bench."""
    seed: Seed | None = None
    """The seed of the split; the job's when absent."""


@dataclass(frozen=True, kw_only=True)
class Classes(Section):
    """Each client holds examples of few classes (the "pathological" split)."""

    kind: Literal["classes"] = "classes"
    per_client: Count
    """Shards of each client, or its classes."""
    form: Literal["shards", "exact"] = "shards"
    """Shards: sort by label, cut N x per_client equal shards and deal each client per_client of
    them (McMahan et al., 2017); exact: client i holds class i modulo their number and others drawn
    at random, and a class is divided evenly among its clients (Li et al., 2022)."""
    seed: Seed | None = None
    """The seed of the split; the job's when absent."""


@dataclass(frozen=True, kw_only=True)
class Quantity(Section):
    """Shuffle, then divide into shares of random, unequal sizes; labels are iid."""

    kind: Literal["quantity"] = "quantity"
    form: Literal["dirichlet", "lognormal", "power"] = "dirichlet"
    """Shares of all examples. Dirichlet: q ~ Dir(alpha, ..., alpha) (Li et al., 2022); lognormal:
    in proportion to exp(sigma z), z standard normal (Li et al., 2020: FedProx); power: in
    proportion to 1 / r^exponent, r = 1, ..., N in random order (Zipf's law)."""
    alpha: Positive | None = None
    """The concentration, for the form dirichlet."""
    sigma: NonNegative | None = None
    """The standard deviation of a size's logarithm, for the form lognormal."""
    exponent: NonNegative | None = None
    """The exponent, for the form power."""
    least: Count = 10
    """Examples that every client has at least. Form dirichlet draws again until it has, at most
    1000 times; the others divide what remains when every client has so many."""
    seed: Seed | None = None
    """The seed of the split; the job's when absent."""

    def __post_init__(self) -> None:
        wanted = _PARAMETERS[self.form]
        if getattr(self, wanted) is None:
            raise ValueError(f"form {self.form} needs {wanted}; set it")
        for name in _PARAMETERS.values():
            if name != wanted and getattr(self, name) is not None:
                raise ValueError(
                    f"{name} is {getattr(self, name)}, but form {self.form} takes {wanted}; "
                    f"remove {name}, or set another form"
                )

    @property
    def parameter(self) -> float:
        """``alpha``, ``sigma`` or ``exponent``, as the form takes it."""
        return float(getattr(self, _PARAMETERS[self.form]))


_PARAMETERS = {"dirichlet": "alpha", "lognormal": "sigma", "power": "exponent"}


@dataclass(frozen=True, kw_only=True)
class Similarity(Section):
    """Divide some examples at random, the rest sorted by label (Karimireddy et al., 2020)."""

    kind: Literal["similarity"] = "similarity"
    percent: Percent
    """Percentage of the data that is divided at random: 0 is one shard each, 100 is iid."""
    seed: Seed | None = None
    """The seed of the split; the job's when absent."""


@dataclass(frozen=True, kw_only=True)
class Natural(Section):
    """The data's own clients: all of them, or ``data.clients`` of them drawn at random."""

    kind: Literal["natural"] = "natural"
    seed: Seed | None = None
    """The seed of the draw of clients; the job's when absent."""


@dataclass(frozen=True, kw_only=True)
class File(Section):
    """A file holds the client of every training example."""

    kind: Literal["file"] = "file"
    path: PathText
    """A .npy or .npz of n integers: the example's client, counted from 0; none if -1 or 255."""
    key: str | None = None
    """The array in an .npz with several arrays; ``client`` when absent."""
    seed: Seed | None = None
    """Unused: a file draws nothing."""


@dataclass(frozen=True, kw_only=True)
class Pooled(Section):
    """One client holds everything: centralised training."""

    kind: Literal["pooled"] = "pooled"
    seed: Seed | None = None
    """The seed of the draw of ``data.natural_clients``; the job's when absent."""


Partition = Annotated[
    Iid
    | Contiguous
    | Dirichlet
    | DirichletPerClass
    | Classes
    | Quantity
    | Similarity
    | Natural
    | File
    | Pooled,
    Discriminator("kind"),
]
