"""The table buckets of an account and region, as the S3 Tables API lists them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from icekeeper.catalogs.aws_service import AWS_ERRORS
from icekeeper.catalogs.s3tables import S3_TABLES
from icekeeper.errors import StorageError
from icekeeper.text import remember_secrets

__all__ = ["TableBucket", "find_table_buckets"]

# Buckets of type "aws" belong to a service of AWS (S3 Metadata keeps its journal tables there), which maintains them.
OURS_TO_MAINTAIN = "customer"


@dataclass(frozen=True, slots=True)
class TableBucket:
    """One table bucket of this account."""

    name: str
    arn: str


def find_table_buckets(properties: Mapping[str, str] | None = None) -> Iterator[TableBucket]:
    """Every table bucket that customers own, in the order in which the service lists them; page by page.

    Region, endpoint and credentials come from the properties (``s3tables.*``, ``client.*``, ``s3.*``), else from
    boto3's default chain and ``AWS_ENDPOINT_URL_S3TABLES``.  Source: Amazon S3 API reference, "ListTableBuckets".

    Raises:
        StorageError: the service does not answer or refuses; the buckets given before the error exist.
    """
    chosen = dict(properties or {})
    remember_secrets(chosen)
    try:
        clients = S3_TABLES.connect(chosen)
        try:
            for page in clients.repeating.get_paginator("list_table_buckets").paginate(type=OURS_TO_MAINTAIN):
                for bucket in page["tableBuckets"]:
                    # Checked again: a server may ignore the parameter, or know no types.
                    if bucket.get("type", OURS_TO_MAINTAIN) == OURS_TO_MAINTAIN:
                        yield TableBucket(bucket["name"], bucket["arn"])
        finally:
            clients.close()
    except AWS_ERRORS as error:
        raise StorageError(f"listing the table buckets {S3_TABLES.describe(error, chosen)}") from error
