"""Show how far a run is from its files, without disturbing it."""
