"""Merges files by copying their row groups where that is possible, and decodes only the others (rule 136)."""
