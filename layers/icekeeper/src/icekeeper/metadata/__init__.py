"""Iceberg's metadata as data: reads, writes and compares table documents, snapshots, manifests and statistics files."""
