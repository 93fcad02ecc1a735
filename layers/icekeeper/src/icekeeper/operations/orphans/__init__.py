"""Orphan removal: what is listed, what is referenced, what goes, and what stands in the way."""
