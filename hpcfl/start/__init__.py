"""From a job to its rounds: connect, agree, fetch, build, begin, run."""
