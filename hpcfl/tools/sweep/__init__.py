"""Many runs from one file: a grid over a job's keys."""
