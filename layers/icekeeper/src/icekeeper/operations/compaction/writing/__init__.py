"""Parquet data files as the table asks for them, and what manifests say of them."""
