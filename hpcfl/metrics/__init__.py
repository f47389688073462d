"""What is measured of a model."""

from hpcfl.metrics.totals import totals

__all__ = ["totals"]
