"""Which tables need maintenance, found from metadata alone."""
