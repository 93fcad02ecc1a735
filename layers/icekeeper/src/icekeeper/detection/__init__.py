"""Which tables need maintenance, found from metadata alone (rule 57)."""
