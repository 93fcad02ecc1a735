"""Which tables need maintenance, from metadata alone; and the current state of a table."""
