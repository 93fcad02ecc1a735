"""Advice about a table's design, from its metadata alone: what to change that no maintenance pass can change."""
