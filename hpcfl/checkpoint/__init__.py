"""Checkpoints: all that a run needs to resume, committed by one rename."""
