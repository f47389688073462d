"""The run directory: where the files of a run lie, and how they are read."""
