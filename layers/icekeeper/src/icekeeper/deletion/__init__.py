"""Who needs a file, asked before anything is deleted, and the deletion itself."""
