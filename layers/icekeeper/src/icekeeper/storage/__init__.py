"""Files: list, read, write, delete, and what a store allows."""
