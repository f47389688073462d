"""Look at a live run from its directory, without disturbing it."""
