"""Files, memory and progress: what every package above may use."""
