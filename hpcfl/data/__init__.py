"""Data sets, how they are dealt to clients, and the batches clients train on."""
