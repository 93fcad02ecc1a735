"""The health of tables: counters and warnings from metadata."""
