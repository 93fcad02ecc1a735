"""Finds out who needs a file before it is deleted, and deletes those that nobody needs."""
