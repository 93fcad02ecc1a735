"""Headers of objects that AWS refuses and moto lets pass (platform 69)."""

from __future__ import annotations

import uuid

import pytest
from botocore.exceptions import ClientError

from icekeeper.storage.storage import Storage
from local_stack.limits.object_headers import refused_headers
from local_stack.moto_server import MotoServer
from local_stack.rights.s3_needs import s3_needs
from local_stack.wire import HttpAnswer, WireRequest

OF_UPLOAD = "partNumber=1&uploadId=u"
TRAILER = "x-amz-checksum-crc32c, x-amz-checksum-crc64nvme"


def asked(method: str, query: str = "", bucket: str = "1--table-s3", **headers: str) -> HttpAnswer | None:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return refused_headers(WireRequest("s3", method, f"/{bucket}/f", query, named))


@pytest.mark.parametrize(
    ("method", "query", "headers"),
    [
        ("GET", "", {"if_match": "e", "x_amz_checksum_mode": "ENABLED", "x_amz_security_token": "t"}),
        ("HEAD", "", {"x_amz_expected_bucket_owner": "1", "x_amz_api_version": "2006-03-01"}),
        ("PUT", "", {"x_amz_trailer": TRAILER, "x_amz_decoded_content_length": "1", "if_none_match": "*"}),
        ("PUT", "", {"x_amz_storage_class": "STANDARD", "x_amz_acl": "bucket-owner-full-control"}),
        ("PUT", "", {"x_amz_server_side_encryption": "AES256", "x_amz_sdk_checksum_algorithm": "CRC32"}),
        ("POST", "uploads", {"x_amz_checksum_algorithm": "CRC32", "x_amz_storage_class": "STANDARD"}),
        ("PUT", OF_UPLOAD, {"x_amz_trailer": "x-amz-checksum-crc64nvme", "x_amz_checksum_sha256": "s"}),
        ("POST", "uploadId=u", {"if_match": "e", "x_amz_checksum_crc32": "s"}),
        ("DELETE", "uploadId=u", {"x_amz_expected_bucket_owner": "1"}),
    ],
)
def test_a_table_bucket_takes_what_is_listed_and_what_clients_cannot_help(
    method: str, query: str, headers: dict[str, str]
) -> None:
    assert asked(method, query, **headers) is None


@pytest.mark.parametrize(
    ("method", "query", "header", "value"),
    [
        ("PUT", "", "if_match", "e"),
        ("PUT", "", "x_amz_tagging", "a=b"),
        ("PUT", "", "x_amz_meta_by", "us"),
        ("PUT", "", "x_amz_acl", "private"),
        ("PUT", "", "x_amz_storage_class", "INTELLIGENT_TIERING"),
        ("PUT", "", "x_amz_server_side_encryption", "aws:kms"),
        ("PUT", "", "x_amz_object_lock_mode", "GOVERNANCE"),
        ("PUT", "", "x_amz_trailer", "x-amz-checksum-md5"),
        ("POST", "uploads", "x_amz_tagging", "a=b"),
        ("POST", "uploads", "if_none_match", "*"),
        ("PUT", OF_UPLOAD, "if_none_match", "*"),
        ("POST", "uploadId=u", "if_modified_since", "then"),
        ("GET", "", "x_amz_request_payer", "requester"),
    ],
)
def test_a_table_bucket_refuses_every_other(method: str, query: str, header: str, value: str) -> None:
    refused = asked(method, query, **{header: value})
    assert refused is not None
    assert refused.status == "400 Bad Request"
    assert b"<Code>S3TablesUnsupportedHeader</Code>" in refused.body


def test_an_ordinary_bucket_takes_no_acl() -> None:
    assert asked("PUT", bucket="lake", x_amz_acl="bucket-owner-full-control", x_amz_tagging="a=b") is None
    for header in ({"x_amz_acl": "public-read"}, {"x_amz_grant_read": "id=1"}):
        refused = asked("PUT", bucket="lake", **header)
        assert refused is not None
        assert b"AccessControlListNotSupported" in refused.body


def test_tags_and_acls_need_rights_of_their_own() -> None:
    headers = {"x-amz-tagging": "a=b", "x-amz-acl": "bucket-owner-full-control"}
    needs = s3_needs(WireRequest("s3", "PUT", "/lake/f", "", headers), lambda bucket: None)
    assert [need.action for need in needs] == ["s3:PutObject", "s3:PutObjectTagging", "s3:PutObjectAcl"]


def test_the_gate_asks_and_lets_through_what_we_send(moto_server: MotoServer) -> None:
    """Small and large objects, in one request and in parts."""
    s3tables = moto_server.client("s3tables")
    arn = s3tables.create_table_bucket(name=f"headers-{uuid.uuid4().hex[:8]}")["arn"]
    s3tables.create_namespace(tableBucketARN=arn, namespace=["ns"])
    address = {"tableBucketARN": arn, "namespace": "ns", "name": "t"}
    s3tables.create_table(**address, format="ICEBERG")
    location = s3tables.get_table_metadata_location(**address)["warehouseLocation"]
    with pytest.raises(ClientError, match="S3TablesUnsupportedHeader"):
        moto_server.client("s3").put_object(Bucket=location.removeprefix("s3://"), Key="f", Body=b"x", Tagging="a=b")
    storage = Storage(moto_server.s3_properties)
    for name, content in (("small", b"x"), ("large", bytes(12 << 20))):
        storage.write(f"{location}/{name}", content)
        assert storage.read(f"{location}/{name}") == content
        with storage.open_input(f"{location}/{name}") as stream:
            assert stream.read() == content
