"""Rewriting manifests: which manifests, in which order of entries, and on which workers."""
