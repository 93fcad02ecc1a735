"""Which files become file groups, and whether that is worth it: by metadata and footers; no data is read."""
