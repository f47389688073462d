"""How a run starts or resumes on a rank, and everything it needs there."""
