"""Dropping partitions that are past their retention."""
