"""Check a job before round 1, in the order that ``run``, ``resume`` and ``check`` have in common.

A run checks its ranks before it loads anything (``ranks.py``), its components here once they are
built, and the disk once it has a directory (``disk.py``).  A job's keys are checked as they are
read (``hpcfl.job``), and what a builder relies on, such as labels that are classes, where it builds
(``hpcfl.start.components``).
"""

import torch

from hpcfl.errors import JobError
from hpcfl.start.checks.algorithm import check_algorithm, check_features
from hpcfl.start.checks.data import (
    check_batches,
    check_finite,
    check_range,
    check_rows,
    class_notes,
)
from hpcfl.start.checks.memory import check_server_memory
from hpcfl.start.checks.metrics import check_scores, check_tests
from hpcfl.start.checks.model import (
    check_batches_of_one,
    check_model,
    check_model_again,
    check_normalization,
    loss_notes,
    probability_notes,
)
from hpcfl.start.checks.padding import padding_notes
from hpcfl.start.checks.trial import Trial
from hpcfl.start.components.choose_executor import check_executor
from hpcfl.start.components.components import Components
from hpcfl.start.components.executors import unused_places
from hpcfl.user_code.generators import restored


def check_components(components: Components, *, resumed: bool = False) -> tuple[str, ...]:
    """Check the components of a job, and try its classes on real batches.

    The trial finds classes that would fail in round 1, or give another model on two ranks than on
    one.  It changes neither a random stream nor the model's buffers.

    Args:
        components: of the job.
        resumed: the initial parameters are in the run directory, and not these.

    Returns:
        Lines for the user about what is allowed, but hardly meant.

    Raises:
        JobError: the data, the model, the algorithm and the scores do not fit together; or a class
            of the user's raises, draws from a global generator, or keeps something between calls.
        DiskError: the disk is full or fails.
    """
    notes = (*check_sizes(components), *check_classes(components, resumed=resumed))
    check_executor(components)
    cohort = components.population.cohort_size
    unused = unused_places(components, cohort, f"a cohort of {cohort}")
    return (*notes, *padding_notes(components), *filter(None, [unused]))


def check_sizes(components: Components) -> tuple[str, ...]:
    """Check what needs no batch and calls no class of the job; also of data that is not there.

    Returns:
        Lines for the user about what is allowed, but hardly meant.

    Raises:
        JobError: the data, the model, the algorithm and the scores do not fit together.
    """
    check_normalization(components)
    check_server_memory(components)
    notes = check_scores(components)
    check_range(components)
    return (*notes, *class_notes(components), *check_features(components))


def check_classes(components: Components, *, resumed: bool) -> tuple[str, ...]:
    """Run one local step of two clients on their own examples, and the server's step.

    Args:
        components: of the job.
        resumed: see ``check_components``.

    Returns:
        Lines for the user about what is allowed, but hardly meant.

    Raises:
        JobError: a class of the user's raises, draws from a global generator, or keeps something
            between calls; or the data do not fit the model.
        DiskError: the disk is full or fails.
    """
    buffers = {name: buffer.clone() for name, buffer in components.model.buffers.items()}
    try:
        with restored():
            notes = _check_on_batches(Trial(components, resumed=resumed))
        changed = [n for n, b in components.model.buffers.items() if not torch.equal(b, buffers[n])]
    finally:
        with torch.no_grad():
            for name, buffer in components.model.buffers.items():
                buffer.copy_(buffers[name])
        components.population.clients.pop_elapsed_s()  # round 1 must not count these batches
    if changed:
        raise JobError(
            f"model.name: {components.loaded.names['model']}: its forward pass changes the "
            f"buffer {changed[0]!r}, so that a client's result depends on who was trained before "
            "it; expected buffers that stay as they are: make what changes a local variable"
        )
    return notes


def _check_on_batches(trial: Trial) -> tuple[str, ...]:
    # An error of a class is named as that class's: so each is tried with what was found right.
    check_finite(trial)
    check_batches(trial)
    check_rows(trial)
    check_batches_of_one(trial)
    grad, outputs = check_model(trial)
    check_algorithm(trial)
    check_tests(trial)
    check_model_again(trial, grad, outputs)  # last, when it has seen other batches
    return (*probability_notes(trial, outputs), *loss_notes(trial))
