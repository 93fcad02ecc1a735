"""What Icekeeper remembers between passes: pins, loads, leases, requests, journal, claims, memory of each table."""
