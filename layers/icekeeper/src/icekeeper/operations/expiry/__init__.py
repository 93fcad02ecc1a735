"""Snapshot expiry: which snapshots expire, which files that frees, and what interrupted runs left behind."""
