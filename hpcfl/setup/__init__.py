"""Set up a rank: its device and torch, and the data, model, executor and store of its job."""
