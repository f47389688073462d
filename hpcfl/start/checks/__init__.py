"""Refuse, before round 1, what cannot be run: ranks, classes, data and disks that a job names."""
