"""Check the scores that a job asks for, and the user's own metrics on a batch."""

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import islice

import numpy as np

from hpcfl.errors import JobError, as_job_error, defined
from hpcfl.evaluation.config import Stop
from hpcfl.evaluation.metrics import TOP
from hpcfl.evaluation.scores import metrics_of
from hpcfl.evaluation.user_metrics import UserMetric, load_metrics
from hpcfl.runs.job_file.words import suggestion
from hpcfl.runs.run_score import is_of_x
from hpcfl.runs.score_names import PERPLEXITIES, score_named
from hpcfl.start.checks.data import require_finite
from hpcfl.start.checks.trial import Trial, shape_text
from hpcfl.start.components.components import Components
from hpcfl.start.components.scores import counts_own_models, own_models, possible_scores
from hpcfl.types import ANSWERED, Batch
from hpcfl.user_code.generators import generators
from hpcfl.user_code.names import short_name

TESTED = 8  # test examples


def check_scores(components: Components) -> tuple[str, ...]:
    """Check that the data and the algorithm allow the scores of the section ``evaluate``.

    Returns:
        Lines for the user about the models and the examples that the run's score is of.

    Raises:
        JobError: they do not.
    """
    evaluate, dataset = components.job.evaluate, components.population.dataset
    for key in ("clients", "local_models"):
        summed = getattr(evaluate, key) and evaluate.clients != "table"
        if summed and dataset.loss not in ANSWERED and not evaluate.metrics:
            raise JobError(
                f"evaluate.{key}: accuracies need classes, which this data has not; remove it, "
                "name metrics of your own in evaluate.metrics, or set evaluate.clients to table, "
                "which has losses"
            )
    if evaluate.local_models and components.training.schema.local_model_field is None:
        raise JobError(
            f"evaluate.local_models: {components.loaded.names['algorithm']} keeps no local "
            "models, as fedhbm does; remove the key"
        )
    if evaluate.scores_clients and not components.population.tested_clients:
        raise JobError(
            "evaluate: the clients are to be scored on their own test examples, but none of those "
            "that train has one; set data.holdout, or remove clients, local_models and personal"
        )
    if components.job.stop is not None:
        _check_stop(components, components.job.stop)
    if evaluate.best and not possible_scores(components):
        raise JobError(
            "evaluate.best: this data has no test set for the comparison; remove it, or set "
            "data.validation"
        )
    return tuple(_notes(components))


def _notes(components: Components) -> Iterator[str]:
    """Which model the score of the run is of, if the method makes models of the clients' own."""
    own, (by, *_) = own_models(components), (*possible_scores(components), "no score")
    if own is None:
        return
    if not counts_own_models(components):
        yield (
            f"the clients' own models are not scored: the run counts by {by}, of x alone"
            f"{own.of_x}; set data.holdout and evaluate.personal=true"
        )
        return
    kept = ", which evaluate.best keeps," if components.job.evaluate.best else ""
    rest = f"; other scores are of x{kept}{own.of_x}" if kept or own.of_x else ""
    yield f"the run counts by {by}, of the clients' own models{rest}"
    if own.tested_on == "train":
        yield (
            "the clients' own models are tested on their training examples, which they know by "
            "heart; set data.holdout"
        )
    if components.job.data.keeps_clients:
        yield (
            "the clients' own models have no validation scores, as data.validation keeps clients "
            "that do not train; set data.validation.of=examples"
        )


def _check_stop(components: Components, stop: Stop) -> None:
    """Refuse to wait for a score that no evaluation before the last round has.

    Raises:
        JobError: the job does not compute it, or only after the last round.
    """
    evaluate, dataset, models = (
        components.job.evaluate,
        components.population.dataset,
        own_models(components),
    )
    if evaluate.every is None:
        raise JobError(
            "stop: evaluate.every is absent, so only the last round is evaluated; set "
            "evaluate.every"
        )
    sets = {
        "test": dataset.test is not None and len(dataset.test.labels) > 0,
        "validation": components.population.split.validation is not None,
    }
    whole = [name for name, present in sets.items() if present]
    own = [metric.name for metric in metrics_of(dataset.loss, evaluate.metrics)]
    classes = dataset.loss in ANSWERED
    known = [f"{name}_loss" for name in whole]
    known += [f"{name}_accuracy" for name in whole if classes]
    known += [f"{name}_top5_accuracy" for name in whole if (dataset.classes or 0) > TOP]
    known += [f"{name}_{metric}" for name in whole for metric in own]
    known += ["train_objective"] if evaluate.train else []
    known += ["personal_loss"] if evaluate.personal else []
    known += ["personal_accuracy"] if evaluate.personal and classes else []
    if evaluate.personal and components.population.split.own_validation is not None:
        known += ["personal_validation_loss", *["personal_validation_accuracy"] * bool(classes)]
    asked = {
        "client": evaluate.clients,
        "local_model": evaluate.local_models,
        "personal": evaluate.personal,
    }
    for whose in (name for name, computed in asked.items() if computed):
        ends = ("mean", "std", "worst_decile", "best_decile")
        known += [f"{whose}_accuracy_{end}" for end in ends if classes]
        ends = ("mean", "std", "lowest_decile", "highest_decile")
        known += [f"{whose}_{metric}_{end}" for metric in own for end in ends]
    if dataset.loss == "tokens" and components.job.loss == "data":
        known += [PERPLEXITIES[key] for key in known if key in PERPLEXITIES]
    if stop.metric is None:
        raise JobError("stop: this data has no test set, so the run has no score; set stop.metric")
    if models is not None and models.x == "not trained" and is_of_x(stop.metric):
        default = stop.metric == next(iter(possible_scores(components)), None)
        found = f"the default, {stop.metric}, is" if default else f"found {stop.metric},"
        raise JobError(
            f"stop.metric: {found} of x{models.of_x}; expected a score of the clients' own models, "
            "such as personal_loss, which data.holdout and evaluate.personal=true give"
        )
    if stop.metric not in known:
        raise JobError(
            f"stop.metric: found {stop.metric}, expected a score that the job computes: "
            f"{', '.join(known)}{suggestion(stop.metric, known)}"
        )
    if stop.better is None and score_named(stop.metric).better is None:
        raise JobError(
            f"stop.better: missing; hpcfl does not know whether a high or a low {stop.metric} is "
            "good: say higher or lower"
        )
    if score_named(stop.metric).percent and stop.target is not None and stop.target > 1:
        raise JobError(
            f"stop.target: found {stop.target:g}, but {stop.metric} is a fraction of 0 to 1; say "
            f"{stop.target / 100:g} for {stop.target:g} %"
        )


def check_tests(trial: Trial) -> None:
    """Compute the loss of a few test examples, and the user's metrics twice.

    Raises:
        JobError: the model or a metric fails there; or a metric draws from a global generator, or
            gives other numbers when the same batch is run again.
    """
    components = trial.components
    with trial.data_errors():
        batches = list(islice(components.population.tests(TESTED).batches(0, 1), 1))
    for batch in batches:
        require_finite(trial, batch, "the first test examples")
        with trial.model_errors(batch):
            outputs = trial.gradient.predict(components.model.x0, batch.inputs)
            trial.gradient.loss(outputs, batch.labels)
    metrics = load_metrics(components.job.evaluate.metrics)
    if metrics:
        _check_metrics(trial, metrics, (batches or [trial.batches[0]])[0])


def _check_metrics(trial: Trial, metrics: Sequence[UserMetric], batch: Batch) -> None:
    """Call the user's metrics twice on a batch."""
    components = trial.components
    outputs = trial.gradient.predict(components.model.x0, batch.inputs)
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
        if metric.width > 1 and components.job.evaluate.clients != "table":
            raise JobError(
                f"{name}: its score has {metric.width} numbers, and the log holds one; set "
                "evaluate.clients to table, which writes them to clients.csv"
            )
        if not all(
            map(partial(np.array_equal, equal_nan=True), [first, scores[0]], [again, scores[1]])
        ):
            raise JobError(
                f"{name}: gives other numbers{where} when the same batch is run again; let "
                "it keep nothing between calls"
            )
        half = len(outputs) // 2
        if half > 1:  # a metric may squeeze a batch of one
            does = f"its trial on the first {half} examples of the batch failed"
            with as_job_error(name, does, where, metric.function):
                metric.sums(outputs[:half], batch.labels[:half])  # as many numbers
