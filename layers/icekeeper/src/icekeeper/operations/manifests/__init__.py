"""Rewriting manifests: which, in what order, by whom."""
