"""Records that people and loading jobs set for one table: pins, staged loads, claims, settings, requests."""
