"""The scores of a job: of the server's model or of the clients' own, and on which examples."""

from collections.abc import Sequence
from dataclasses import replace

from hpcfl.engine.dry_round import nbytes, traffic
from hpcfl.runs.run_score import OwnModels, Trained, deciding_scores
from hpcfl.start.components.components import Components
from hpcfl.types import ANSWERED


def own_models(components: Components) -> OwnModels | None:
    """What is known of the clients' own models; None of a method that makes none.

    What no message or no upload has of x is not trained: FedPer's bytes, or local training's.
    """
    training, model = components.training, components.model
    if not training.algorithm.has_personal_models:
        return None
    bytes_, whole = traffic(training.algorithm, training.schema), nbytes(model.x0)
    if model.initial_statistics is not None:
        whole += nbytes(model.initial_statistics)
    trained: Trained = "trained" if bytes_.down >= whole else "partly trained"
    tests = components.population.client_tests
    return OwnModels(tests.data, trained if min(bytes_) else "not trained")


def counts_own_models(components: Components) -> bool:
    """Whether the score of the run is that of the clients' own models."""
    algorithm = components.training.algorithm
    return algorithm.has_personal_models and bool(components.job.evaluate.personal)


def possible_scores(components: Components) -> Sequence[str]:
    """Those that the run may count by, of its examples and labels, the preferred one first."""
    personal, population = counts_own_models(components), components.population
    dataset, split = population.dataset, population.split
    validated = split.validation is not None and (split.own_validation is not None or not personal)
    tested = population.tested_clients > 0
    if not personal:
        tested = dataset.test is not None and len(dataset.test.labels) > 0
    return [
        key
        for key in deciding_scores(personal=personal)
        if (validated if "validation" in key else tested)
        and (dataset.loss in ANSWERED or not key.endswith("accuracy"))
    ]


def with_scores(components: Components) -> Components:
    """The same, where the job says whether it scores the clients' own models, and when it stops.

    By default these are scored where clients have examples that they do not train on, and a run
    stops by the score that it counts by.
    """
    loaded, population = components.loaded, components.population
    if loaded.job.evaluate.personal is None:
        validated = population.split.own_validation is not None
        asked = (
            components.training.algorithm.has_personal_models
            and (validated or population.client_tests.data != "train")
            and population.tested_clients > 0
        )
        loaded = loaded.changed("evaluate", personal=asked)
    if loaded.job.stop is not None and loaded.job.stop.metric is None:
        found = next(iter(possible_scores(replace(components, loaded=loaded))), None)
        loaded = loaded.changed("stop", metric=found)
    return replace(components, loaded=loaded)
