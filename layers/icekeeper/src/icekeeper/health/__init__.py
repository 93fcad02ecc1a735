"""How tables look, maintained or not: counters and warnings from metadata (seed 002, "Lake health")."""
