"""What people tell Icekeeper of one table: pins, staged loads, settings."""
