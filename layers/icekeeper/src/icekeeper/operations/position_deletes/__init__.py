"""Rewriting position deletes: which delete files to merge, and the merge."""
