"""Keeps Apache Iceberg tables in S3 table buckets healthy."""

from icekeeper import arrow_memory as arrow_memory
from icekeeper import freed_blocks as freed_blocks
