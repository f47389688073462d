"""What is measured of a model."""

from hpcfl.evaluation.metrics import totals

__all__ = ["totals"]
