"""Orphan removal: list a table's files and delete those that nothing references."""
