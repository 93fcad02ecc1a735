"""The records between passes: pins, loads, leases, requests, journal, claims, and the memory of each table."""
