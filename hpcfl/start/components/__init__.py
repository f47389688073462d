"""What a job is built into: its clients, its model, and how it trains them."""
