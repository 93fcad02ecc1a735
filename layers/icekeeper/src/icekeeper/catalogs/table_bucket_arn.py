"""The ARN of a table bucket: ``arn:aws:s3tables:REGION:ACCOUNT:bucket/NAME``."""

from __future__ import annotations

import re
from dataclasses import dataclass

__all__ = ["TableBucketArn", "is_table_bucket"]

# Amazon S3 API reference, "TableBucketARN"; servers that emulate AWS allow other accounts and names.
_ARN = re.compile(r"arn:[a-z0-9-]+:s3tables:(?P<region>[a-z0-9-]*):(?P<account>[^:]*):bucket/(?P<name>[^:/,*\s]+)")
EXAMPLE = "arn:aws:s3tables:us-east-1:111122223333:bucket/NAME"


@dataclass(frozen=True, slots=True)
class TableBucketArn:
    """Which table bucket: its name is unique only within region and account, its ARN everywhere."""

    text: str
    region: str
    account: str
    name: str

    @classmethod
    def parse(cls, text: str) -> TableBucketArn:
        """Take an ARN apart.

        Raises:
            ValueError: the text is no such ARN; the message quotes it and says what it must be.
        """
        match = _ARN.fullmatch(text)
        if match is None:
            raise ValueError(f"'{text}', but must be the ARN of a table bucket, for example {EXAMPLE}")
        return cls(text, match["region"], match["account"], match["name"])

    def __str__(self) -> str:
        return self.text


def is_table_bucket(warehouse: str) -> bool:
    """Whether a catalog's warehouse is a table bucket, by its ARN."""
    return _ARN.fullmatch(warehouse) is not None
