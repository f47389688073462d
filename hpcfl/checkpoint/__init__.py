"""Checkpoints: what a run needs to resume, committed by one rename."""
