"""Say what a job will need: disk, traffic and memory computed, time and peak memory measured."""
