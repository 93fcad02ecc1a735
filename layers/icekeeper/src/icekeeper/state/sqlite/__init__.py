"""State in one SQLite file, for a laptop."""
