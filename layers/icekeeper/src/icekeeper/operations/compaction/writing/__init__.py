"""Writes Parquet data files as the table's properties ask, and describes them for manifests."""
