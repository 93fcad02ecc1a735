"""Table and partition statistics: what is stale, sketches of columns, and the files that hold them."""
