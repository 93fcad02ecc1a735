"""Orphan removal: lists a table's files and deletes those that nothing references."""
