"""The judge in front of SeaweedFS lets nobody past without a role, and no role past its rights (rule 143)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from icekeeper.catalogs.load import open_catalog
from icekeeper.demo.seaweedfs import SeaweedFSServer
from icekeeper.errors import StorageError
from icekeeper.storage.storage import Storage
from local_stack.credential_server import CredentialServer
from local_stack.judged_lake import JudgedLake, judged_lake
from local_stack.rights.callers import DENIED, StackRights
from local_stack.rights.evaluate import Role, statements_of

ROLE = "arn:aws:iam::123456789012:role/reader"
LARGE = bytes(12 << 20)  # which is written in parts


@pytest.fixture
def lake(seaweedfs: SeaweedFSServer, table_bucket: dict[str, str]) -> Iterator[JudgedLake]:
    with judged_lake(seaweedfs, table_bucket["warehouse"].removeprefix("s3://").rstrip("/")) as judged:
        yield judged


def asking(lake: JudgedLake, table_bucket: dict[str, str], key: str) -> dict[str, str]:
    """A catalog's properties for who signs with a key."""
    properties = {name: key if name.endswith("access-key-id") else value for name, value in table_bucket.items()}
    return {**properties, "uri": lake.iceberg_uri, "s3.endpoint": lake.s3_endpoint}


def test_a_role_does_what_it_may_and_no_more(
    lake: JudgedLake, table_bucket: dict[str, str], seaweedfs: SeaweedFSServer
) -> None:
    # SeaweedFS lets nobody write into a table bucket where no table is.
    bucket = f"objects-{lake.bucket}"
    seaweedfs.client("s3").create_bucket(Bucket=bucket)
    _, catalog = lake.arns
    allowed = [
        {"Effect": "Allow", "Action": ["s3:GetObject", "s3:PutObject"], "Resource": f"arn:aws:s3:::{bucket}/mine/*"},
        {"Effect": "Allow", "Action": ["s3tables:GetTableBucket", "s3tables:ListNamespaces"], "Resource": catalog},
    ]
    role = Role("ReaderRole", statements_of("Policy", {"Statement": allowed}))
    with StackRights({ROLE: role}, CredentialServer()).enforced() as rights:
        properties = asking(lake, table_bucket, rights.key_of(ROLE))
        storage, folder = Storage(properties), f"s3://{bucket}/mine"
        for name, content in (("small", b"x"), ("lärge ünd spaced", LARGE)):
            storage.write(f"{folder}/{name}", content)
            assert storage.read(f"{folder}/{name}") == content
        assert list(open_catalog("lake", properties).list_tables()) == []
        assert lake.let_in == {"ReaderRole"}
        assert DENIED == []
        with pytest.raises(StorageError, match="AccessDenied"):
            storage.write(f"s3://{bucket}/theirs/f", b"x")
        assert storage.delete([f"{folder}/small"]).failed
        assert storage.read(f"{folder}/small") == b"x"
        assert [str(one.need.action) for one in DENIED] == ["s3:PutObject", "s3:DeleteObject"]
        DENIED.clear()


def test_nobody_gets_past_without_a_role(lake: JudgedLake, table_bucket: dict[str, str]) -> None:
    """Not even with the server's own keys."""
    properties = asking(lake, table_bucket, table_bucket["s3.access-key-id"])
    with pytest.raises(StorageError, match="AccessDenied"):
        Storage(properties).write(f"s3://{lake.bucket}/f", b"x")
    with pytest.raises(StorageError):
        open_catalog("lake", properties)
    assert lake.let_in == set()
