"""Commits: conflict detection on the newest head, new manifests and snapshot, compare-and-swap, unknown outcomes."""
