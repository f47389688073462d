"""Tasks: a data set, a model and a loss under one name."""
