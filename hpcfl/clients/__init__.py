"""Who takes part in a round, their tasks, batches and states."""
