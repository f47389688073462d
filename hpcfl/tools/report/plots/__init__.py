"""Plots of logs and of partitions.  matplotlib is loaded on use."""

from hpcfl.tools.report.plots.curves import Plot
from hpcfl.tools.report.plots.partition import plot_partition

__all__ = ["Plot", "plot_partition"]
