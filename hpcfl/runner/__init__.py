"""Start or resume a run on a rank, and all that it needs there."""
