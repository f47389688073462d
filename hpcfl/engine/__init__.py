"""The round loop, and its timing, signals and diagnostics."""
