"""Keeps Apache Iceberg tables in S3 table buckets healthy."""
