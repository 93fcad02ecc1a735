"""Which files become file groups, and whether that is worth it: pure rules over metadata; no data is read."""
