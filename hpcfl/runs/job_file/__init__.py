"""A job as it is written: its file, its settings by dotted keys, its name; no class of it."""
