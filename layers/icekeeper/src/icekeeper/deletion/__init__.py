"""Checks which tables, pins and jobs need a file, and deletes files that none of them needs."""
