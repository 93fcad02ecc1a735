"""Strategies sort and zorder: which files, in what order, and how workers exchange rows."""
