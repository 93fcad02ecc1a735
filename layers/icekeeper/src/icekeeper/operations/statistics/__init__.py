"""Table and partition statistics: which are stale, sketches of columns, and the files that store them."""
