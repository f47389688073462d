"""Count the rounds that need full gradients."""

from hpcfl.runner.components import Components


def measured(parts: Components) -> int:
    """Rounds that the diagnostics measure."""
    return parts.job.rounds // parts.job.diagnostics.every


def full_gradient_rounds(parts: Components) -> int:
    """Rounds in which full gradients are taken, for the algorithm or for the diagnostics."""
    if parts.algorithm.full_gradient != "none":
        return parts.job.rounds
    return measured(parts) if parts.job.diagnostics.dissimilarity else 0
