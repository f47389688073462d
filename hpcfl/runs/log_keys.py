"""The keys of log.jsonl that hold no score: times, memory, ranks (docs/reference/log.md)."""

from hpcfl.io import checksum

PHASES = ("sample", "read", "compute", "reduce", "wait", "update", "write", "evaluate")
"""The phases of a round; each has a key ``PHASE_s``."""
MEMORY = ("memory_bytes", "device_bytes")
OF_RANKS, QUANTILES, SLOWEST = "busy_s", "busy_quantiles_s", "slowest_rank"
SIMULATED = "simulated_s"
"""The key of the simulated clock, which follows from the job."""


def measured(key: str) -> bool:
    """Whether a key of the log holds a measurement, which differs from run to run."""
    if key == SIMULATED:
        return False
    return key.endswith("_s") or key in (*MEMORY, "imbalance", SLOWEST, checksum.KEY)
