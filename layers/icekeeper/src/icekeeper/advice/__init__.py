"""Advice about a table's design, from its metadata alone: changes that no maintenance pass can make."""
