"""The round loop: what every rank does in a round, and what is recorded of it."""
