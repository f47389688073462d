"""Atomic files, checksums, locks, memory, progress and tables, for all packages above."""
