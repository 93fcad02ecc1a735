"""Commits: detects conflicts on the newest head, writes manifests and snapshot, swaps, resolves unknown outcomes."""
