"""Divide examples among clients by their labels."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcfl.data.partition import (
    Classes,
    Dirichlet,
    DirichletPerClass,
    ExampleRows,
    Shares,
    Similarity,
)
from hpcfl.data.sizes import (
    MOST_DRAWS,
    cut,
    even_sizes,
    proportional_sizes,
    require_least,
    too_few,
)
from hpcfl.errors import JobError
from hpcfl.types import IntArray

LabelSkew = Dirichlet | DirichletPerClass | Classes | Similarity
_MANY = 1 / 3  # of a client's examples; more that are of other classes than it drew get a note


def divide_by_label(
    partition: LabelSkew,
    rows: ExampleRows,
    labels: NDArray[Any],
    population: int,
    generator: np.random.Generator,
) -> Shares:
    """Divide examples by their labels.

    Args:
        partition: how to divide them.
        rows: in random order.
        labels: of all rows of the data set.
        population: the number of clients, at most that of the rows.
        generator: of the partition.

    Raises:
        JobError: the data cannot be divided so.
    """
    own = labels[rows]
    match partition:
        case Dirichlet(alpha=alpha) if alpha > 0:
            return _dirichlet(rows, own, partition, population, generator)
        case Dirichlet():
            return Shares(cut(_sorted(rows, own), even_sizes(len(rows), population)))
        case DirichletPerClass():
            return Shares(_dirichlet_per_class(rows, own, partition, population, generator))
        case Classes(form="shards"):
            return Shares(_shards(_sorted(rows, own), partition.per_client, population, generator))
        case Classes():
            return Shares(_exact_classes(rows, own, partition.per_client, population, generator))
        case Similarity():
            return Shares(_similarity(rows, own, partition.percent, population))


def _sorted(rows: ExampleRows, labels: NDArray[Any]) -> ExampleRows:
    """Ordered by label; examples of one label stay in random order."""
    return rows[np.argsort(labels, kind="stable")]


def _similarity(
    rows: ExampleRows, labels: NDArray[Any], percent: float, population: int
) -> tuple[ExampleRows, ...]:
    """Clients of equal sizes: ``percent`` % of the rows as they come, the rest sorted by label."""
    shared = round(len(rows) * percent / 100)
    iid_sizes = even_sizes(shared, population)
    mixed = cut(rows[:shared], iid_sizes)
    sorted_sizes = even_sizes(len(rows), population) - iid_sizes
    rest = cut(_sorted(rows[shared:], labels[shared:]), sorted_sizes)
    return tuple(np.sort(np.concatenate(both)) for both in zip(mixed, rest, strict=True))


def _dirichlet(
    rows: ExampleRows,
    labels: NDArray[Any],
    partition: Dirichlet,
    population: int,
    generator: np.random.Generator,
) -> Shares:
    """Clients of equal sizes whose classes follow q ~ Dir(alpha p), or Dir(alpha, ..., alpha).

    p are the classes' frequencies, and so q's mean; in the symmetric form its mean is uniform.

    Every example is drawn from its client's q, without replacement; q is renormalised when a class
    is exhausted.  A client whose q has no mass on the remaining classes (a tiny alpha) draws in
    proportion to the remaining examples.
    """
    sizes = even_sizes(len(rows), population)
    classes, label, counts = np.unique(labels, return_inverse=True, return_counts=True)
    by_class = rows[np.argsort(label, kind="stable")]
    if partition.form == "prior":
        concentration = partition.alpha * counts / counts.sum()
    else:
        concentration = np.full(len(classes), partition.alpha)
    proportions = generator.dirichlet(concentration, size=population)
    draw = _in_random_order if partition.effective_order == "random" else _client_by_client
    taken, other = draw(proportions, sizes, counts, generator)
    first = np.cumsum(counts) - counts
    begin = first + np.cumsum(taken, axis=0) - taken
    clients = [
        np.sort(np.concatenate([by_class[b : b + n] for b, n in zip(*own, strict=True)]))
        for own in zip(begin, taken, strict=True)
    ]
    return Shares(tuple(clients), _exhausted(other / sizes, partition))


def _client_by_client(
    proportions: NDArray[np.float64],
    sizes: IntArray,
    counts: IntArray,
    generator: np.random.Generator,
) -> tuple[IntArray, NDArray[np.float64]]:
    """Serve one client after the other, as Hsu et al. do, from the rows q of ``proportions``.

    Drawing many at once, and redrawing those that their class could not give, has the distribution
    of single draws.

    Returns:
        [N, classes] examples of each client and class; [N] how many of each client's are of other
        classes than it drew, as those had run out (expected).
    """
    left = counts.copy()
    all_taken, other = [], []
    for size, q in zip(sizes.tolist(), proportions, strict=True):
        taken, followed = np.zeros(len(counts), dtype=np.int64), None
        while (missing := size - taken.sum()) > 0:
            mass = np.where(left > taken, q, 0.0)
            own = mass.sum()
            if own <= 0:
                mass = (left - taken).astype(np.float64)
            draw = generator.multinomial(missing, mass / mass.sum())
            taken = np.minimum(taken + draw, left)
            if followed is None:  # what is drawn later replaces examples that a class lacked
                followed = own * taken.sum()
        left -= taken
        all_taken.append(taken)
        other.append(size - (followed or 0.0))
    return np.array(all_taken), np.array(other)


def _in_random_order(
    proportions: NDArray[np.float64],
    sizes: IntArray,
    counts: IntArray,
    generator: np.random.Generator,
) -> tuple[IntArray, NDArray[np.float64]]:
    """Draw one example after the other, of clients in random order; see ``_client_by_client``.

    FedDyn's code deals so: what runs out, runs out for all clients.
    """
    left = counts.copy()
    taken = np.zeros(proportions.shape, dtype=np.int64)
    other = np.zeros(len(sizes))
    clients = generator.permutation(np.repeat(np.arange(len(sizes)), sizes))
    points = generator.random(len(clients))
    # The ends of each client's intervals, made anew when a class has run out.
    ends_of: dict[int, NDArray[np.float64]] = {}
    for client, point in zip(clients.tolist(), points.tolist(), strict=True):
        ends = ends_of.get(client)
        if ends is None:
            ends = ends_of[client] = np.cumsum(np.where(left > 0, proportions[client], 0.0))
        other[client] += 1 - ends[-1]
        if ends[-1] <= 0:
            ends = np.cumsum(left.astype(np.float64))
        # Rounding could make the product the last end itself, which is in no class.
        place = min(point * ends[-1], np.nextafter(ends[-1], 0))
        k = np.searchsorted(ends, place, side="right")
        left[k] -= 1
        taken[client, k] += 1
        if not left[k]:
            ends_of.clear()
    return taken, other


def _exhausted(other: NDArray[np.float64], partition: Dirichlet) -> tuple[str, ...]:
    """A line about clients with many examples of other classes than they drew.

    Args:
        other: [N], the share of such examples of each client.
        partition: how they were drawn.
    """
    many = np.count_nonzero(other > _MANY)
    if not many or partition.form == "prior":  # whose published splits have such clients
        return ()
    most = int(other.argmax())
    random = partition.effective_order == "random"
    cure = "" if random else "; with order: random all clients lack them alike"
    return (
        f"data.partition: classes ran out: {many} of {len(other)} clients hold other classes than "
        f"they drew in more than a third of their examples, client {most} in "
        f"{100 * other[most]:.0f} %{cure}",
    )


def _dirichlet_per_class(
    rows: ExampleRows,
    labels: NDArray[Any],
    partition: DirichletPerClass,
    population: int,
    generator: np.random.Generator,
) -> tuple[ExampleRows, ...]:
    """Clients among which every class is divided by a draw from Dir(alpha, ..., alpha).

    The whole division is drawn again until every client has ``least`` examples, at most
    ``MOST_DRAWS`` times.

    Args:
        rows: in random order.
        labels: of these rows, in the same order.
        partition: the concentration, the least size and whether sizes are balanced.
        population: the number of clients.
        generator: of the partition.

    Raises:
        JobError: the examples are too few for such clients, or no draw gave every one enough.
    """
    least = partition.least
    require_least(least, len(rows), population)
    _, label, counts = np.unique(labels, return_inverse=True, return_counts=True)
    by_class = rows[np.argsort(label, kind="stable")]
    best = 0
    for _ in range(MOST_DRAWS):
        sizes = _class_sizes(counts, partition, population, generator)
        if sizes is None:
            continue
        smallest = int(sizes.sum(axis=0).min())
        if smallest >= least:
            pieces = np.split(by_class, np.cumsum(sizes.ravel())[:-1])
            return tuple(np.sort(np.concatenate(pieces[k::population])) for k in range(population))
        best = max(best, smallest)
    raise too_few("alpha", partition.alpha, least, population, best)


def _class_sizes(
    counts: IntArray,
    partition: DirichletPerClass,
    population: int,
    generator: np.random.Generator,
) -> IntArray | None:
    """A draw of how many examples of each class every client has, [classes, N].

    None: all the mass of a class fell on clients that take no more, or vanished with a tiny alpha.
    """
    sizes = np.zeros((len(counts), population), dtype=np.int64)
    enough = counts.sum() / population
    for k, count in enumerate(counts):
        shares = generator.dirichlet(np.full(population, partition.alpha))
        if partition.balance:
            shares = np.where(sizes.sum(axis=0) < enough, shares, 0.0)
        if not shares.sum() > 0:
            return None
        sizes[k] = proportional_sizes(int(count), shares)
    return sizes


def _shards(
    rows: ExampleRows, per_client: int, population: int, generator: np.random.Generator
) -> tuple[ExampleRows, ...]:
    """Clients that hold ``per_client`` shards each, drawn at random, of rows sorted by label.

    Shards differ in size by one at most.  One that begins in a class and ends in another holds
    both, so a client may hold more classes than shards; two shards of one class give it fewer.

    Raises:
        JobError: there are fewer examples than shards.
    """
    count = population * per_client
    if count > len(rows):
        raise JobError(
            f"data.partition.per_client: {population} clients of {per_client} shards "
            f"need {count} training examples, the data has {len(rows)}; set it or data.clients "
            "lower"
        )
    pieces = cut(rows, even_sizes(len(rows), count))
    order = generator.permutation(count).reshape(population, per_client)
    return tuple(np.sort(np.concatenate([pieces[k] for k in own])) for own in order)


def _exact_classes(
    rows: ExampleRows,
    labels: NDArray[Any],
    per_client: int,
    population: int,
    generator: np.random.Generator,
) -> tuple[ExampleRows, ...]:
    """Clients that hold exactly ``per_client`` classes each.

    Client i holds the class i modulo the number of classes and others drawn at random.  The
    examples of a class are divided evenly among its clients; those of a class without a client,
    which there may be where clients are fewer than classes, are unused.

    Args:
        rows: in random order.
        labels: of these rows, in the same order.
        per_client: the number of classes of each client.
        population: the number of clients.
        generator: of the partition.

    Raises:
        JobError: the data has fewer classes, or a class fewer examples than clients.
    """
    classes, label, counts = np.unique(labels, return_inverse=True, return_counts=True)
    others = per_client - 1
    if others >= len(classes):
        raise JobError(
            f"data.partition.per_client: found {per_client}, but the training examples "
            f"are of {len(classes)} classes"
        )
    holds = np.zeros((len(classes), population), dtype=bool)
    for client in range(population):
        first = client % len(classes)
        drawn = generator.choice(len(classes) - 1, size=others, replace=False)
        holds[first, client] = True
        holds[drawn + (drawn >= first), client] = True  # skips the first class
    holders = holds.sum(axis=1)
    if (holders > counts).any():
        k = int(np.argmax(holders > counts))
        raise JobError(
            f"data.partition.per_client: class {classes[k]} has {counts[k]} training examples for "
            f"{holders[k]} clients that hold it; set per_client or data.clients lower"
        )
    pieces: list[list[ExampleRows]] = [[] for _ in range(population)]
    for k, own in enumerate(holds):
        clients = np.flatnonzero(own)
        if len(clients):
            shares = cut(rows[label == k], even_sizes(int(counts[k]), len(clients)))
            for client, share in zip(clients.tolist(), shares, strict=True):
                pieces[client].append(share)
    return tuple(np.sort(np.concatenate(own)) for own in pieces)
