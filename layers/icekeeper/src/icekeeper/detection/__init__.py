"""Which tables need maintenance, from metadata alone; and how one looks now."""
