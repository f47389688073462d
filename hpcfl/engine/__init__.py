"""The round loop, and its timing, requests and diagnostics."""
