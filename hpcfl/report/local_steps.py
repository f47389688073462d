"""Count a run's local steps from its job and the examples in its log."""

from hpcfl.data.batches import steps
from hpcfl.job.settings import BRANCH, Settings
from hpcfl.run_dir.record import RunRecord

_EVEN = ("iid", "dirichlet", "similarity")
"""Partitions whose clients differ by one example at most."""


def local_steps(run: RunRecord) -> int | None:
    """The local steps of all clients in the rounds of the log.

    None where they are not known: a client of n examples takes ceil(n / B) steps a pass, and the
    log has the sum of n over the cohort, which gives n only where all have equally many.
    """
    if not run.settings or BRANCH in run.settings:  # its first rounds had other settings
        return None
    rounds = [entry for entry in run.log if entry["round"]]
    if not all("clients" in entry and "examples" in entry for entry in rounds):
        return None
    found = [_of_round(run.settings, entry["clients"], entry["examples"]) for entry in rounds]
    known = [count for count in found if count is not None]
    return sum(known) if known and len(known) == len(found) else None


def _of_round(job: Settings, clients: int, examples: int) -> int | None:
    """The steps of a cohort of so many clients, with so many examples in its batches."""
    batch, each = job.get("local.batch_size"), job.get("local.steps")
    epochs = job.get("local.epochs") or 1
    if each:
        return clients * int(each)
    if batch == "full":
        return clients * int(epochs)
    if batch is None or job.get("local.drop_last"):  # what is dropped is not in the sum
        return None
    held = examples // epochs
    if not _of_equal_size(job, clients, held):
        return None
    size, larger = divmod(held, max(clients, 1))
    of_size, of_larger = (
        steps(n, batch_size=batch, epochs=epochs, steps=None, drop_last=False)
        for n in (size, size + 1)
    )
    return (clients - larger) * of_size + larger * of_larger


def _of_equal_size(job: Settings, clients: int, held: int) -> bool:
    """Whether clients that hold so many examples together differ by one example at most."""
    if clients < 2:
        return True
    kind, most = job.get("data.partition.kind"), job.get("data.max_examples")
    if kind in (None, "natural"):
        return most is not None and held == clients * most  # each has as many as it may
    apart = any(job.get(key) for key in ("data.holdout", "data.validation.share"))
    return kind in _EVEN and not apart
