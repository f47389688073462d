"""Measurements on the user's machine, as ratios within one run."""
