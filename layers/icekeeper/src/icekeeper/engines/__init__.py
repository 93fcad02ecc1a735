"""Engines: the same pure function runs in this process, in worker processes or on Spark."""
