"""Where work units run: the same pure function, here or by Spark."""
