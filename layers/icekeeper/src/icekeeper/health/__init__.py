"""How tables look, maintained or not: counters and warnings from metadata (rule 118)."""
