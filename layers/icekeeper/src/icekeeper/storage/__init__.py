"""Lists, reads, writes and deletes files, and finds out what a store allows."""
