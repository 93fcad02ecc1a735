"""Clusters file groups (strategies sort and zorder): chooses files, sorts rows, exchanges rows between workers."""
