"""Check the scores that a job asks for, and the user's own metrics on a batch."""

from collections.abc import Sequence
from itertools import islice

import numpy as np

from hpcfl.checks.trial import Trial, shape_text
from hpcfl.errors import JobError, as_job_error, defined
from hpcfl.evaluation.user_metrics import UserMetric, load_metrics
from hpcfl.setup.components import Components
from hpcfl.types import Batch
from hpcfl.user_code.generators import generators
from hpcfl.user_code.names import short_name

TESTED = 8  # test examples


def check_scores(components: Components) -> None:
    """Check that the data and the algorithm allow the scores of the section ``evaluate``.

    Raises:
        JobError: they do not.
    """
    evaluate, dataset = components.job.evaluate, components.dataset
    for key in ("clients", "local_models"):
        if getattr(evaluate, key) and dataset.classes is None and not evaluate.metrics:
            raise JobError(
                f"evaluate.{key}: accuracies need classes, which this data has not; remove it, "
                "or name metrics of your own in evaluate.metrics"
            )
    if evaluate.local_models and components.schema.local_model_field is None:
        raise JobError(
            f"evaluate.local_models: {components.loaded.tree['algorithm']['name']} keeps no local "
            "models, as fedhbm does; remove the key"
        )
    if evaluate.personal is True and not components.algorithm.has_personal_models:
        raise JobError(
            f"evaluate.personal: {components.loaded.tree['algorithm']['name']} makes no models of "
            "the clients' own, as fedper and ditto do; remove the key, or set "
            "evaluate.personal.steps to score fine-tuned models"
        )
    tests, validated = dataset.test, components.split.validation is not None
    if evaluate.best and not validated and (tests is None or not len(tests.labels)):
        raise JobError(
            "evaluate.best: this data has no test set for the comparison; remove it, or set "
            "data.validation"
        )


def check_tests(trial: Trial) -> None:
    """Compute the loss of a few test examples, and the user's metrics twice.

    Raises:
        JobError: the model or a metric fails there; or a metric draws from a global generator, or
            gives other numbers when the same batch is run again.
    """
    components = trial.components
    with trial.data_errors():
        batches = list(islice(components.tests(TESTED).batches(0, 1), 1))
    for batch in batches:
        with trial.model_errors(batch):
            outputs = trial.gradient.predict(components.x0, batch.inputs)
            trial.gradient.loss(outputs, batch.labels)
    metrics = load_metrics(components.job.evaluate.metrics)
    if metrics:
        _check_metrics(trial, metrics, (batches or [trial.batches[0]])[0])


def _check_metrics(trial: Trial, metrics: Sequence[UserMetric], batch: Batch) -> None:
    """Call the user's metrics twice on a batch."""
    outputs = trial.gradient.predict(trial.components.x0, batch.inputs)
    for metric in metrics:
        name, where = f"evaluate.metrics: {short_name(metric.path)}", defined(metric.function)
        given = f"outputs {shape_text(outputs)}, labels {shape_text(batch.labels)}"
        does = f"its trial on a batch ({given}) failed"
        with as_job_error(name, does, where, metric.function):
            before = generators()
            (other,) = load_metrics([metric.path])  # one that has seen no batch
            first, again = (metric.sums(outputs, batch.labels).tolist() for _ in range(2))
            scores = [metric.score(first), other.score(again)]
            drew = generators().changed(before)
        if drew:
            raise JobError(f"{name}: draws{where} from {' and '.join(drew)}; let it draw nothing")
        if not np.array_equal([*first, scores[0]], [*again, scores[1]], equal_nan=True):
            raise JobError(
                f"{name}: gives other numbers{where} when the same batch is run again; let "
                "it keep nothing between calls"
            )
        half = len(outputs) // 2
        if half > 1:  # a metric may squeeze a batch of one
            does = f"its trial on the first {half} examples of the batch failed"
            with as_job_error(name, does, where, metric.function):
                metric.sums(outputs[:half], batch.labels[:half])  # as many numbers
