"""Commit results: how many file groups at once, which are still valid on the newest head, and deletes that arrived
meanwhile."""
