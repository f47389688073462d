"""Start or resume a run, and run its rounds: one ``RankSession`` on every rank."""
