"""Which files become file groups, and whether rewriting them is worth the cost: decided by metadata and footers,
without reading data."""
