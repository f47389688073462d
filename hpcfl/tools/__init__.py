"""What users run beside a run: they read runs, or start processes."""
