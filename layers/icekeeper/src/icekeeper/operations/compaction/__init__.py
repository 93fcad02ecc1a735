"""Compaction: which files become file groups, rewriting or copying their rows, proof, and the commit."""
