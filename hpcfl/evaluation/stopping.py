"""End a run by its scores (``stop`` of a job): the same decision on every rank."""

import math
from collections.abc import Iterable, Mapping

from hpcfl.evaluation.config import Stop
from hpcfl.runs.score_names import score_named


class StopRule:
    """Decides after each evaluation whether the run ends.

    Args:
        config: the ``stop`` section, whose metric is resolved.
    """

    def __init__(self, config: Stop) -> None:
        if config.metric is None:
            raise ValueError("the default metric is not resolved yet")
        self._config, self.metric = config, config.metric
        better = score_named(config.metric).better or config.better
        self._sign = -1.0 if better == "lower" else 1.0
        self._best: float | None = None
        self._since = 0  # evaluations since the best one
        self.reason = ""
        """Why the run ends; empty while it goes on."""

    def restore(self, scores: Iterable[tuple[int, float | None]], done: int) -> None:
        """Take the scores of earlier rounds; only that of the last one ends the run.

        Args:
            scores: (round, value) of each evaluation of the metric; None where it was not finite.
            done: rounds completed.
        """
        last = None
        for last, value in scores:
            self.offer(last, {self.metric: math.nan if value is None else value})
        if last != done:
            self.reason = ""

    def offer(self, round: int, scores: Mapping[str, float]) -> None:
        """Take the scores after ``round`` rounds; an evaluation without the metric is left out."""
        name, target, patience = self.metric, self._config.target, self._config.patience
        self.reason = ""
        if name not in scores:
            return
        # The log, from which a resume takes it, has no other number that is not finite.
        value = scores[name] if math.isfinite(scores[name]) else math.nan
        self._take(value)
        if target is not None and self._sign * value >= self._sign * target:
            self.reason = f"{name} is {value:.4g} after round {round}, target {target:g}"
        elif patience is not None and self._since >= patience:
            best = "never a number" if self._best is None else f"{self._best:.4g} at best"
            self.reason = (
                f"{name} has not improved in {self._since} evaluations: {best}, "
                f"{value:.4g} after round {round}"
            )

    def _take(self, value: float) -> None:
        if not math.isnan(value) and (
            self._best is None or self._sign * value > self._sign * self._best
        ):
            self._best, self._since = value, 0
        else:
            self._since += 1
