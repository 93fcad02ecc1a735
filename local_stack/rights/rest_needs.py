"""The rights that requests to the Iceberg REST endpoint of S3 Tables need.

Source: Amazon S3 user guide, "Accessing tables using the Amazon S3 Tables Iceberg REST endpoint", "Supported Iceberg
REST API operations", which names the actions of each (compared line by line).  The path's prefix is the bucket's ARN.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from local_stack.rights.evaluate import Need

_NAMESPACE = r"/v1(?:/[^/]+)?/namespaces/[^/]+"
_OF_BUCKET = (
    ("GET", r"/v1/config", "GetTableBucket"),
    ("GET", r"/v1(?:/[^/]+)?/namespaces", "ListNamespaces"),
    ("GET", _NAMESPACE, "GetNamespace"),
    ("HEAD", _NAMESPACE, "GetNamespace"),
    ("GET", f"{_NAMESPACE}/tables", "ListTables"),
)
_OF_TABLE = (
    ("HEAD", ("GetTable",)),
    ("GET", ("GetTableMetadataLocation", "GetTableData")),
    ("POST", ("UpdateTableMetadataLocation", "PutTableData", "GetTableData")),
)


def rest_needs(method: str, path: str, bucket: str) -> Iterator[Need]:
    """What a request needs; ``bucket`` is the ARN of the table bucket that the catalog was opened for.

    Raises:
        KeyError: it is none that the pipeline is known to send.
    """
    path = path.partition("?")[0]
    for expected, pattern, action in _OF_BUCKET:
        if method == expected and re.fullmatch(pattern, path):
            yield Need(f"s3tables:{action}", bucket)
            return
    if re.fullmatch(f"{_NAMESPACE}/tables/[^/]+", path):
        actions = dict(_OF_TABLE)[method]
        yield from (Need(f"s3tables:{action}", f"{bucket}/table/{path.rpartition('/')[2]}") for action in actions)
        return
    raise KeyError(f"{method} {path}")
