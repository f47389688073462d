"""Which clients take part in a round, and which rank trains each of them."""
