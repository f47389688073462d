"""hpcfl: federated learning at scale on HPC machines."""

__version__ = "0.1.0"
