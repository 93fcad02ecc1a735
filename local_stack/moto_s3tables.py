"""The maintenance of table buckets, which moto 5.2.5 does not have: configuration, per table and per bucket, and jobs.

As on AWS all of it is enabled until somebody disables it (Amazon S3 user guide, "S3 Tables maintenance").
Nothing is ever maintained, so that a job that is enabled has not run yet unless a test says how it went.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote

from moto.core.common_types import TYPE_RESPONSE
from moto.s3tables import urls
from moto.s3tables.responses import S3TablesResponse

ANSWERS: dict[tuple[str, ...], dict[str, Any]] = {}
"""Configuration by (ARN,) or (ARN, namespace, table); what is not here is all enabled."""
JOBS: dict[tuple[str, ...], dict[str, Any]] = {}
"""How the jobs of a table went, by (ARN, namespace, table); what is not here follows from the configuration."""
PUTS: list[tuple[tuple[str, ...], str, Mapping[str, Any]]] = []
"""What was asked to change, in order."""

OPERATIONS = (
    "get_table_maintenance_configuration",
    "put_table_maintenance_configuration",
    "get_table_bucket_maintenance_configuration",
    "get_table_maintenance_job_status",
)
MOTOS_OWN = tuple(name for name in OPERATIONS if hasattr(S3TablesResponse, name))
"""Those that moto has by itself, by now."""
_OF_TABLE = ("icebergCompaction", "icebergSnapshotManagement")
_OF_BUCKET = ("icebergUnreferencedFileRemoval",)


def install() -> None:
    """Teach moto the operations, in this process."""
    bucket = "(?P<tableBucketARN_pt_1>[^/]+)/(?P<tableBucketARN_pt_2>[^/]+)"
    table = "(?P<namespace>[^/]+)/(?P<name>[^/]+)"
    for arn in ("(?P<tableBucketARN>[^/]+)", bucket):
        for path in (
            f"buckets/{arn}/maintenance",
            f"tables/{arn}/{table}/maintenance",
            f"tables/{arn}/{table}/maintenance/(?P<type>[^/]+)",
            f"tables/{arn}/{table}/maintenance-job-status",
        ):
            urls.url_paths.setdefault(f"{{0}}/{path}$", S3TablesResponse.dispatch)
    for name in OPERATIONS:
        setattr(S3TablesResponse, name, globals()[f"_{name}"])


def _enabled(names: tuple[str, ...]) -> dict[str, Any]:
    return {name: {"status": "enabled"} for name in names}


def _table(path: str) -> tuple[str, ...]:
    """``tables/ARN/NAMESPACE/NAME/maintenance…``; the ARN has a slash of its own, encoded or not."""
    arn, _, rest = unquote(path).removeprefix("/tables/").partition(":bucket/")
    bucket, namespace, name, *_ = rest.split("/")
    return f"{arn}:bucket/{bucket}", namespace, name


def _get_table_maintenance_configuration(self: S3TablesResponse) -> TYPE_RESPONSE:
    address = _table(self.raw_path)
    found = self.s3tables_backend.get_table(*address)
    answer = {"tableARN": found.arn, "configuration": ANSWERS.get(address, _enabled(_OF_TABLE))}
    return 200, self.default_response_headers, json.dumps(answer)


def _put_table_maintenance_configuration(self: S3TablesResponse) -> TYPE_RESPONSE:
    address, kind = _table(self.raw_path), self.raw_path.rpartition("/")[2]
    self.s3tables_backend.get_table(*address)
    value = json.loads(self.body)["value"]
    PUTS.append((address, kind, value))
    ANSWERS[address] = {**ANSWERS.get(address, _enabled(_OF_TABLE)), kind: value}
    return 204, self.default_response_headers, ""


def _get_table_bucket_maintenance_configuration(self: S3TablesResponse) -> TYPE_RESPONSE:
    arn = unquote(self.raw_path).removeprefix("/buckets/").removesuffix("/maintenance")
    self.s3tables_backend.get_table_bucket(arn)
    answer = {"tableBucketARN": arn, "configuration": ANSWERS.get((arn,), _enabled(_OF_BUCKET))}
    return 200, self.default_response_headers, json.dumps(answer)


def _get_table_maintenance_job_status(self: S3TablesResponse) -> TYPE_RESPONSE:
    address = _table(self.raw_path)
    found = self.s3tables_backend.get_table(*address)
    configured = {**ANSWERS.get(address, _enabled(_OF_TABLE)), **ANSWERS.get(address[:1], _enabled(_OF_BUCKET))}
    is_off = {name: configured.get(name, {}).get("status") == "disabled" for name in (*_OF_TABLE, *_OF_BUCKET)}
    status = {name: {"status": "Disabled" if off else "Not_Yet_Run"} for name, off in is_off.items()}
    answer = {"tableARN": found.arn, "status": {**status, **JOBS.get(address, {})}}
    return 200, self.default_response_headers, json.dumps(answer)
