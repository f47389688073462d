"""Count the full gradients of a job."""

from hpcfl.setup.components import Components


def diagnosed_rounds(components: Components) -> int:
    """Rounds that the diagnostics measure."""
    return components.job.rounds // components.job.diagnostics.every


def full_gradient_rounds(components: Components) -> int:
    """Rounds in which full gradients are taken, for the algorithm or for the diagnostics."""
    if components.schema.points:
        return components.job.rounds
    return diagnosed_rounds(components) if components.job.diagnostics.dissimilarity else 0


def full_gradients(components: Components) -> int:
    """Full gradients that a client takes in such a round."""
    return components.schema.points or bool(full_gradient_rounds(components))


def full_gradient_means(components: Components) -> int:
    """Means of full gradients that a round of the algorithm takes."""
    return components.schema.points if components.algorithm.full_gradient == "server" else 0
