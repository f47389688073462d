"""Start or resume a run on a rank, and build the objects that it needs."""
