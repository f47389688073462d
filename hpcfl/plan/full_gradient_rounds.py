"""Count the rounds that need full gradients."""

from hpcfl.runner.components import Components


def measured(components: Components) -> int:
    """Rounds that the diagnostics measure."""
    return components.job.rounds // components.job.diagnostics.every


def full_gradient_rounds(components: Components) -> int:
    """Rounds in which full gradients are taken, for the algorithm or for the diagnostics."""
    if components.algorithm.full_gradient != "none":
        return components.job.rounds
    return measured(components) if components.job.diagnostics.dissimilarity else 0
