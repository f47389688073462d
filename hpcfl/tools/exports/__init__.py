"""Export what a run holds: a checkpoint, its split of the examples, its record."""
