"""Keeps Apache Iceberg tables in S3 table buckets healthy: plan, rewrite, commit, clean, report."""

# Sets what Arrow and the C library read when they are loaded.
from icekeeper.machine import resources as resources
