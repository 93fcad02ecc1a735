"""Iceberg's metadata as data: table documents, snapshots, manifests, statistics files; read, written and compared."""
