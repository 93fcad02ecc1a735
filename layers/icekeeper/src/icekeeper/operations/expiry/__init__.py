"""Snapshot expiry: which snapshots go, which files that frees, and what crashes left behind."""
